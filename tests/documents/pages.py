"""The documents as values: pages, their headings, links and code blocks.

A block that cannot run or be parsed has its reason on the line above it: `<!-- not run: why -->`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *DOCS.glob("*.md")])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    reason: str  # why it does not run, empty where it does

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            above = text[: match.start()].rstrip("\n").rpartition("\n")[2]
            reason = re.fullmatch(r"<!-- not run: (.+) -->", above)
            if match[1] in languages:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(page, line, match[1], match[2], reason[1] if reason else ""))
    return found


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def shell_commands() -> list[tuple[str, str]]:
    """Every line that calls contrailmq, in fenced and in indented blocks, with its place."""
    lines = [(str(block), line) for block in blocks("sh", "") for line in block.text.splitlines()]
    for page in PAGES:
        indented = re.findall(r"^    (contrailmq .*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
        lines += [(page.name, line) for line in indented]
    found = []
    for place, line in lines:
        command = re.match(r"(?:sudo |[A-Z_]+=\S+ )*contrailmq (.+)", line)
        if command:
            found.append((place, command[1]))
    return found
