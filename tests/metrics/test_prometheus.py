"""A real Prometheus scrapes `contrailmq up --slaves 1` under a mixed load: every query of every panel and of every
alert rule returns something, or says in its description why it may not, and boards show what the load has counted.

`make test` takes as long as it takes until each rate has a value; `make test-long` ten minutes, or
CONTRAILMQ_BOARD_MINUTES. Prometheus is Debian's: the one on PATH, or else its package, downloaded and unpacked.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contrailmq import Admin
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.wire.bodies import QueueData
from free_ports import free_port
from how_many import IS_LONG
from metrics.mixed_load import KEEPING_UP, MixedLoad
from waiting_for import until

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("prometheus")]  # one process unpacks it
GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
BOARDS = sorted(path.name for path in GRAFANA.glob("*.json"))
GUARD_S = 300.0
MINUTES = float(os.environ.get("CONTRAILMQ_BOARD_MINUTES", 10 if IS_LONG else 0))
SCRAPE = "3s" if MINUTES else "1s"
RATE_S = 15 if MINUTES else 10  # a rate is taken over four scrapes or more, as Grafana's is
SPAN_LEAST_S = 15
# What flows before anything is looked at.
RUNNING = (
    'rate(rocketmq_messages_out_total{consumer_group="billing"}[10s]) > 0',
    'rate(rocketmq_messages_out_total{consumer_group="over-grpc"}[10s]) > 0',
    'rate(rocketmq_messages_in_total{topic="Soon"}[10s]) > 0',
    "rate(rocketmq_send_to_dlq_messages_total[10s]) > 0",
    "rate(contrailmq_replication_latency_seconds_count[10s]) > 0",
    "rate(rocketmq_rollback_messages_total[10s]) > 0",
)
Found = dict[str, Any]  # one series of an answer


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of `prometheus` and `promtool`."""
    found = shutil.which("prometheus")
    if found and shutil.which("promtool"):
        return Path(found).parent
    where = Path(os.environ.get("CONTRAILMQ_PROMETHEUS") or tmp_path_factory.mktemp("prometheus"))
    if not (where / "usr" / "bin" / "promtool").exists():
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            pytest.skip("no prometheus on PATH, and no Debian to take its package from")
        where.mkdir(parents=True, exist_ok=True)
        command = "apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb ."
        done = subprocess.run(["sh", "-c", command], cwd=where, capture_output=True, text=True, timeout=GUARD_S)
        if done.returncode:
            pytest.skip(f"no prometheus on PATH, and its package cannot be had: {done.stderr.strip()[-200:]}")
    return where / "usr" / "bin"


class Cluster(NamedTuple):
    namesrv: str
    grpc: str
    pages: list[str]  # addresses that are scraped


class Watched(NamedTuple):
    prometheus: Prometheus
    cluster: Cluster
    counts: Counter[str]
    begin_s: float  # every rate has a value
    end_s: float  # the load still ran


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str, at_s: float | None = None) -> list[Found]:
        """Now, or as it was at that time of the epoch."""
        return self._ask("query", {"query": expression} | ({} if at_s is None else {"time": f"{at_s:.3f}"}))

    def query_range(self, expression: str, begin_s: float, end_s: float, step_s: float) -> list[Found]:
        times = {"start": f"{begin_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s}"}
        return self._ask("query_range", {"query": expression} | times)

    def value(self, expression: str) -> float:
        [found] = self.query(expression)
        return float(found["value"][1])

    def firing(self) -> set[str]:
        with urllib.request.urlopen(f"http://{self.address}/api/v1/alerts", timeout=60) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def _ask(self, what: str, fields: dict[str, str]) -> list[Found]:
        try:
            address = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(fields)}"
            with urllib.request.urlopen(address, timeout=60) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as exc:
            raise AssertionError(f"{fields['query']}: {exc.read().decode()}") from exc
        assert found["status"] == "success", found
        result: list[Found] = found["data"]["result"]
        return result

    def wait_for(self, expression: str) -> None:
        def has_come() -> bool:
            with contextlib.suppress(OSError, AssertionError):  # it starts
                return bool(self.query(expression))
            return False

        until(has_come, f"a result of {expression}", limit_s=GUARD_S)


