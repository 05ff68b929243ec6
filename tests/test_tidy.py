"""What the tools do not guard: the import arrow, lengths, leftovers, dead modules.

Rooms are the packages and modules directly under `contrailmq`. Imports point down the table below only. The table is
the architecture: change it with the documents, never to silence a failure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "contrailmq"

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60

# room -> rooms it may import, besides itself
ARROWS: dict[str, set[str]] = {
    "_compiled": set(),
    "_faults": set(),
    "_interpreter": set(),
    "_lazy": set(),
    "_version": set(),
    "message": set(),
    "wire": {"message", "_faults"},
    "store": {"message", "_lazy", "_faults"},
    "client": {"wire", "message", "_lazy"},
    "aio": {"client", "message"},
    "idempotence": {"client", "message"},
    "metrics": {"wire", "message", "_version", "_faults"},
    "namesrv": {"metrics", "wire", "message", "_version"},
    "broker": {"metrics", "store", "wire", "client", "message", "_version", "_faults"},
    "spark": {"client", "wire", "store", "message", "aio"},
    "console": {"client", "wire", "message", "aio"},
    "proxy": {"metrics", "client", "wire", "message", "_version"},
    "testing": {"spark", "broker", "namesrv", "aio", "idempotence", "client", "store", "wire", "message"},
    "cli": {
        "__init__",
        "testing",
        "console",
        "proxy",
        "spark",
        "broker",
        "namesrv",
        "metrics",
        "aio",
        "idempotence",
        "client",
        "store",
        "wire",
        "message",
        "_compiled",
        "_interpreter",
        "_version",
    },
    # The package's front lists the public names; it may look at everything users import.
    "__init__": {"aio", "idempotence", "client", "message", "_compiled", "_version", "_lazy"},
    "__main__": {"cli"},
}
# The same inside rooms: sub-room (a folder, or a module beside them) -> what of its room it may import. A module
# that has no line may import everything of its room, and only such modules may import it: it stands on the roof.
SUB_ARROWS: dict[str, dict[str, set[str]]] = {
    "store": {
        "files": set(),
        "base": {"files"},
        "delay_levels": {"base"},
        "setting_ranges": set(),
        "config": {"files", "base", "delay_levels", "setting_ranges"},
        "queues": {"files", "base", "config", "delay_levels"},
        "index": {"files", "base", "config", "queues"},
        "log": {"files", "base", "config", "queues"},
        "recovery": {"files", "base", "config", "delay_levels", "queues", "index", "log"},
        "reading": {"files", "base", "config", "queues", "index", "log"},
        "replication": {"files", "base", "config", "queues", "log", "recovery", "reading"},
        "timer": {"files", "base", "config", "log"},
        "upkeep": {"files", "base", "config", "queues", "index", "log", "recovery"},
        "tools": {"files", "base", "config", "delay_levels", "queues", "index", "log", "recovery"},
    },
    "client": {
        "errors": set(),
        "results": set(),
        "namespace": set(),
        "fault_tolerance": set(),
        "hooks": {"results"},
        "life": {"errors"},
        "offset_store": {"errors"},
        "rebalance": {"errors"},
        "records": {"errors"},
        "settings": {"errors", "fault_tolerance", "hooks", "offset_store", "rebalance", "results"},
        "transport": {"errors", "records", "settings"},
        "producing": {
            "errors",
            "fault_tolerance",
            "hooks",
            "life",
            "namespace",
            "records",
            "results",
            "settings",
            "transport",
        },
        "consuming": {
            "errors",
            "hooks",
            "life",
            "namespace",
            "offset_store",
            "rebalance",
            "records",
            "results",
            "settings",
            "transport",
            "producing",
        },
        "admin": {
            "errors",
            "life",
            "namespace",
            "records",
            "results",
            "settings",
            "transport",
            "producing",
            "consuming",
        },
    },
    "spark": {
        "columns": set(),
        "options": {"columns"},
        "runtime": set(),
        "access": {"columns", "options", "runtime"},
        "bodies": {"columns"},
        "decoding": {"columns", "runtime"},
        "sinks": {"columns", "options", "access", "runtime", "decoding"},
        "sources": {"columns", "options", "access", "runtime", "bodies", "decoding", "sinks"},
        "jobs": {"columns", "options", "access", "runtime", "decoding", "sinks", "sources"},
        "topic_tables": {"columns", "options", "access", "runtime", "bodies", "decoding", "sinks", "sources", "jobs"},
    },
    "console": {
        "light_imports": set(),
        "passwords": set(),
        "guard": {"passwords"},
        "model": set(),
        "exporting": {"model"},
        "pages": {"model"},
    },
    "broker": {
        "filters": set(),
        "mistakes": set(),
        "foreign_settings": set(),
        "turns": set(),
        "worker_job": set(),
        "hooks": {"mistakes"},
        "state": {"filters"},
        "handlers": {"mistakes", "state"},
        "config": {"foreign_settings", "state"},
        "node": {"config", "handlers", "hooks", "state"},
        "requests": {"filters", "handlers", "hooks", "node", "state"},
        "delayed": {"handlers", "node", "requests", "state", "worker_job"},
        "transactions": {"handlers", "node", "requests", "state", "worker_job"},
        "pop": {"filters", "handlers", "hooks", "node", "requests", "state"},
        "lite": {"handlers", "node", "pop", "requests", "state"},
        "adoption": {"node", "state"},
        "cluster": {"adoption", "config", "delayed", "handlers", "node", "state", "turns"},
        "admin": {"config", "filters", "handlers", "node", "state", "turns"},
        "metrics": {"cluster", "config", "delayed", "handlers", "node", "state", "transactions", "turns"},
    },
}
# Bracketed, so that this file does not find itself.
LEFTOVER = re.compile(r"(?i:(?<![a-z])(TOD[O]|FIXM[E]|XX[X]|HAC[K])(?![a-z]))|NotImplementedErro[r]")
DOTTED = re.compile(r"contrailmq(\.\w+)+")

# Modules that nothing of ours need import: users, Python and pytest open them by name.
DOORS = {
    "contrailmq.__main__",
    "contrailmq._version",
    "contrailmq.aio",
    "contrailmq.cli.admin.answers",  # tools/admin_page.py writes it into docs/admin.md
    "contrailmq.idempotence",
    "contrailmq.testing.plugin",  # pyproject.toml: the pytest entry point
}


@cache
def files_of(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def source_files() -> list[Path]:
    return files_of(PACKAGE)


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text_of(path))))


REMEMBERED = (files_of, text_of, nodes_of)


def room_of(path: Path, package: Path = PACKAGE) -> str:
    first = path.relative_to(package).parts[0]
    return first.removesuffix(".py")


def module_name(path: Path, package: Path = PACKAGE) -> str:
    return ".".join(("contrailmq", *path.relative_to(package).with_suffix("").parts))


def imported_names(path: Path, package: Path = PACKAGE, *, with_texts: bool = True) -> Iterator[tuple[str, int]]:
    """The full name of everything of ours that a file imports, at any depth of nesting, with the line.

    `from a import b` gives a and a.b, since b may be a module. A text that is a dotted name of ours is taken for an
    import too: lazy tables and `importlib.import_module` have their modules so.
    """
    folder = module_name(path, package).split(".")[:-1]
    for node in nodes_of(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(folder[: len(folder) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module or "") if part)
            names = [f"{origin}.{alias.name}" for alias in node.names]
            names += [origin] if "." in origin else []  # of the front, only the name counts: it may be a room
        elif (
            with_texts
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and DOTTED.fullmatch(node.value)
        ):
            names = [node.value] if node.value.split(".")[1] in ARROWS else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = ["contrailmq" for given in node.args if ast.unparse(given) == "'contrailmq'"]
        for name in names:
            if name.partition(".")[0] == "contrailmq":
                yield name, getattr(node, "lineno", 0)


def imported_rooms(path: Path, package: Path = PACKAGE) -> Iterator[tuple[str, int]]:
    """Every room that a file imports. What is no room is a name of the package's front, `__init__`."""
    for name, line in imported_names(path, package):
        room = f"{name}.".split(".")[1]
        yield room if room in ARROWS else "__init__", line


