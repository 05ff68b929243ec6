"""An environment in which Spark's Kafka connector and our sources run side by side, and a Kafka broker in it.

The connector's newest release on Maven Central is for another Spark than ours may be, so the comparison has its own
folder: a virtual environment with that Spark and with our own dependencies in the versions at hand, the connector's
jars, and the jars of a Kafka broker (KRaft, one node). Nothing is fetched unless it is asked for: `build` downloads
about 700 MB with pip and Maven and takes minutes, once.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, Self

from contrailmq.message import ContrailError

SPARK_VERSION: Final = "4.2.0"
KAFKA_VERSION: Final = "4.3.1"
_SCALA: Final = "2.13"
_TOKENS: Final = ("org.apache.spark", f"spark-token-provider-kafka-0-10_{_SCALA}", "4.0.0")
# What the package and its Spark part import.
_OURS: Final = "pandas pyarrow numpy msgspec typer rich lz4 zstandard zlib-ng prometheus-client uvloop librt"
# Spark's own pom sends Maven to a mirror of Central first, and Maven gives up where that one is out of reach. What a
# project says of a repository goes before what its dependencies say: the mirror is off, and Maven's settings decide.
_POM: Final = """<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>local</artifactId>
<version>1</version><repositories><repository><id>gcs-maven-central-mirror</id><url>file:///nowhere</url>
<releases><enabled>false</enabled></releases><snapshots><enabled>false</enabled></snapshots></repository></repositories>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY: Final = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_MAVEN_REMEDY: Final = (
    "Maven fetches from Maven Central unless its settings (~/.m2/settings.xml, MAVEN_ARGS) say otherwise: where that "
    "is out of reach, name a repository within reach in a settings file and give it as --maven-settings"
)
_SERVER: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={folder}/log
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class KafkaEnvironmentError(ContrailError):
    """The environment for the comparison is not there or could not be built; the text says what to do."""


class KafkaEnvironment:
    """A folder with `venv`, `connector` and `broker`; `ready` in it says that it is whole."""

    def __init__(self, folder: Path, maven_settings: Path | None = None) -> None:
        self.folder = folder
        self._maven_settings = maven_settings  # None: the user's own
        self.python = folder / "venv" / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        return (self.folder / "ready").exists()

    def connector_jars(self) -> list[Path]:
        """The connector and what it needs besides Spark's own jars."""
        return sorted((self.folder / "connector").glob("*.jar"))

    def build(self) -> None:
        """Fetch and install everything. Raises with the last lines of what failed."""
        if shutil.which("mvn") is None:
            raise KafkaEnvironmentError("fetching Kafka needs Maven (mvn), which is not on the PATH: install it")
        self.folder.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(self.folder / "venv")])
        packages = [f"{name}=={version(name)}" for name in _OURS.split()]
        _run([str(self.python), "-m", "pip", "install", "-q", f"pyspark=={SPARK_VERSION}", *packages])
        # Spark begins many processes; without bytecode each would compile pyspark anew, half a second of CPU.
        _run([str(self.python), "-m", "compileall", "-q", str(self._site_packages / "pyspark")])
        self._fetch("broker", ("org.apache.kafka", f"kafka_{_SCALA}", KAFKA_VERSION))
        connector = ("org.apache.spark", f"spark-sql-kafka-0-10_{_SCALA}", SPARK_VERSION)
        try:
            self._fetch("connector", connector)
        except KafkaEnvironmentError as exc:
            # Some mirrors lack the small part that deals with delegation tokens in this version; nothing here uses
            # tokens, and an older one has the same face.
            if _TOKENS[1] not in str(exc):
                raise
            self._fetch("connector", connector, _TOKENS)
        # What Spark brings itself must not come twice, in whatever version.
        brought = {_artifact(jar) for jar in (self._site_packages / "pyspark" / "jars").glob("*.jar")}
        for jar in self.connector_jars():
            if _artifact(jar) in brought:
                jar.unlink()
        (self.folder / "ready").touch()

    @property
    def _site_packages(self) -> Path:
        return next((self.folder / "venv").glob("lib/python*/site-packages"))

    def _fetch(self, name: str, *wanted: tuple[str, str, str]) -> None:
        """The jars of Maven's (group, artifact, version) and of all that they need."""
        pom = self.folder / f"{name}.xml"
        pom.write_text(_POM.format(dependencies="".join(_DEPENDENCY.format(*one) for one in wanted)))
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
        target = self.folder / name
        scope = ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        settings = [] if self._maven_settings is None else ["-s", str(self._maven_settings)]
        try:
            _run(["mvn", "-q", "-B", *settings, "-f", str(pom), goal, *scope])
        except KafkaEnvironmentError as exc:
            raise KafkaEnvironmentError(f"{exc}\n{_MAVEN_REMEDY}") from exc


def find_environment(folder: Path | None, *, fetch: bool, maven_settings: Path | None = None) -> KafkaEnvironment:
    """The environment in `folder` (or in the cache), built if that is allowed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "contrailmq"
    found = KafkaEnvironment(folder or cache / f"spark-{SPARK_VERSION}-kafka-{KAFKA_VERSION}", maven_settings)
    if not found.is_ready:
        if not fetch:
            raise KafkaEnvironmentError(
                f"{found.folder} holds no Kafka and no Spark {SPARK_VERSION} for the comparison: add --fetch-kafka to "
                "download them (about 700 MB)"
            )
        found.build()
    return found


class KafkaBroker:
    """One Kafka node on loopback, with its log under a folder of the caller's."""

    def __init__(self, environment: KafkaEnvironment, java_home: str, folder: Path) -> None:
        self._java = [f"{java_home}/bin/java", "-Xms512m", "-Xmx1g", "-cp", f"{environment.folder}/broker/*"]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"127.0.0.1:{_free_port()}"

    @property
    def process_id(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        config = self._folder / "server.properties"
        port = self.address.rpartition(":")[2]
        config.write_text(_SERVER.format(port=port, controller=_free_port(), folder=self._folder))
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")  # one in 64 begins with a dash
        _run([*self._java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(config)])
        with open(self._folder / "server.out", "wb") as output:
            self._process = subprocess.Popen([*self._java, "kafka.Kafka", str(config)], stdout=output, stderr=output)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def _artifact(jar: Path) -> str:
    """The name of a jar without its version: `kafka-clients` of `kafka-clients-3.9.2.jar`."""
    return re.sub(r"-\d[\w.-]*$", "", jar.stem)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise KafkaEnvironmentError(f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{said}")
