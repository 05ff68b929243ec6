"""The log of the long-running commands: where it goes, how a line looks, and the flags that say so.

A line has time, level, logger and text; with `--log-json` it is one JSON object. Text from peers is escaped
here once more, so that nobody can forge a line or control a terminal. `--log-file` rotates by size and keeps some old
files; a file that was moved or removed is opened again. A log that cannot be written never stops a server: standard
error reports it once. `failed` writes the last line of a command that cannot go on, to standard error and the log file.

`up` reads the standard error of brokers that it runs as processes and writes each line here after the broker's name, so
that one file has everything in order.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from contrailmq.message import printable, printable_json, printable_lines

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FILE_MIB: Final = 64
FILES_KEPT: Final = 8
_MIB: Final = 1 << 20
_CHILD: Final = "child"  # the attribute of a record that holds another process's line


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Level = Annotated[LogLevel, typer.Option("--log-level", case_sensitive=False, help="The least that is logged.")]
File = Annotated[
    Path | None, typer.Option("--log-file", help="Log into this file, which is turned, not to standard error.")
]
FileMib = Annotated[int, typer.Option("--log-file-mib", min=1, help="Turn the log file at this size, in MiB.")]
FilesKept = Annotated[int, typer.Option("--log-files", min=1, help="How many turned log files are kept.")]
Json = Annotated[bool, typer.Option("--log-json", help="One JSON object a line: time, level, logger, message.")]


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: LogLevel = LogLevel.INFO
    file: Path | None = None
    file_mib: int = FILE_MIB
    files_kept: int = FILES_KEPT
    is_json: bool = False

    def child_flags(self) -> list[str]:
        """For a process whose lines come here."""
        return ["--log-level", self.level.value, *(["--log-json"] if self.is_json else [])]


def start_logging(settings: LogSettings) -> None:
    """Every logger of this process writes as the settings say. OSError when the log file cannot be opened."""
    handler: logging.Handler = logging.StreamHandler()
    if settings.file is not None:
        handler = _opened(settings.file, settings)
    handler.setFormatter(JsonLines() if settings.is_json else PlainLines(FORMAT))
    logging.basicConfig(level=settings.level.value.upper(), handlers=[handler], force=True)
    _children.setLevel(logging.DEBUG)  # a child has left out already what is below the level


def _opened(file: Path, settings: LogSettings) -> TurnedFile:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return TurnedFile(file, maxBytes=settings.file_mib * _MIB, backupCount=settings.files_kept, encoding="utf-8")
    except OSError as exc:
        raise OSError(
            f"--log-file {file} cannot be opened: {exc.strerror}: choose another, or mend the directory"
        ) from exc


_children: Final = logging.getLogger("contrailmq.child")


def child_log(name: str) -> Callable[[str], None]:
    """Takes the lines that a child with this name logs."""
    return lambda line: _children.info("%s", line, extra={_CHILD: name})


def failed(text: str, *, is_json: bool) -> None:
    """Say why the command ends: the last line that it writes."""
    record = logging.LogRecord("contrailmq", logging.ERROR, "", 0, "%s", (text,), None)
    typer.echo(JsonLines().format(record) if is_json else f"error: {text}", err=True)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, TurnedFile):
            handler.handle(record)


class TurnedFile(logging.handlers.RotatingFileHandler):
    """A log file that is turned by size, here or by others. What cannot be written is left out: the server goes on."""

    _is_told = False

    def emit(self, record: logging.LogRecord) -> None:
        """A stat for each line, 1 us, tells whether the name still leads to the file that is open."""
        if self.stream is not None and not self._is_in_place(self.stream.fileno()):
            with contextlib.suppress(OSError):  # of a disk that is full, say: what it lacks went with the file
                self.stream.close()
            self.stream = None  # it is opened for this line
        super().emit(record)

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.baseFilename), os.fstat(descriptor))
        except OSError:
            return False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._is_told:
            self._is_told = True
            error = sys.exc_info()[1]
            sys.stderr.write(f"the log file {self.baseFilename} cannot be written, lines are missing in it: {error}\n")


class PlainLines(logging.Formatter):
    """Lines for people."""

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        child = getattr(record, _CHILD, None)
        if child is not None:
            return f"[{child}] {printable(record.getMessage())}"
        shown = logging.makeLogRecord(record.__dict__)
        shown.msg, shown.args = printable(record.getMessage()), None
        return super().format(shown)

    def formatException(self, ei: object) -> str:
        return printable_lines(super().formatException(ei))  # type: ignore[arg-type]


class JsonLines(logging.Formatter):
    """Lines for programs. A child's line is an object already: it gets the child's name."""

    def format(self, record: logging.LogRecord) -> str:
        child = getattr(record, _CHILD, None)
        said: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if child is not None:
            said = (_object_in(record.getMessage()) or said) | {"process": child}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(said, ensure_ascii=False))


def _object_in(line: str) -> dict[str, object] | None:
    """None for a line that no logger wrote: `ready`, or the interpreter's last words."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