def against_the_arrow(package: Path) -> list[str]:
    against = []
    for path in files_of(package):
        room = room_of(path, package)
        assert room in ARROWS, f"{path}: a new room; say in ARROWS what it may import"
        against += [
            f"{path.relative_to(package)}:{line} imports {target}"
            for target, line in imported_rooms(path, package)
            if target != room and target not in ARROWS[room]
        ]
    return against


def dead_modules(package: Path) -> list[str]:
    users: dict[str, set[Path]] = {}
    for path in files_of(package):
        for name, _ in imported_names(path, package):
            users.setdefault(name, set()).add(path)
    return [
        name
        for path in files_of(package)
        if path.stem != "__init__"
        and (name := module_name(path, package)) not in DOORS
        and not users.get(name, set()) - {path}
    ]


def leftovers(files: list[Path]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()}"
        for path in files
        if LEFTOVER.search(text_of(path))
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if LEFTOVER.search(line)
    ]


def test_imports_follow_the_arrow() -> None:
    against = against_the_arrow(PACKAGE)
    assert not against, "\n".join(against)


def against_the_inner_arrow(package: Path, room: str, arrows: dict[str, set[str]]) -> list[str]:
    """Arrows inside a room. Texts do not count: a daemon that warms up names modules above it."""
    against = []
    for path in files_of(package / room):
        own = path.relative_to(package / room).parts[0].removesuffix(".py")
        for name, line in imported_names(path, package, with_texts=False):
            parts = name.split(".")
            if parts[1] != room or len(parts) < 3 or parts[2] == own:
                continue
            target = parts[2]
            is_part = (package / room / target).is_dir() or (package / room / f"{target}.py").is_file()
            if is_part and own in arrows and target not in arrows[own]:
                against.append(f"{path.relative_to(package)}:{line} imports {target}")
    return against


