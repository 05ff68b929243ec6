"""What the tools do not guard: the import arrow, lengths, leftovers, dead modules.

Rooms are the packages and modules directly under `contrailmq`. Imports point down the table below only. The table is
the architecture: change it with the documents, never to silence a failure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "contrailmq"

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60

# room -> rooms it may import, besides itself
ARROWS: dict[str, set[str]] = {
    "_version": set(),
    "message": set(),
    "wire": {"message"},
    "store": {"message"},
    "client": {"wire", "message"},
    "aio": {"client", "message"},
    "idempotence": {"client", "message"},
    "namesrv": {"wire", "message", "_version"},
    "broker": {"store", "wire", "client", "message", "_version"},
    "spark": {"client", "wire", "store", "message", "aio"},
    "console": {"client", "wire", "message", "aio"},
    "testing": {"spark", "console", "broker", "namesrv", "aio", "idempotence", "client", "store", "wire", "message"},
    "cli": {
        "testing",
        "console",
        "spark",
        "broker",
        "namesrv",
        "aio",
        "idempotence",
        "client",
        "store",
        "wire",
        "message",
        "_version",
    },
    # The package's front lists the public names; it may look at everything users import.
    "__init__": {"aio", "idempotence", "client", "message", "_version"},
    "__main__": {"cli"},
}
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError\(\)")


@cache
def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text_of(path))))


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path: Path) -> Iterator[tuple[str, int]]:
    """Every room of ours that a file imports, at any depth of nesting, with the line."""
    module = ("contrailmq", *path.relative_to(PACKAGE).with_suffix("").parts)
    package = module[:-1]
    for node in nodes_of(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module or "") if part)
            names = [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "contrailmq" and len(parts) > 1 and parts[1] in ARROWS:
                yield parts[1], node.lineno


def test_imports_follow_the_arrow() -> None:
    against = []
    for path in source_files():
        room = room_of(path)
        assert room in ARROWS, f"{path}: a new room; say in ARROWS what it may import"
        against += [
            f"{path}:{line} imports {target}"
            for target, line in imported_rooms(path)
            if target != room and target not in ARROWS[room]
        ]
    assert not against, "\n".join(against)


def test_files_and_functions_stay_short() -> None:
    long = []
    for path in source_files():
        lines = text_of(path).count("\n") + 1
        if lines > FILE_LINES_MAX:
            long.append(f"{path} has {lines} lines: split it along a noun")
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                start = node.body[0].end_lineno if ast.get_docstring(node) else node.lineno
                assert start is not None
                assert node.end_lineno is not None
                if node.end_lineno - start + 1 > FUNCTION_LINES_MAX:
                    long.append(f"{path}:{node.lineno} {node.name} has {node.end_lineno - start + 1} lines")
    assert not long, "\n".join(long)


def test_nothing_unfinished_is_left() -> None:
    left = [
        f"{path}:{number}: {line.strip()}"
        for path in source_files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if LEFTOVER.search(line)
    ]
    assert not left, "\n".join(left)


def test_no_module_is_dead() -> None:
    """Every module is imported by another one, or is a door that a user opens."""
    doors = {"__init__", "__main__", "_version", "aio", "idempotence", "testing", "cli", "message"}
    imported: dict[str, set[Path]] = {}
    for path in source_files():
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            elif (
                isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("contrailmq.")
            ):
                names = [node.value]
            else:
                continue
            for name in names:
                imported.setdefault(name.rpartition(".")[2], set()).add(path)
    dead = [
        str(path.relative_to(PACKAGE))
        for path in source_files()
        if path.stem not in doors and not path.stem.startswith("__") and not imported.get(path.stem, set()) - {path}
    ]
    assert not dead, dead


def test_the_package_refuses_to_run_without_asserts() -> None:
    """Invariants are asserts and stay on in production."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-O", "-c", "import contrailmq"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode != 0
    assert "asserts" in done.stderr
