"""Fixtures of the Spark tests: golden stores unpacked once, and one Spark session for all tests that need one."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.forked import Forking

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
STORES = ("clean", "kill9", "kill9-recovered", "kill9-lag", "torn", "torn-half", "torn-mid", "direct", "direct-crc")


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The directory of a golden store, unpacked once; tests only read it."""
    unpacked: dict[str, str] = {}

    def store(name: str) -> str:
        if name not in unpacked:
            unpacked[name] = unpack(name, tmp_path_factory.mktemp(name))
        return unpacked[name]

    return store


def unpack(name: str, folder: Path) -> str:
    """A fresh copy of a golden store that a test may change."""
    with tarfile.open(GOLDEN / f"store-5.5.0-{name}.tar.gz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)  # 3.11.4 has it
        packed.extractall(folder)
    return str(folder / "store")


def expected(name: str) -> dict[str, Any]:
    """What Apache's own classes say about a golden store."""
    found: dict[str, Any] = json.loads((GOLDEN / f"store-5.5.0-{name}.expected.json").read_text())
    return found


@pytest.fixture(scope="session")
def pool() -> Iterator[Any]:
    """One pool of two processes for all tests that want one."""
    from contrailmq.spark.runtime.engine import LocalEngine

    engine = LocalEngine(workers=2)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    """One process for all tests whose programs are killed."""
    with Forking() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session for all tests: two cores, three tries per task, little memory."""
    import contrailmq.spark

    session = contrailmq.spark.session(
        "tests",
        master="local[2,3]",
        spark_driver_memory="1g",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _sources_are_known(request: pytest.FixtureRequest) -> None:
    """Spark looks a source up in the session that is active on its thread, and streams of other tests change that."""
    if "spark" not in request.fixturenames:
        return
    import contrailmq.spark

    session = request.getfixturevalue("spark")
    module = type(session)._get_j_spark_session_module(session._jvm)
    module.setActiveSession(session._jsparkSession)
    module.setDefaultSession(session._jsparkSession)
    contrailmq.spark.register(session)