@pytest.mark.parametrize("room", SUB_ARROWS)
def test_imports_inside_a_room_follow_its_arrows(room: str) -> None:
    against = against_the_inner_arrow(PACKAGE, room, SUB_ARROWS[room])
    assert not against, "\n".join(against)


@pytest.mark.parametrize("room", SUB_ARROWS)
def test_the_arrows_inside_a_room_name_what_is_there_and_point_down(room: str) -> None:
    arrows = SUB_ARROWS[room]
    there = {path.stem for path in (PACKAGE / room).iterdir()}
    assert set(arrows) <= there, "a name without a file or folder"
    above: set[str] = set()
    for name, targets in arrows.items():  # the table is in order: what a line names stands above it
        assert targets <= above, f"{name} may import what stands below it: {sorted(targets - above)}"
        above.add(name)


def past_the_front(package: Path) -> list[str]:
    """Imports of the broker from inside the store. `from a import b` gives a and a.b: b may be a name of the front."""
    return [
        f"{path.relative_to(package)}:{line} imports {name}"
        for path in files_of(package / "broker")
        for name, line in imported_names(path, package, with_texts=False)
        if name.startswith("contrailmq.store.")
        and (
            package.parent.joinpath(*name.split(".")).is_dir()
            or package.parent.joinpath(*name.split(".")).with_suffix(".py").is_file()
        )
    ]


def test_the_broker_uses_the_store_through_its_front() -> None:
    """`contrailmq.store` lists what a broker may know. mypyc binds such names as directly as those of their modules."""
    against = past_the_front(PACKAGE)
    assert not against, "\n".join(against)


def test_an_import_past_the_front_is_found(tmp_path: Path) -> None:
    package = made_up(
        tmp_path,
        store__config="class StoreConfig: ...",
        store__log__flush="",
        broker__node="from contrailmq.store import StoreConfig",
        broker__send="from contrailmq.store.config import StoreConfig",
        broker__pull="def late():\n    from contrailmq.store.log import flush",
        broker__server="from contrailmq.store import config",
    )
    files = {text.partition(":")[0] for text in past_the_front(package)}
    assert files == {"broker/send.py", "broker/pull.py", "broker/server.py"}


def test_a_folder_of_a_room_is_in_its_table() -> None:
    folders = {
        path.name for room in SUB_ARROWS for path in (PACKAGE / room).iterdir() if (path / "__init__.py").is_file()
    }
    named = {name for arrows in SUB_ARROWS.values() for name in arrows}
    assert folders - named == {"blocking"}, "the blocking clients stand on the roof; any other folder needs its line"


def test_files_and_functions_stay_short() -> None:
    long = []
    for path in source_files():
        lines = text_of(path).count("\n") + 1
        if lines > FILE_LINES_MAX:
            long.append(f"{path} has {lines} lines: split it along a noun")
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                count = node.end_lineno - node.lineno + 1  # all of it: signature, docstring and body
                if count > FUNCTION_LINES_MAX:
                    long.append(f"{path}:{node.lineno} {node.name} has {count} lines")
    assert not long, "\n".join(long)


# ------------------------------------------------------------------------------------------- the layout of a record

