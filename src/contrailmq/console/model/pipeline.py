"""The data pipeline, seen from the console: archives on this machine, and commands that are ready to run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArchiveFacts:
    """What one archive says of itself. `fault` is why it cannot be read."""

    directory: str
    rows: int = 0
    files: int = 0
    commits: int = 0
    offsets: dict[str, int] | None = None  # source -> next position to read
    fault: str = ""


ReadArchives = Callable[[], list[ArchiveFacts]]


@dataclass(frozen=True, slots=True)
class ReadyCommand:
    what: str
    line: str  # for a shell: what has spaces or more is quoted


def ready_commands(namesrv: str, *, topics: list[str], archive: str, group: str) -> list[ReadyCommand]:
    """What can be run as it stands: without topics nothing is archived, without a group nothing is sent back."""
    target, chosen = archive or "archive", ["--topics", ",".join(topics)] if topics else []
    lines: list[tuple[str, list[str]]] = []
    if topics:
        words = ["archive", "-n", namesrv, *chosen, "--to", target]
        lines.append(("Append what the topics gained to an archive, each message once", words))
        lines.append(("The same, but only say what would be done", [*words, "--dry-run"]))
    question = "select topic, count(*) from log group by topic"
    lines.append(("Ask the archive in SQL", ["ask", "--archive", target, question]))
    lines.append(("Send archived messages to their topics again", ["replay", "--from", target, "-n", namesrv, *chosen]))
    if group:
        lines.append((f"Send the dead letters of {group} back", ["redrive", "--group", group, "-n", namesrv]))
    return [ReadyCommand(what, shlex.join(["contrailmq", "pipeline", *words])) for what, words in lines]
