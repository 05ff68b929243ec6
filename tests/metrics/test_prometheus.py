"""A real Prometheus scrapes a real master, its slave and their NameServer under load: every query of every panel and
of every alert rule is asked, and returns something or says in its description why it may not.

Prometheus is Debian's: the one on PATH, or else its package, downloaded and unpacked.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrailmq import LitePullConsumer, Message, Producer, PushConsumer, TransactionProducer, TransactionState
from contrailmq.message import ContrailError
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.testing import LocalCluster
from contrailmq.wire.bodies import QueueData
from free_ports import free_port
from waiting_for import until

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("prometheus")]  # one process unpacks it
GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
PROM = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
BOARDS = sorted(path.name for path in GRAFANA.glob("*.json"))
GUARD_S = 300.0


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


class Load:
    """Messages, pulls, transactions and dead letters, for as long as the tests ask. One that fails ends no thread."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._pull, self._transact)]
        self._failing = PushConsumer("Failing", namesrv=namesrv, max_reconsume_times=0)

    def __enter__(self) -> Load:
        with Producer("warm", namesrv=self._namesrv) as producer:
            producer.send(Message("T", b"first"))
        self._failing.subscribe("T")
        self._failing.listen(_fail)
        self._failing.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._failing.shutdown()

    def _send(self) -> None:
        with Producer("P", namesrv=self._namesrv) as producer:
            while not self._is_over.wait(0.02):
                with contextlib.suppress(ContrailError):
                    producer.send(Message("T", b"x" * 500))
                    producer.send(Message("Later", b"x", delay=3600.0))

    def _pull(self) -> None:
        with LitePullConsumer("G", namesrv=self._namesrv) as consumer:
            consumer.subscribe("T")
            while not self._is_over.is_set():
                consumer.poll(timeout=0.2)

    def _transact(self) -> None:
        ends = itertools.cycle([TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN])
        with TransactionProducer(
            "TP",
            namesrv=self._namesrv,
            execute=lambda message, _arg: next(ends),
            check=lambda message: TransactionState.UNKNOWN,
        ) as producer:
            while not self._is_over.wait(0.05):
                with contextlib.suppress(ContrailError):
                    producer.send_in_transaction(Message("TX", b"x"), None)


def _fail(_messages: object) -> None:
    raise ValueError("this consumer fails")


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str) -> list[dict[str, object]]:
        text = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/query?{text}", timeout=60) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as exc:
            raise AssertionError(f"{expression}: {exc.read().decode()}") from exc
        assert found["status"] == "success", found
        result: list[dict[str, object]] = found["data"]["result"]
        return result

    def wait_for(self, expression: str) -> None:
        def has_come() -> bool:
            with contextlib.suppress(OSError, AssertionError):  # it starts
                return bool(self.query(expression))
            return False

        until(has_come, f"a result of {expression}", limit_s=GUARD_S)


@pytest.fixture(scope="module")
def prometheus(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    path = tmp_path_factory.mktemp("prometheus")
    with LocalCluster(slaves=1, config=PROM) as cluster, Load(cluster.namesrv):
        addresses = [metrics.address for index in (0, 1) if (metrics := cluster.broker(index).metrics) is not None]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(GRAFANA / "alerts.yml")],
            "scrape_configs": [{"job_name": "contrailmq", "static_configs": [{"targets": addresses}]}],
        }
        (path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        address = f"127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            [
                str(tools / "prometheus"),
                f"--config.file={path / 'prometheus.yml'}",
                f"--storage.tsdb.path={path / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=(path / "log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        try:
            made = Prometheus(address)
            made.wait_for("count(up == 1) == 2")
            made.wait_for("count_over_time(contrailmq_cpu_seconds_total[1m]) > 5")
            made.wait_for('rate(rocketmq_messages_out_total{consumer_group="G"}[20s]) > 0')
            made.wait_for("rate(rocketmq_send_to_dlq_messages_total[20s]) > 0")
            made.wait_for("rate(contrailmq_replication_latency_seconds_count[20s]) > 0")
            made.wait_for("rate(rocketmq_rollback_messages_total[20s]) > 0")
            yield made
        finally:
            process.terminate()
            process.wait()


def expressions(board: str) -> list[tuple[str, str, str]]:
    """(panel, its description, query with the variables filled in as Grafana does for All)."""
    panels = json.loads((GRAFANA / board).read_text())["panels"]
    return [
        (panel["title"], panel.get("description", ""), filled(target["expr"]))
        for panel in panels
        for target in panel.get("targets", [])
    ]


def filled(expression: str) -> str:
    text = expression.replace("$__rate_interval", "20s")
    return re.sub(r"\$(cluster|broker|group)", ".*", text)


@pytest.mark.parametrize("board", BOARDS)
def test_every_query_of_every_panel_returns_something_or_says_why_not(prometheus: Prometheus, board: str) -> None:
    empty = []
    for panel, description, expression in expressions(board):
        assert "$" not in expression, expression
        if not prometheus.query(expression) and "Empty" not in description:
            empty.append(f"{panel}: {expression}")
    assert not empty, "\n".join(empty)


@pytest.mark.parametrize("board", BOARDS)
def test_every_variable_of_a_board_finds_values(prometheus: Prometheus, board: str) -> None:
    variables = json.loads((GRAFANA / board).read_text())["templating"]["list"]
    for variable in variables:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert asked is not None
            series, label = filled(asked[1]), asked[2]
            assert any(label in found["metric"] for found in prometheus.query(series)), variable["name"]  # type: ignore[operator]


def rules() -> list[tuple[str, str, bool]]:
    """(name, expression, whether its figures may be missing), by a reader of these few lines of YAML."""
    text = (GRAFANA / "alerts.yml").read_text()
    parts = text.split("      - alert: ")[1:]
    return [
        (part.partition("\n")[0], part.split("        expr: ")[1].partition("\n")[0], "          empty: " in part)
        for part in parts
    ]


def test_every_alert_looks_at_figures_that_are_there(prometheus: Prometheus) -> None:
    """An alert is empty while nothing is wrong; with `bool` its comparison shows 0 or 1 for each figure instead."""
    found = rules()
    assert len(found) >= 14
    for name, expression, may_be_empty in found:
        prometheus.query(expression)
        compared = re.sub(r" (==|>|<) ", r" \1 bool ", expression.partition(" unless ")[0])
        assert compared != expression.partition(" unless ")[0]
        assert prometheus.query(compared) or may_be_empty, f"{name}: {compared}"


def test_the_rules_are_loaded_and_their_form_is_right(prometheus: Prometheus, tools: Path) -> None:
    done = subprocess.run(
        [str(tools / "promtool"), "check", "rules", str(GRAFANA / "alerts.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with urllib.request.urlopen(f"http://{prometheus.address}/api/v1/rules", timeout=60) as answer:
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