LAYOUT = "message/record.py"
# Fields of a head with IPv4 hosts as (begin, end), and numbers that count bytes of a record and hardly anything else.
FIELDS = {*pairwise((0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84, 88)), (20, 36)}
PLACES = {36, 56, 68, 84, 88, 91}
OTHER_LAYOUTS = {  # files that count bytes of something else, and of what
    "message/batch.py": "a part of a client's batch",
    "store/files.py": "the operating system's lock",
    "store/reading/reader.py": "units of a queue",
    "store/recovery/reconcile.py": "a unit of a queue",
    "store/base/journal.py": "the head of a journal's entry",
    "broker/delayed/timers.py": "a timer checkpoint",
    "client/producing/batch.py": "hex digits of a unique key",
    "wire/codes.py": "request codes",
}


def layout_literals(path: Path) -> Iterator[str]:
    """Struct formats that skip bytes, slices that are a field of a record, and the numbers of PLACES."""
    for node in nodes_of(path):
        where = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Struct", "pack", "pack_from", "pack_into")):
            texts = [part.value for given in node.args for part in ast.walk(given) if isinstance(part, ast.Constant)]
            if any(isinstance(text, str) and "x" in text for text in texts):
                yield f"{where} {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.value in PLACES:
            yield f"{where} {node.value}"
        bounds: tuple[object, ...] = ()
        if isinstance(node, ast.Slice):
            bounds = (node.lower, node.upper)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "slice":
            bounds = tuple(node.args)
        if tuple(bound.value for bound in bounds if isinstance(bound, ast.Constant)) in FIELDS:
            yield f"{where} {ast.unparse(node)}"


def test_only_one_file_counts_the_bytes_of_a_record() -> None:
    """What a record looks like stands in message/record.py: others ask it for places, structs and views."""
    known = {*OTHER_LAYOUTS, LAYOUT}
    found = {path.relative_to(PACKAGE).as_posix(): list(layout_literals(path)) for path in source_files()}
    assert not [literal for name, literals in found.items() if name not in known for literal in literals]
    assert all(found[name] for name in known), "a file that counts nothing any more needs no line"


@pytest.mark.parametrize(
    "line",
    [
        "front = struct.Struct('>ii28xi')",
        "size, magic = struct.unpack_from('>4xi', view, 3)",
        "struct.Struct(f'>{count}xq')",
        "flag = int_of(record, 36)",
        "HEAD_BYTES: Final = 88",
        "offset = record[28:36]",
        "magic = file.mapping[4:8]",
        "OWN = slice(20, 36)",
        "at = begin + 84 + body_bytes",
    ],
)
def test_a_literal_of_the_layout_is_found(tmp_path: Path, line: str) -> None:
    package = made_up(
        tmp_path, store__index=line, store__names="x = data[1:9]; y = struct.Struct('>iq'); z = 64 * 1024"
    )
    assert list(layout_literals(package / "store" / "index.py"))
    assert not list(layout_literals(package / "store" / "names.py"))


# Files under FILE_LINES_MIN lines, and why they stand alone. (Not the __init__, __main__ and _version of a package.)
FILE_LINES_MIN = 40
SMALL = {
    "aio.py": "a public door",
    "testing/plugin.py": "pytest's door",
    "_interpreter.py": "tools run it with any Python, without the package",
    "_lazy.py": "the fronts of packages import it before anything else",
    "message/errors.py": "every module of its room stands on it",
    "message/checksum.py": "the one CRC of message, store, client and spark",
    "message/printable.py": "the one escaping for wire, client and cli",
    "store/queues/sound_runs.py": "a queue and its readers share it, and it is tested alone",
    "wire/peer.py": "what the broker knows of a connection, without its implementation",
    "wire/refusals.py": "brokers write these texts, and clients go by them",
    "client/namespace.py": "one rule that producing, consuming and admin share",
    "client/admin/times.py": "cli and console share it",
    "proxy/clock.py": "tests have it go wrong, so it is plain where its users are compiled",
    "cli/admin/times.py": "options that many commands of admin share",
    "cli/admin/producers.py": "a noun of admin has a file",
    "console/exporting.py": "the server streams it, and knows no rows",
    "console/light_imports.py": "it must be imported before NiceGUI",
    "console/model/paging.py": "every list of the console shares it",
    "client/transport/waiting.py": "one trap of asyncio that all three share",
    "broker/turns.py": "admin and cluster share it, and neither may import the other",
    "spark/prometheus.py": "streams and cli share it, and cli loads no Spark for it",
    "broker/metrics/health.py": "what probes ask is not what pages show",
    "metrics/process.py": "broker and NameServer share it",
    "spark/runtime/needs.py": "it must be imported before all others",
    "spark/runtime/task_process.py": "tasks import it, and not the engine that starts sessions",
    "spark/runtime/disk_errors.py": "jobs and cli share it",
    "spark/runtime/hidden_modules.py": "sessions and cli share it",
}


