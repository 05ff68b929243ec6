"""Image, units and manifests start what they say, from their own settings files, are ready, and stop in their time.

Nothing here runs containers or systemd. So the commands are run as they stand, with the directories of a test in place
of theirs, and with ports and small files from the environment, which beats the files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from contrailmq import Message, Producer, SendStatus
from deployment.files import DEPLOY, PROGRAM, compose, dockerfile, settings_file, unit, unit_command, workloads
from free_ports import free_port

pytestmark = pytest.mark.servers
SMALL = {
    "CONTRAILMQ_MAPPED_FILE_SIZE_COMMIT_LOG": "1048576",
    "CONTRAILMQ_MAX_HASH_SLOT_NUM": "1000",
    "CONTRAILMQ_MAX_INDEX_NUM": "4000",
}


@contextlib.contextmanager
def running(command: list[str], settings: Mapping[str, str], *, stop_s: float) -> Iterator[str]:
    """The line `ready` of a server that ends cleanly when it is told to, within its time."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("CONTRAILMQ_", "NAMESRV_ADDR"))}
    path = os.pathsep.join([str(PROGRAM.parent), kept.get("PATH", "")])
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=kept | SMALL | dict(settings) | {"PATH": path},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), process.communicate()[1]
            yield line
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=stop_s)
            assert process.returncode == 0, errors
        finally:
            process.kill()


def sends(namesrv: str) -> bool:
    with Producer("shop", namesrv=namesrv) as producer:
        return producer.send(Message("Orders", b"one"), timeout=60).status is SendStatus.OK


def answer(port: int, page: str = "/ready") -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=60) as done:
        return int(done.status)


