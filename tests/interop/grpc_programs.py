"""The official gRPC clients of RocketMQ 5, installed by name from their registries: how each is started.

Each runs the program below grpc/ in its language: `flow` and `decide`, which print the same facts. What is fetched or
compiled is kept in `.interop/`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apache

SOURCES = Path(__file__).parent / "grpc"


class GrpcClient(NamedTuple):
    """One of them."""

    language: str
    package: str
    version: str
    make: Callable[[Path, str], list[str]]  # (its folder, version) -> the command, or apache.Missing
    has_push_consumer: bool = True

    @property
    def program(self) -> str:
        return f"{self.language} client (gRPC)"

    def command(self) -> list[str]:
        """Made once; tests run in several processes, of which one makes it and the others wait for it."""
        sources = sorted(path for path in (SOURCES / self.language.lower()).rglob("*") if path.is_file())
        key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
        folder = apache.KEPT / f"grpc-{self.language.lower()}-{self.version}-{key}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "making").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self.make(folder, self.version)


def _run(command: list[str], cwd: Path, **environment: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise apache.Missing(f"{' '.join(command[:4])} failed: {last}")


def _needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise apache.Missing(f"{tool} is not on PATH")


def _python(folder: Path, version: str) -> list[str]:
    interpreter = folder / "venv" / "bin" / "python"
    if not (folder / "made").exists():
        _run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
        package = f"rocketmq-python-client=={version}"
        _run([str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check", package], folder)
        (folder / "made").touch()
    return [str(interpreter), str(SOURCES / "python" / "client.py")]


def _java(folder: Path, version: str) -> list[str]:
    _needs("java", "javac")
    jars = apache.fetch_jars(f"rocketmq-client-java-{version}", [("rocketmq-client-java", version)])
    if not (folder / "GrpcClient.class").exists():
        source = str(SOURCES / "java" / "GrpcClient.java")
        _run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(folder), source], folder)
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={folder}"]
    return ["java", *options, "-cp", f"{jars}/*:{folder}", "GrpcClient"]


def _go(folder: Path, version: str) -> list[str]:
    _needs("go")
    assert f" v{version}" in (SOURCES / "go" / "go.mod").read_text()
    if not (folder / "client").exists():
        _run(["go", "build", "-o", str(folder / "client"), "."], SOURCES / "go")
    return [str(folder / "client")]


def _node(folder: Path, version: str) -> list[str]:
    _needs("node", "npm")
    assert f'"{version}"' in (SOURCES / "node" / "package.json").read_text()
    if not (folder / "made").exists():
        for name in ("package.json", "client.js"):
            shutil.copy(SOURCES / "node" / name, folder)
        _run(["npm", "install", "--no-audit", "--no-fund", "--silent"], folder)
        (folder / "made").touch()
    return ["node", str(folder / "client.js")]


def _rust(folder: Path, version: str) -> list[str]:
    _needs("cargo")
    assert f'"={version}"' in (SOURCES / "rust" / "Cargo.toml").read_text()
    target = apache.KEPT / "rust" / "target"
    if not (folder / "client").exists():
        # A copy, since cargo writes a lock file beside the sources.
        shutil.copytree(SOURCES / "rust", folder / "rust", dirs_exist_ok=True)
        _run(["cargo", "build", "--quiet", "--target-dir", str(target)], folder / "rust")
        shutil.copy(target / "debug" / "client", folder)
    return [str(folder / "client")]


CLIENTS = (
    GrpcClient("Python", "rocketmq-python-client", "5.1.2", _python),
    GrpcClient("Java", "rocketmq-client-java", "5.0.8", _java),
    GrpcClient("Go", "rocketmq-clients/golang/v5", "5.1.3", _go),
    GrpcClient("Node", "rocketmq-client-nodejs", "1.0.8", _node),
    GrpcClient("Rust", "rocketmq", "5.0.0", _rust, has_push_consumer=False),
)