def test_small_files_join_their_neighbours() -> None:
    small = {
        path.relative_to(PACKAGE).as_posix()
        for path in source_files()
        if not path.stem.startswith("__") and path.stem != "_version" and text_of(path).count("\n") < FILE_LINES_MIN
    }
    assert small == set(SMALL)


def test_nothing_unfinished_is_left() -> None:
    left = leftovers([*source_files(), *files_of(ROOT / "tests")])
    assert not left, "\n".join(left)


def test_no_module_is_dead() -> None:
    """Every module is imported by another one, or is a door that a user opens."""
    dead = dead_modules(PACKAGE)
    assert not dead, dead


# ------------------------------------------------------------------------------------------- the guards are guarded too


def made_up(root: Path, **files: str) -> Path:
    """A package of these modules: `store__names="import os"` is store/names.py."""
    package = root / "contrailmq"
    for name, text in files.items():
        path = package.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for remembered in REMEMBERED:  # a directory of an earlier test may have had the same name
        remembered.cache_clear()
    return package


def test_a_dead_module_is_found_beside_a_living_one_of_the_same_name(tmp_path: Path) -> None:
    package = made_up(
        tmp_path,
        store__names="",
        store__send="import contrailmq.store.send",  # importing itself does not count
        message__names="",
        broker__send="from contrailmq.message.names import check",
        broker__server="from . import send\nTABLE = {'x': 'contrailmq.broker.server'}",
        cli__up="from contrailmq.broker import server",
        cli__tool="COMMANDS = {'up': 'contrailmq.cli.up'}",
    )
    assert dead_modules(package) == ["contrailmq.cli.tool", "contrailmq.store.names", "contrailmq.store.send"]


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("import contrailmq.broker.requests.send", "broker"),
        ("from contrailmq import broker", "broker"),
        ("from ..broker import send", "broker"),
        ("def late():\n    from contrailmq.client import Producer", "client"),
        ("import importlib\nimportlib.import_module('contrailmq.client.blocking.sync')", "client"),
        ("from importlib import import_module as load\nload('contrailmq.cli')", "cli"),
        ("import importlib\nimportlib.import_module('contrailmq')", "__init__"),
        ("from contrailmq import Message", "__init__"),
        ("import contrailmq", "__init__"),
    ],
)
def test_an_import_against_the_arrow_is_found_in_every_form(tmp_path: Path, line: str, target: str) -> None:
    found = against_the_arrow(made_up(tmp_path, store__index=line))
    assert {text.rpartition(" ")[2] for text in found} == {target}


def test_an_import_against_an_inner_arrow_is_found(tmp_path: Path) -> None:
    line = "from contrailmq.store.log.commit_log import CommitLog"
    package = made_up(tmp_path, store__log__commit_log="x = 1", store__base__clock=line, store__parts=line)
    assert (
        against_the_inner_arrow(package, "store", {"base": set(), "log": {"base"}})
        == ["store/base/clock.py:1 imports log"] * 2
    )


def test_imports_along_the_arrow_pass(tmp_path: Path) -> None:
    lines = "from contrailmq.message import Message\nfrom contrailmq import message\nfrom .names import x"
    assert against_the_arrow(made_up(tmp_path, store__index=lines)) == []


@pytest.mark.parametrize("word", ["TO" + "DO", "to" + "do", "Fix" + "Me", "xx" + "x", "TO" + "DO_later"])
def test_a_leftover_is_found_in_any_case(tmp_path: Path, word: str) -> None:
    package = made_up(tmp_path, store__index=f"x = 1\n# {word}: more", store__names="SCHEDULE_TOPIC_XXXX = 'method or'")
    assert len(leftovers(files_of(package))) == 1


def test_no_two_test_files_would_be_one_module() -> None:
    """pytest imports a test file outside a package by its bare name: a second one of that name is not collected."""
    bare = sorted(
        path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()
    )
    assert [name for name, following in pairwise(bare) if name == following] == []


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
