"""Schemas of bodies: files in a directory, named by topic, and those that somebody gives on the page of a message.

`Orders.avsc` is the schema of the topic Orders. One that was given on a page is used in place of it, for everybody who
looks, until the console ends. Each body is decoded in a process of its own (body_decoder.py says why).
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from contrailmq.console.model.body_decoder import AVRO_FILE, CPU_S, KINDS, SAID, DecodedBody, DecodeTask
from contrailmq.message import ContrailError

SCHEMA_BYTES_MAX: Final = 1 << 20
GIVEN_MAX: Final = 100  # the oldest is forgotten
_WALL_S: Final = 20.0  # a page has 30 s


@dataclass(frozen=True, slots=True)
class Schema:
    """One file. `data` is what was given on a page; without it the file is at `path`."""

    name: str  # as people know it
    path: Path
    data: bytes | None = None
    message: str = ""  # the chosen one of a Protobuf schema


class Schemas:
    def __init__(self, directory: Path | None = None) -> None:
        if directory is not None and not directory.is_dir():
            raise ContrailError(f"there is no directory {directory} with schemas: check --schema-dir")
        self._directory = directory
        self._given: dict[str, Schema] = {}  # by topic
        self._one_at_a_time = asyncio.Lock()

    def of(self, topic: str) -> Schema | None:
        return self._given.get(topic) or self._files().get(topic)

    def give(self, topic: str, name: str, data: bytes) -> None:
        """Use this file for a topic from now on."""
        check_file(name, len(data))
        self._keep(topic, Schema(name[-100:], Path(f"given{Path(name).suffix}"), data))

    def choose(self, topic: str, message: str) -> None:
        """Take this message of the topic's Protobuf schema."""
        if (schema := self.of(topic)) is not None:
            self._keep(topic, replace(schema, message=message))

    async def decoded(self, schema: Schema | None, body: bytes) -> DecodedBody | None:
        """None where there is nothing to decode by."""
        if schema is None and not body.startswith(AVRO_FILE):
            return None
        async with self._one_at_a_time:
            return await asyncio.to_thread(_decode, schema, body)

    def _keep(self, topic: str, schema: Schema) -> None:
        self._given.pop(topic, None)
        self._given[topic] = schema
        while len(self._given) > GIVEN_MAX:
            del self._given[next(iter(self._given))]

    def _files(self) -> Mapping[str, Schema]:
        """By topic. Listed each time: a file may be added while the console runs."""
        if self._directory is None:
            return {}
        try:
            paths = sorted(self._directory.resolve().iterdir())
        except OSError as exc:
            raise ContrailError(f"the schemas in {self._directory} cannot be listed: {exc.strerror}") from exc
        return {path.stem: Schema(path.name, path) for path in paths if path.suffix in KINDS}


def check_file(name: str, size_bytes: int) -> None:
    """Refuse what is no schema by its name or its size."""
    if Path(name).suffix not in KINDS:
        raise ContrailError(f"{name[:100]} is no schema by its name: give one of {', '.join(KINDS)}")
    if size_bytes > SCHEMA_BYTES_MAX:
        raise ContrailError(f"{name[:100]} has {size_bytes} bytes: a schema has at most {SCHEMA_BYTES_MAX}")


def _decode(schema: Schema | None, body: bytes) -> DecodedBody:
    try:
        with TemporaryDirectory() as folder:
            path = ""
            if schema is not None:
                path = str(Path(folder, schema.path))  # an absolute one stays as it is
                if schema.data is not None:
                    Path(path).write_bytes(schema.data)
            return _ran(DecodeTask(body, path, schema.message if schema else ""), Path(folder))
    except OSError as exc:
        return DecodedBody(fault=f"no process can be started for it: {exc}")


def _ran(task: DecodeTask, folder: Path) -> DecodedBody:
    command = [sys.executable, "-P", "-m", "contrailmq.console.model.body_decoder"]
    said = folder / SAID
    try:
        with said.open("wb") as errors:
            done = subprocess.run(
                command,
                input=msgspec.json.encode(task),
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                timeout=_WALL_S,
            )
    except subprocess.TimeoutExpired:
        return DecodedBody(fault=f"it was given up after {_WALL_S:g} s")
    if done.returncode == 0:
        return msgspec.json.decode(done.stdout, type=DecodedBody)
    if done.returncode == -signal.SIGXCPU:
        return DecodedBody(fault=f"it takes more than {CPU_S} s of work")
    if done.returncode < 0:
        return DecodedBody(
            fault=f"its reader was ended by {signal.Signals(-done.returncode).name}: the body or the schema is nested "
            "too deep, or takes too much memory"
        )
    last = said.read_text(errors="replace").strip().rpartition("\n")[2]
    return DecodedBody(fault=f"its reader failed: {last[:300]}")
