"""A master and workers of Spark's standalone mode on loopback, and a Python without contrailmq for them."""

from __future__ import annotations

import re
import subprocess
import sysconfig
import threading
import venv
from pathlib import Path
from typing import IO

import pyspark

import spark_java
from contrailmq.spark.environment import ensure_java

HOME = Path(pyspark.__file__).parent


def bare_python(folder: Path) -> str:
    """A Python that has all that is installed here but contrailmq, which a `.pth` file leads to: those do not count."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(folder / "bin" / "python")
    done = subprocess.run([python, "-c", "import pyarrow, contrailmq"], env={}, capture_output=True, text=True, cwd="/")
    assert "No module named 'contrailmq'" in done.stderr
    return python


def bare_environment() -> dict[str, str]:
    """What processes get that inherit nothing: Java, and where Spark is."""
    return {
        "JAVA_HOME": ensure_java(),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": spark_java.BRIEF,
    }


class Standalone:
    """A master and its workers, under an environment that holds nothing else, from pyspark's own jars."""

    def __init__(self, folder: Path, *, workers: int = 1) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._folder = folder
        said = self._start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._await(said, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            words = ["-c", "1", "-m", "1g", "-d", str(folder / f"work{number}"), "--webui-port", "0", self.url]
            self._await(self._start("worker.Worker", "--host", "127.0.0.1", *words), r"(Successfully registered)")

    def _start(self, name: str, *words: str) -> IO[str]:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words],
            env=bare_environment() | {"SPARK_DAEMON_JAVA_OPTS": spark_java.PLAIN},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
        )
        self._processes.append(process)
        assert process.stderr is not None
        return process.stderr

    def _await(self, said: IO[str], pattern: str) -> str:
        """What a process says when it is ready; the rest is read in the background, lest it blocks."""
        heard = []
        for line in said:
            heard.append(line)
            found = re.search(pattern, line)
            if found:
                threading.Thread(target=said.read, daemon=True).start()
                return found[1]
        raise AssertionError("".join(heard[-20:]))

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
