"""Which hot modules run: the compiled ones or the plain sources beside them.

Python prefers a compiled module to its source, even when the source is newer. So the build (`tools/compile_hot.py`)
leaves a manifest, `_compiled.txt`, and the package reads it before it imports anything else:

    manifest := "compiled" suffix "\\n" source*  |  "plain" reason "\\n"
    source   := crc32 (8 hex digits)  size_bytes  modified_ns  "hot" | "used"  path "\\n"     (separated by one blank)

"hot" modules are compiled. "used" modules are those that they import from: mypyc copies their constants. If one file
of either kind has changed, every hot module runs from its source, because compiled modules call each other directly.
A file with the noted size and time is unchanged; otherwise the checksum decides. CONTRAILMQ_PURE=1 picks the sources.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

MANIFEST: Final = "_compiled.txt"
PURE: Final = "CONTRAILMQ_PURE"


class Build(NamedTuple):
    """What this process runs."""

    compiled: int = 0  # how many modules are; 0: plain Python
    why_plain: str = ""  # empty where they are compiled
    is_stale: bool = False  # there are compiled modules, and a source has changed since
    hidden: tuple[str, ...] = ()  # sources whose compiled modules may not be used

    def __str__(self) -> str:
        return f"compiled ({self.compiled} modules)" if self.compiled else f"plain Python: {self.why_plain}"


class Source(NamedTuple):
    """A line of the manifest."""

    crc32: int
    size_bytes: int
    modified_ns: int
    is_hot: bool
    path: str  # below the package, with slashes


class PlainSources:
    """A finder in front of all others: it has the sources of the hot modules, and knows nothing else."""

    def __init__(self, package: str, hot: Sequence[str]) -> None:
        name = os.path.basename(package)
        self.files = {f"{name}.{path[:-3].replace('/', '.')}": os.path.join(package, path) for path in hot}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def found(package: str, *, pure: bool) -> Build:
    """What the manifest of a package, its sources and the wish for plain Python come to."""
    try:
        with open(os.path.join(package, MANIFEST), encoding="utf-8") as file:
            kind, _, told = file.readline().rstrip("\n").partition(" ")
            sources = [_parsed(line) for line in file]
    except OSError:  # never built, or packed into an archive
        return Build(why_plain="nothing is compiled here; make install does it, and pip install, with a C compiler")
    if kind != "compiled":
        return Build(why_plain=told)
    hot = tuple(source.path for source in sources if source.is_hot)
    why, is_stale = _reason(package, told, sources, pure=pure)
    return Build(why_plain=why, is_stale=is_stale, hidden=hot) if why else Build(len(hot))


def _parsed(line: str) -> Source:
    crc32, size, modified, kind, path = line.rstrip("\n").split(" ", 4)
    return Source(int(crc32, 16), int(size), int(modified), kind == "hot", path)


def _reason(package: str, suffix: str, sources: Sequence[Source], *, pure: bool) -> tuple[str, bool]:
    """Why the compiled modules may not be used, and whether that is because they are older than a source."""
    if pure:
        return f"{PURE} is set", False
    if suffix not in EXTENSION_SUFFIXES:
        return f"the modules here were compiled for {suffix}, another Python: install again with this one", False
    for source in sources:
        if not _is_unchanged(os.path.join(package, source.path), source):
            return (
                f"{source.path} has changed since it was compiled; make compile (or installing again) renews it",
                True,
            )
        if source.is_hot and not os.path.exists(os.path.join(package, source.path[:-3] + suffix)):
            return f"{source.path[:-3]}{suffix} is missing; make compile (or installing again) renews it", True
    return "", False


def _is_unchanged(file: str, source: Source) -> bool:
    try:
        status = os.stat(file)
        if status.st_size != source.size_bytes:
            return False
        if status.st_mtime_ns == source.modified_ns:
            return True
        import zlib

        with open(file, "rb") as opened:
            return zlib.crc32(opened.read()) == source.crc32
    except OSError:
        return False


def _settle() -> Build:
    package = os.path.dirname(os.path.abspath(__file__))
    build = found(package, pure=os.environ.get(PURE, "") not in ("", "0"))
    if build.hidden:
        sys.meta_path.insert(0, PlainSources(package, build.hidden))
    if build.is_stale:
        import logging  # nobody has set it up yet: this is one line on standard error

        logging.getLogger("contrailmq").warning("contrailmq runs as plain Python: %s", build.why_plain)
    return build


build: Final = _settle()  # the package's front imports this module before any other
