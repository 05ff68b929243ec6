"""Dead letters as a file for the browser: JSON lines, or Parquet where pyarrow is installed. Neither is held whole."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from contrailmq.client.admin.letter_exports import ParquetLetters, has_parquet, json_line
from contrailmq.console.model.letters import Letters

__all__ = ["file_name", "has_parquet", "json_lines", "parquet"]

CHUNK_BYTES: Final = 1 << 20


def file_name(group: str, form: str) -> str:
    """A name that no header and no file system misreads."""
    return f"dead-letters-{re.sub(r'[^A-Za-z0-9_-]', '_', group)[:80]}.{form}"


async def json_lines(letters: Letters, group: str) -> AsyncIterator[bytes]:
    async for some in letters.export(group):
        yield b"".join(map(json_line, some))


async def parquet(letters: Letters, group: str) -> AsyncIterator[bytes]:
    """Written to a temporary file first: its end tells where its parts are."""
    with tempfile.TemporaryDirectory(prefix="contrailmq-export-") as directory:
        path = Path(directory) / "letters.parquet"
        with ParquetLetters(path) as file:
            async for some in letters.export(group):
                file.write(some)
        with path.open("rb") as read:
            while chunk := read.read(CHUNK_BYTES):
                yield chunk