def test_the_image_starts_a_name_server_and_a_broker_and_knows_their_health(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("broker.conf", "namesrv.conf"):
        text = (DEPLOY / "docker" / name).read_text()
        (etc / name).write_text(text.replace("/data", str(tmp_path / "data")))
    servers = compose()["services"]
    stop_s = float(servers["broker-a"]["stop_grace_period"].removesuffix("s"))
    [program] = dockerfile("ENTRYPOINT")

    def command(words: list[str]) -> list[str]:
        return [program, *(word.replace("/etc/contrailmq", str(etc)) for word in words)]

    def healthy(port: int) -> int:
        python, *words = (word.replace(":5557/", f":{port}/") for word in dockerfile("HEALTHCHECK"))
        return subprocess.run(
            [sys.executable if python == "python" else python, *words], capture_output=True
        ).returncode

    namesrv, broker, pages = free_port(), free_port(), [free_port(), free_port()]
    ports = [
        {"CONTRAILMQ_LISTEN_PORT": str(port), "CONTRAILMQ_METRICS_PROM_EXPORTER_PORT": str(page)}
        for port, page in zip((namesrv, broker), pages, strict=True)
    ]
    assert healthy(pages[0]) != 0, "nothing listens yet"
    with running(command(servers["namesrv"]["command"]), ports[0], stop_s=stop_s):
        assert healthy(pages[0]) == 0
        own = dict(servers["broker-a"]["environment"]) | {"CONTRAILMQ_BROKER_IP1": "127.0.0.1"}
        words = command(servers["broker-a"]["command"])
        assert words[:-2] == command(dockerfile("CMD")), "compose adds the NameServer to the image's own command"
        words[-1] = f"127.0.0.1:{namesrv}"
        with running(words, ports[1] | own, stop_s=stop_s) as ready:
            assert ready.split()[2] == "broker-a"
            assert healthy(pages[1]) == 0
            assert sends(f"127.0.0.1:{namesrv}")
    assert (tmp_path / "data" / "commitlog").is_dir()


def test_the_units_start_what_they_name_and_stop_in_their_time(tmp_path: Path) -> None:
    namesrv, broker, grpc, console = (free_port() for _ in range(4))
    pages = [free_port(), free_port()]
    state = tmp_path / "var"
    for name in ("namesrv.conf", "broker-a.conf"):
        text = (DEPLOY / "systemd" / name).read_text()
        (tmp_path / name).write_text(text.replace("/var/lib/contrailmq", str(state)))

    def server(name: str, instance: str = "") -> tuple[list[str], float]:
        words = [word.replace("/etc/contrailmq", str(tmp_path)) for word in unit_command(name, instance)]
        return words, float(unit(name, instance)["TimeoutStopSec"])

    command, stop_s = server("contrailmq-namesrv.service")
    ports = {"CONTRAILMQ_LISTEN_PORT": str(namesrv), "CONTRAILMQ_METRICS_PROM_EXPORTER_PORT": str(pages[0])}
    with running(command, ports | {"ROCKETMQ_HOME": str(state)}, stop_s=stop_s), contextlib.ExitStack() as others:
        assert answer(pages[0]) == 200
        command, stop_s = server("contrailmq-broker@.service", "a")
        ports = {
            "CONTRAILMQ_LISTEN_PORT": str(broker),
            "CONTRAILMQ_METRICS_PROM_EXPORTER_PORT": str(pages[1]),
            "CONTRAILMQ_NAMESRV_ADDR": f"127.0.0.1:{namesrv}",
            "CONTRAILMQ_BROKER_IP1": "127.0.0.1",
        }
        others.enter_context(running(command, ports, stop_s=stop_s))
        assert answer(pages[1]) == 200
        at = {"NAMESRV_ADDR": f"127.0.0.1:{namesrv}"}  # from console.env and proxy.env
        for name, port in (("contrailmq-console.service", console), ("contrailmq-proxy.service", grpc)):
            command, stop_s = server(name)
            command[command.index("--port") + 1] = str(port)
            others.enter_context(running(command, at, stop_s=stop_s))
        assert answer(console, "/") == 200
        assert sends(f"127.0.0.1:{namesrv}")
    assert unit("contrailmq-broker@.service", "a")["StateDirectory"] == "contrailmq/a"
    assert (state / "a" / "commitlog").is_dir()


def test_the_pods_of_a_group_are_a_master_and_its_slave(tmp_path: Path) -> None:
    namesrv = free_port()
    pods = workloads()
    home = tmp_path / "namesrv"
    home.mkdir()
    (home / "namesrv.conf").write_text(settings_file("contrailmq-namesrv").replace("/data", str(home)))
    words = [text.replace("/etc/contrailmq", str(home)) for text in pods["namesrv"]["containers"][0]["args"]]
    own = {"CONTRAILMQ_LISTEN_PORT": str(namesrv), "CONTRAILMQ_METRICS_PROM_EXPORTER_PORT": str(free_port())}
    stop_s = float(pods["namesrv"]["terminationGracePeriodSeconds"])
    with running([str(PROGRAM), *words], own, stop_s=stop_s), contextlib.ExitStack() as brokers:
        for number in ("0", "1"):
            folder = tmp_path / number
            folder.mkdir()
            text = settings_file("contrailmq-broker-a").replace(
                "namesrv-0.namesrv:9876;namesrv-1.namesrv:9876", f"127.0.0.1:{namesrv}"
            )
            (folder / "broker.conf").write_text(text.replace("/data", str(folder)))
            page = free_port()
            container = pods["broker-a"]["containers"][0]
            command = [text.replace("/etc/contrailmq", str(folder)) for text in container["command"]]
            settings = {"CONTRAILMQ_LISTEN_PORT": str(free_port()), "CONTRAILMQ_METRICS_PROM_EXPORTER_PORT": str(page)}
            assert [variable["name"] for variable in container["env"]] == [
                "CONTRAILMQ_BROKER_ID",
                "CONTRAILMQ_BROKER_IP1",
            ]
            settings |= {"CONTRAILMQ_BROKER_ID": number, "CONTRAILMQ_BROKER_IP1": "127.0.0.1"}
            stop_s = float(pods["broker-a"]["terminationGracePeriodSeconds"])
            brokers.enter_context(running(command, settings, stop_s=stop_s))
            assert answer(page) == answer(page, "/live") == 200
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=60) as figures:
                [role] = re.findall(r'contrailmq_broker_role\{.*role="(\w+)".*\} 1', figures.read().decode())
            assert role == ("slave" if int(number) else "master")
        assert sends(f"127.0.0.1:{namesrv}")


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare here")
def test_a_broker_writes_nothing_outside_its_store(tmp_path: Path) -> None:
    """In a name space of mounts in which everything but the store is read-only, as the pod's and the unit's are."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("this process may not have mounts of its own")
    store = tmp_path / "store"
    store.mkdir()
    script = (
        'mount --bind "$0" "$0" && mount -o remount,ro,bind / && ! touch /tmp/.contrailmq 2> /dev/null && '
        'cd "$0" && exec "$1" broker --set storePathRootDir="$0" --set listenPort=0 --set bindAddress=127.0.0.1'
    )
    with running(["unshare", "--mount", "sh", "-euc", script, str(store), str(PROGRAM)], {}, stop_s=90):
        pass
    assert (store / "commitlog").is_dir()