@contextlib.contextmanager
def cluster(path: Path) -> Iterator[Cluster]:
    """NameServer, master and slave as processes of their own, with pages on free ports."""
    grpc_port = free_port()
    flags = (
        "--slaves",
        "1",
        "--namesrv-port",
        "0",
        "--broker-port",
        "0",
        "--grpc-port",
        str(grpc_port),
        "--no-console",
    )
    patient = ("--set", "transactionCheckMax=1000")  # or half messages are given up after seven minutes
    with (path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "contrailmq", "up", "--store", str(path / "store"), *flags, *patient],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline().split()
        said = (path / "errors").read_text()
        assert ready[:1] == ["ready"], said
        yield Cluster(ready[2], f"127.0.0.1:{grpc_port}", re.findall(r"metrics are at http://(\S+)/metrics", said))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def scraped(tools: Path, path: Path, pages: list[str]) -> Iterator[Prometheus]:
    config = {
        "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
        "rule_files": [str(GRAFANA / "alerts.yml")],
        "scrape_configs": [{"job_name": "contrailmq", "static_configs": [{"targets": pages}]}],
    }
    (path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    with (path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(tools / "prometheus"),
                f"--config.file={path / 'prometheus.yml'}",
                f"--storage.tsdb.path={path / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def watched(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """After the load, which every consumer has got through that was to: cluster and Prometheus still run."""
    path = tmp_path_factory.mktemp("prometheus")
    with cluster(path) as running, scraped(tools, path, running.pages) as made:
        with MixedLoad(running.namesrv, running.grpc) as load:
            made.wait_for("count(up == 1) == 3")
            for expression in RUNNING:
                made.wait_for(expression)
            begin_s = time.time()
            span_s = max(MINUTES * 60, SPAN_LEAST_S)
            until(lambda: time.time() > begin_s + span_s or load.faults, "the minutes", limit_s=span_s + GUARD_S)
            end_s = time.time()
            load.end_sending()
            until(load.is_consumed, "all was consumed", seen=lambda: load.counts)
        assert load.faults == []
        yield Watched(made, running, load.counts, begin_s, end_s)


def expressions(board: str) -> list[tuple[str, str, str]]:
    """(panel, its description, query with the variables filled in as Grafana does for All)."""
    panels = json.loads((GRAFANA / board).read_text())["panels"]
    return [
        (panel["title"], panel.get("description", ""), filled(target["expr"]))
        for panel in panels
        for target in panel.get("targets", [])
    ]


def filled(expression: str) -> str:
    text = expression.replace("$__rate_interval", f"{RATE_S}s")
    return re.sub(r"\$(cluster|broker|group)", ".*", text)


@pytest.mark.parametrize("board", BOARDS)
def test_every_query_of_every_panel_has_values_all_the_time_or_says_why_not(watched: Watched, board: str) -> None:
    """A panel that is drawn for one minute of ten is empty for nine. NaN is drawn as nothing."""
    begin_s, end_s = watched.begin_s, watched.end_s
    step_s = max(1.0, (end_s - begin_s) / 200)
    empty = []
    for panel, description, expression in expressions(board):
        assert "$" not in expression, expression
        found = watched.prometheus.query_range(expression, begin_s, end_s, step_s)
        drawn = {time_s for series in found for time_s, value in series["values"] if value != "NaN"}
        share = len(drawn) / (int((end_s - begin_s) / step_s) + 1)
        if share < 0.95 and "Empty" not in description:
            empty.append(f"{panel}: drawn {share:.0%} of the time: {expression}")
    assert not empty, "\n".join(empty)


@pytest.mark.parametrize("board", BOARDS)
def test_a_line_of_a_panel_has_a_name_of_its_own(watched: Watched, board: str) -> None:
    """Master and slave share `node_id`: two lines of one name are told apart by nobody."""
    doubled = []
    for panel in json.loads((GRAFANA / board).read_text())["panels"]:
        names: Counter[str] = Counter()
        for target in panel.get("targets", []):
            for found in watched.prometheus.query(filled(target["expr"]), watched.end_s):
                labels = found["metric"]
                names[re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), target["legendFormat"])] += 1  # noqa: B023
        doubled += [f"{panel['title']}: {name}" for name, count in names.items() if count > 1]
    assert not doubled, "\n".join(doubled)


@pytest.mark.parametrize("board", BOARDS)
def test_every_variable_of_a_board_finds_values(watched: Watched, board: str) -> None:
    variables = json.loads((GRAFANA / board).read_text())["templating"]["list"]
    for variable in variables:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert asked is not None
            series, label = filled(asked[1]), asked[2]
            assert any(label in found["metric"] for found in watched.prometheus.query(series)), variable["name"]


def shown(watched: Watched, title: str) -> dict[str, float]:
    """The last values of a panel, by the labels of its lines."""
    [board] = [board for board in BOARDS for panel, _, _ in expressions(board) if panel == title][:1]
    return {
        " ".join(label for name, label in sorted(found["metric"].items()) if name != "__name__"): float(
            found["value"][1]
        )
        for panel, _, expression in expressions(board)
        if panel == title
        for found in watched.prometheus.query(expression)
    }


def sent(counts: Counter[str], topic: str) -> int:
    return sum(count for what, count in counts.items() if what.startswith(f"sent {topic}"))


def test_what_is_counted_is_what_was_sent_and_got(watched: Watched) -> None:
    """To the message: producers, consumers and brokers have counted the same."""
    value, counts = watched.prometheus.value, watched.counts
    for topic in ("Orders", "Tasks", "Jobs", "Steps", "Soon", "Level", "Refused"):
        query = f'sum(rocketmq_messages_in_total{{topic="{topic}"}})'
        until(lambda: value(query) == sent(counts, topic), query, seen=lambda: (value(query), counts))  # noqa: B023
    for group in ("billing", "in-order", "popping", "simple", "over-grpc", "punctual", "levelled", "refusing"):
        query = f'sum(rocketmq_messages_out_total{{consumer_group="{group}",is_retry="false"}})'
        until(lambda: value(query) == counts[f"got {group}"], query, seen=lambda: (value(query), counts))  # noqa: B023
    assert value("rocketmq_commit_messages_total") == counts["ended COMMIT"]
    assert value("rocketmq_rollback_messages_total") == counts["ended ROLLBACK"]
    assert value("rocketmq_send_to_dlq_messages_total") == counts["got refusing"]
    in_all = sum(count for what, count in counts.items() if what.startswith("sent ")) - counts["sent Later"]
    in_all += counts["ended COMMIT"] + counts["got refusing"]  # a dead letter is stored once more
    assert value('sum(rocketmq_messages_in_total{is_system="false"})') == in_all


def test_a_rate_that_is_drawn_adds_up_to_what_was_sent(watched: Watched) -> None:
    [expression] = [found for panel, _, found in expressions("brokers.json") if panel == "Messages in per second"]
    [line] = watched.prometheus.query_range(expression, watched.begin_s, watched.end_s, 1.0)
    span_s = round(watched.end_s - watched.begin_s)
    drawn = span_s * sum(float(value) for _, value in line["values"]) / len(line["values"])
    in_all = f'sum(increase(rocketmq_messages_in_total{{is_system="false"}}[{span_s}s]))'
    [counted] = watched.prometheus.query(in_all, watched.end_s - RATE_S / 2)  # a rate is of the time before it
    assert drawn == pytest.approx(float(counted["value"][1]), rel=0.1)


def test_what_waits_is_shown_once_although_a_slave_has_it_too(watched: Watched) -> None:
    counts = watched.counts
    with Admin(namesrv=watched.cluster.namesrv) as admin:
        lags = {group: admin.lag(group) for group in ("billing", "slow", "offline", "simple", "over-grpc")}
    assert lags["offline"] == counts["sent Orders"]
    until(
        lambda: shown(watched, "Messages that wait, by group").items() >= lags.items(),
        seen=lambda: (lags, shown(watched, "Messages that wait, by group")),
    )
    assert shown(watched, "Half messages that wait") == {"Transactions": counts["ended UNKNOWN"]}
    assert shown(watched, "Timers and delayed messages that wait") == {"Later": counts["sent Later"]}


def test_clients_are_counted_once_although_they_are_connected_to_master_and_slave(watched: Watched) -> None:
    """Those over gRPC too, which are members at the broker that serves it."""
    [connected] = [found for panel, _, found in expressions("consumers.json") if panel == "Consumers connected"]
    during = watched.prometheus.query(connected, watched.end_s)
    groups = {found["metric"]["consumer_group"]: float(found["value"][1]) for found in during}
    assert groups == dict.fromkeys({"slow", *KEEPING_UP}, 1)


def test_only_the_group_that_nobody_consumes_for_is_offline(watched: Watched) -> None:
    title = "Groups with a backlog and nobody connected"
    [offline] = [found for panel, _, found in expressions("consumers.json") if panel == title]
    found = watched.prometheus.query_range(offline, watched.begin_s, watched.end_s, 1.0)
    assert {series["metric"]["consumer_group"] for series in found} == {"offline"}


def test_no_alert_fires_but_those_that_the_load_deserves(watched: Watched) -> None:
    """A group that nobody runs, one that is too slow, dead letters; and the machine may be busy with other things."""
    deserved = {"GroupOfflineWithBacklog", "DeadLettersGrow", "ConsumerFarBehind"}
    assert watched.prometheus.firing() <= deserved | {"LoopLate", "SlowPuts"}


PLAUSIBLE = {
    "Put, 50 and 99 %": (1e-6, 10),
    "Sync of the log, 99 %": (1e-6, 10),
    "Dispatch, 99 %": (1e-6, 10),
    "Disk in use, and where messages are refused": (0.001, 1),
    "Takes messages": (1, 1),
    "Damaged records": (0, 0),
    "Copies in sync": (2, 2),
    "CPU": (0, 2),
    "Resident memory": (20e6, 1e9),
    "Connections": (1, 60),
    "Age of the oldest message": (1, 3600_000),
    "From append to slave, 99 %": (1e-6, 10),
}


def test_values_are_such_as_a_small_cluster_has(watched: Watched) -> None:
    odd = []
    for panel, _, expression in expressions("brokers.json"):
        low, high = PLAUSIBLE.get(panel, (0, 1e12))
        for found in watched.prometheus.query_range(expression, watched.begin_s, watched.end_s, 5.0):
            values = [float(value) for _, value in found["values"] if value != "NaN"]
            odd += [f"{panel}: {value} of {found['metric']}" for value in values if not low <= value <= high][:1]
    assert not odd, "\n".join(odd)


def rules() -> list[tuple[str, str, bool]]:
    """(name, expression, whether its figures may be missing), by a reader of these few lines of YAML."""
    text = (GRAFANA / "alerts.yml").read_text()
    parts = text.split("      - alert: ")[1:]
    return [
        (part.partition("\n")[0], part.split("        expr: ")[1].partition("\n")[0], "          empty: " in part)
        for part in parts
    ]


def test_every_alert_looks_at_figures_that_are_there(watched: Watched) -> None:
    """An alert is empty while nothing is wrong; with `bool` its comparison shows 0 or 1 for each figure instead."""
    found = rules()
    assert len(found) >= 14
    for name, expression, may_be_empty in found:
        watched.prometheus.query(expression)
        compared = re.sub(r" (==|>|<) ", r" \1 bool ", expression.partition(" unless ")[0])
        assert compared != expression.partition(" unless ")[0]
        assert watched.prometheus.query(compared, watched.end_s) or may_be_empty, f"{name}: {compared}"


def test_the_rules_are_loaded_and_their_form_is_right(watched: Watched, tools: Path) -> None:
    done = subprocess.run(
        [str(tools / "promtool"), "check", "rules", str(GRAFANA / "alerts.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with urllib.request.urlopen(f"http://{watched.prometheus.address}/api/v1/rules", timeout=60) as answer:
        groups = json.load(answer)["data"]["groups"]
    health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert set(health) == {name for name, _, _ in rules()}
    assert set(health.values()) <= {"ok", "unknown"}  # unknown: not evaluated yet


def test_a_name_server_has_a_page_and_probes() -> None:
    import asyncio

    from metrics.scraping import get, scrape, value

    async def main() -> None:
        config = NamesrvConfig(
            bind_address="127.0.0.1", listen_port=0, metrics_exporter_type="PROM", metrics_prom_exporter_port=0
        )
        server = NameServer(config)
        await server.start()
        page = await asyncio.to_thread(scrape, server.metrics.address)
        labels = {"node_type": "nameserver", "node_id": server.address}
        assert value(page, "contrailmq_namesrv_topics", **labels) == 0
        for topic in ("A", "B", "C"):
            server.tables.queues.setdefault("b", {})[topic] = QueueData(broker_name="b")
        page = await asyncio.to_thread(scrape, server.metrics.address)
        assert value(page, "contrailmq_namesrv_topics", **labels) == 3
        assert await asyncio.to_thread(get, server.metrics.address, "/ready") == (200, "ready\n")
        await server.stop()

    asyncio.run(main())
