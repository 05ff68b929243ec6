"""Prometheus' text format, for streams (progress.py) and for jobs of the command line. Needs nothing of Spark."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

Labels = tuple[tuple[str, str], ...]


def prometheus_text(metrics: Mapping[str, tuple[str, str]], values: Mapping[str, Mapping[Labels, float]]) -> str:
    """All values; `metrics` has the type and the meaning of each name."""
    lines = []
    for name, (kind, meaning) in metrics.items():
        if values[name]:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_shown(labels)} {_number(value)}" for labels, value in sorted(values[name].items())]
    return "\n".join([*lines, ""])


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader finds the whole old text or the whole new one."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as part:
        part.write(text)
    os.chmod(part.name, 0o644)
    os.replace(part.name, path)


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else repr(value)


def _shown(labels: Labels) -> str:
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
