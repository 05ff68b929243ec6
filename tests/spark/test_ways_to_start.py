"""The ways to start that docs/spark.md opens with, as they stand there, on workers that do not have contrailmq.

Only addresses and paths are put in. Master, workers and executors run under an environment that holds Java and nothing
else, in another directory, with a Python that has every dependency but not this package; the first thing that each
program does is to read a source.

Each starts a JVM or three. `make test` takes the two that differ most, `make test-long` all of them: what the others
add is how a session is made, and the other tests of this folder make sessions too.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

import contrailmq
import spark_java
from contrailmq.cli import app
from contrailmq.spark.runtime.needs import NEEDED
from free_ports import free_port
from spark.conftest import expected
from spark.standalone import HOME, Standalone, bare_environment, bare_python
from waiting_for import until

DOCS = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
SOURCE = str(Path(contrailmq.__file__).parents[1])
# A driver that has contrailmq, as a source tree that nothing but its own sys.path leads to.
DRIVER = f"import sys\nsys.path.insert(0, {SOURCE!r})\n"
MODEST = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": spark_java.PLAIN,
    "spark.executor.defaultJavaOptions": spark_java.PLAIN,
}


def programs() -> dict[str, str]:
    """The Python blocks of the page's first section, by the bold words before each."""
    section = DOCS.read_text().partition("## Ways to start")[2].partition("\n## ")[0]
    found = {}
    for piece in re.split(r"^\*\*", section, flags=re.MULTILINE)[1:]:
        code = re.search(r"```python\n(.*?)```", piece, flags=re.DOTALL)
        assert code is not None, piece
        found[piece.partition("**")[0].rstrip(".")] = code[1]
    return found


def counts(shown: str) -> dict[str, int]:
    """What `show` printed of topics and counts."""
    return {
        topic: int(number) for topic, number in re.findall(r"^\|\s*(\w\S*)\|\s*(\d+)\|$", shown, flags=re.MULTILINE)
    }


class Place(NamedTuple):
    """Where a program of the page runs."""

    folder: Path
    bare: str
    master: str
    store: str

    @property
    def settings(self) -> Path:
        """Told by name: a directory of settings would be the first place where Java looks for classes."""
        return self.folder / "modest.conf"

    def filled(self, program: str) -> str:
        for words, place in (("spark://host:7077", self.master), ("/data/store", self.store)):
            program = program.replace(words, place)
        return program

    def run(self, program: str, *words: str, **environment: str) -> dict[str, int]:
        """What a driver shows: by our Python, with workers and planners of the bare one."""
        script = self.folder / "job.py"
        script.write_text(program)
        modest = f"--properties-file {self.settings} pyspark-shell"
        return shown(
            subprocess.run(
                [*(words or [sys.executable]), str(script)],
                env=bare_environment()
                | {"PYSPARK_PYTHON": self.bare, "PYSPARK_SUBMIT_ARGS": modest, "HOME": str(self.folder)}
                | environment,
                capture_output=True,
                text=True,
                cwd=self.folder,
            )
        )


def shown(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    assert done.returncode == 0, done.stderr[-4000:]
    return counts(done.stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, golden_store: Callable[[str], str]) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("ways")
    with contextlib.closing(Standalone(folder)) as cluster:
        place = Place(folder, bare_python(folder / "bare"), cluster.url, golden_store("clean"))
        place.settings.write_text("".join(f"{name} {value}\n" for name, value in MODEST.items()))
        yield place


@pytest.fixture(scope="module")
def held() -> dict[str, int]:
    """How many messages the topics hold that `show` prints in full, as Apache's own classes tell."""
    return dict(Counter(row["topic"] for row in expected("clean")["messages"] if row["topic"].startswith("Golden")))


def test_the_page_names_every_way_to_start() -> None:
    assert list(programs()) == ["Our session", "A session of your own", "spark-submit", "Spark Connect", "A notebook"]


@pytest.mark.long
@pytest.mark.spark
def test_our_session_reads_a_source_first(place: Place, held: dict[str, int]) -> None:
    assert place.run(DRIVER + place.filled(programs()["Our session"])) == held


@pytest.mark.long
@pytest.mark.spark
def test_a_plain_session_reads_a_source_first(place: Place, held: dict[str, int]) -> None:
    assert place.run(DRIVER + place.filled(programs()["A session of your own"])) == held


@pytest.mark.spark
def test_a_plain_session_of_this_host_reads_a_source_first(place: Place, held: dict[str, int]) -> None:
    """As a notebook finds one: nothing that started it knows of contrailmq."""
    plain = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.master('local[1]').getOrCreate()\n"
    assert place.run(plain + DRIVER + place.filled(programs()["A notebook"])) == held


@pytest.mark.spark
def test_spark_submit_brings_the_package_to_a_driver_and_workers_without_it(place: Place, held: dict[str, int]) -> None:
    packed = str(place.folder / "contrailmq.zip")
    assert CliRunner().invoke(app, ["pipeline", "package", packed]).exit_code == 0
    section = re.search(r"```sh\n(spark-submit.*?) job.py\n```", DOCS.read_text())
    assert section is not None
    words = place.filled(section[1]).replace("contrailmq.zip", packed).split()
    words[:1] = [str(HOME / "bin" / words[0]), "--properties-file", str(place.settings)]
    assert place.run(place.filled(programs()["spark-submit"]), *words) == held


@pytest.mark.long
@pytest.mark.spark
def test_a_connect_server_without_the_package_reads_a_source_first(place: Place, held: dict[str, int]) -> None:
    """The server runs on the cluster; its planners and executors have the bare Python, its client ours."""
    pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status and googleapis-common-protos")
    with connect_server(place) as address:
        program = DRIVER + place.filled(programs()["Spark Connect"]).replace("sc://host:15002", address)
        assert place.run(program) == held


@contextlib.contextmanager
def connect_server(place: Place) -> Iterator[str]:
    port = free_port()
    log = place.folder / "server.log"
    words = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", place.master]
    words += ["--conf", f"spark.connect.grpc.binding.port={port}", "--properties-file", str(place.settings)]
    with (
        log.open("w") as said,
        subprocess.Popen(
            [str(HOME / "bin" / "spark-submit"), *words, "spark-internal"],
            env=bare_environment() | {"PYSPARK_PYTHON": place.bare},
            stdout=said,
            stderr=said,
            cwd=place.folder,
        ) as server,
    ):
        try:
            said_so = "Spark Connect server started at"
            until(lambda: said_so in log.read_text(), "the server has started", seen=log.read_text, limit_s=300)
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("way", ["Our session", "A session of your own"])
def test_a_local_cluster_reads_a_source_first(place: Place, held: dict[str, int], way: str) -> None:
    program = place._replace(master="local-cluster[1,1,512]").filled(programs()[way])
    assert place.run(DRIVER + program) == held


@pytest.mark.parametrize("absent", NEEDED)
def test_a_worker_tells_by_name_what_it_lacks_and_the_remedy(absent: str) -> None:
    """As a worker does it: the class of a source comes pickled by its name."""
    program = f"""
import importlib.util, pickle, sys
known = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == {absent!r} else known(name)
sys.modules[{absent!r}] = None
pickle.loads(b"ccontrailmq.spark.sources.rocketmq\\nRocketMQSource\\n.")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": SOURCE}, capture_output=True, text=True
    )
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("ModuleNotFoundError: /")]
    assert told.startswith(
        f"ModuleNotFoundError: {sys.executable} on host {socket.gethostname()} lacks {absent}, which"
    )
    assert f"pip install {absent})" in told
