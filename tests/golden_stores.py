"""The store directories that Apache's programs wrote (tests/golden/README.md), for any test."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent / "golden"
NAMES = (
    "clean",
    "kill9",
    "kill9-recovered",
    "kill9-lag",
    "torn",
    "torn-half",
    "torn-mid",
    "direct",
    "direct-crc",
)


@cache
def expected(name: str) -> dict[str, Any]:
    """What Java's DefaultMessageStore says about the store."""
    text = (GOLDEN / f"store-5.5.0-{name}.expected.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def log_files(name: str) -> dict[int, bytes]:
    """The commit-log files: physical offset of the first byte -> content."""
    files: dict[int, bytes] = {}
    with tarfile.open(GOLDEN / f"store-5.5.0-{name}.tar.gz") as archive:
        for member in archive:
            if member.isfile() and "/commitlog/" in member.name:
                content = archive.extractfile(member)
                assert content is not None
                files[int(Path(member.name).name)] = content.read()
    return dict(sorted(files.items()))


def unpack(name: str, target: Path) -> Path:
    """A fresh copy of the store directory under `target`; broker.conf lies beside it."""
    with tarfile.open(GOLDEN / f"store-5.5.0-{name}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)  # 3.11.4 has it
        archive.extractall(target)
    return target / "store"
