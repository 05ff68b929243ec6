"""Writes the blocking clients, `client/blocking/sync.py` and `client/blocking/sync_admin.py`, from the asyncio ones.

    python tools/blocking_clients.py            # write them
    python tools/blocking_clients.py --check    # fail when they are not what would be written (make check)

A public method of an asyncio client becomes one with the same signature that runs it on the background loop: `async
def` through `_run`, plain methods and properties through `_do`, those of Admin through `_call`. The first paragraph of
its docstring comes along. What `client/blocking/base.py` has by hand is left to it, and what is listed below as the
asyncio client's own business is left out; every other public name is derived, so nothing is forgotten.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "src" / "contrailmq" / "client"
BLOCKING = CLIENT / "blocking"
BY_HAND = BLOCKING / "base.py"
Method = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Face:
    """A blocking class: what it is made from, and which names of the asyncio class are not for users of it."""

    name: str
    base: str  # in blocking/base.py, or a face before it
    modules: tuple[str, ...]  # that the asyncio class and its bases are in, the outermost base first
    own: frozenset[str] = frozenset()  # the asyncio client's own business
    unlocked: frozenset[str] = frozenset()  # properties that any thread may read
    is_admin: bool = False


_MEMBER = "heartbeat offsets_of namesrv subscriptions topics subscribed_topics route_changed request_rebalance "
_MEMBER += "reset_offsets running_info consume_directly mark_entered"
FILES: dict[str, tuple[str, tuple[Face, ...]]] = {
    "sync": (
        "The blocking faces of the clients",
        (
            Face("Producer", "BlockingProducer", ("producer",), frozenset(("pack", "direct_sender", "send_again"))),
            Face("TransactionProducer", "Producer", ("transaction_producer",)),
            Face(
                "PushConsumer",
                "BlockingPushConsumer",
                ("subscriber", "group_consumer", "push_consumer"),
                frozenset((*_MEMBER.split(), "is_suspended")),
                frozenset(("is_running",)),
            ),
            Face(
                "LitePullConsumer",
                "BlockingLitePullConsumer",
                ("subscriber", "group_consumer", "lite_pull_consumer"),
                frozenset((*_MEMBER.split(), "set_assigned", "forget_polled")),
                frozenset(("is_running",)),
            ),
            Face(
                "SimpleConsumer",
                "BlockingSimpleConsumer",
                ("subscriber", "simple_consumer"),
                frozenset(_MEMBER.split()),
                frozenset(("is_running",)),
            ),
        ),
    ),
    "sync_admin": (
        "The blocking face of `Admin`",
        (
            Face(
                "Admin",
                "BlockingAdmin",
                (
                    "admin_session",
                    "admin_topics",
                    "admin_groups",
                    "admin_offsets",
                    "admin_messages",
                    "admin_dead_letters",
                    "admin",
                ),
                is_admin=True,
            ),
        ),
    ),
}


class Source:
    """A module of the asyncio clients: its one client class, and where the names that it uses come from."""

    def __init__(self, module: str) -> None:
        self.module = module
        path = next(CLIENT.rglob(f"{module}.py"))
        self.room = ".".join(path.relative_to(ROOT / "src").parent.parts)
        tree = ast.parse(path.read_text())
        self.names: dict[str, str] = {}  # name -> module to import it from
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self.names.update((alias.asname or alias.name, node.module) for alias in node.names)
        here = f"{self.room}.{module}"
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.names[node.name] = here
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.names.update((target.id, here) for target in targets if isinstance(target, ast.Name))
        wanted = "".join(part.title() for part in module.split("_"))
        self.body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == wanted)

    @property
    def methods(self) -> dict[str, Method]:
        return {node.name: node for node in self.body.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@dataclass
class Page:
    """A generated module."""

    imports: dict[str, set[str]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def need(self, name: str, module: str) -> None:
        self.imports.setdefault(module, set()).add(name)

    def need_all(self, source: Source, nodes: list[ast.AST]) -> None:
        """Import what annotations and defaults name."""
        for node in nodes:
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and part.id in source.names:
                    self.need(part.id, source.names[part.id])

    def text(self, title: str) -> str:
        rule = "Made by tools/blocking_clients.py: change the asyncio clients, or blocking/base.py, and run it."
        head = f'"""{title}.\n\n{rule}\n"""'
        imports = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self.imports.items())]
        return "\n".join([head, "", "from __future__ import annotations", "", *imports, "", "", *self.lines, ""])


def handwritten(name: str) -> set[str]:
    """The methods of a class of blocking/base.py and of its bases there."""
    tree = ast.parse(BY_HAND.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found: set[str] = set()
    while name in classes:
        found.update(node.name for node in classes[name].body if isinstance(node, ast.FunctionDef))
        name = next((base.id for base in classes[name].bases if isinstance(base, ast.Name)), "")
    return found


def write_face(page: Page, face: Face, known: set[str]) -> None:
    sources = [Source(module) for module in face.modules]
    last = sources[-1]
    methods = {name: (source, node) for source in sources for name, node in source.methods.items()}
    if face.base.startswith("Blocking"):
        page.need(face.base, "contrailmq.client.blocking.base")
    page.need(last.module, last.room)
    page.lines += [f"class {face.name}({face.base}):", f'    """{first_paragraph(last.body)}"""', ""]
    if not face.is_admin:
        page.lines += [f"    _client: {last.module}.{face.name}", ""]
    write_init(page, face, *methods.pop("__init__"))
    for name, (source, node) in methods.items():
        if not name.startswith("_") and name not in known and name not in face.own:
            write_method(page, face, source, node)
    missing = sorted(face.own - methods.keys())
    if missing:
        raise SystemExit(f"{face.name} has no {', '.join(missing)} any more: take them out of {Path(__file__).name}")


def write_init(page: Page, face: Face, source: Source, node: Method) -> None:
    made = f"{face.modules[-1]}.{face.name}({call(node)})"
    page.need_all(source, [node.args])
    page.lines += [f"    def __init__({ast.unparse(node.args)}) -> None:"]
    if face.is_admin:
        page.lines += [f"        super().__init__(lambda: {made})", ""]
    elif face.base.startswith("Blocking"):
        page.lines += [f"        super().__init__({made})", ""]
    else:  # its base would make a client of its own
        page.lines += [f"        BlockingProducer.__init__(self, {made})", ""]


def write_method(page: Page, face: Face, source: Source, node: Method) -> None:
    if node.returns is None:
        raise SystemExit(f"{source.module}.{node.name} does not say what it returns")
    page.need_all(source, [node.args, node.returns])
    is_property = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list)
    said = f"{node.name}({call(node)})" if not is_property else node.name
    if face.is_admin:
        body = f"self._call(lambda admin: admin.{said})"
    elif isinstance(node, ast.AsyncFunctionDef):
        body = f"self._run(self._client.{said})"
    else:
        body = f"self._client.{said}" if node.name in face.unlocked else f"self._do(lambda: self._client.{said})"
    page.lines += ["    @property"] if is_property else []
    page.lines += [f"    def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}:"]
    page.lines += [f'        """{said_of}"""'] if (said_of := first_paragraph(node)) else []
    is_nothing = isinstance(node.returns, ast.Constant) and node.returns.value is None
    page.lines += [f"        {'' if is_nothing else 'return '}{body}", ""]


def call(node: Method) -> str:
    """The arguments of a method, handed on."""
    args = node.args
    given = [arg.arg for arg in (*args.posonlyargs, *args.args)][1:]
    given += [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]
    given += [f"**{args.kwarg.arg}"] if args.kwarg else []
    return ", ".join(given)


def first_paragraph(node: Method | ast.ClassDef) -> str:
    text = (ast.get_docstring(node) or "").split("\n\n")[0]
    return text.replace("\n", "\n        ")


def generated() -> dict[Path, str]:
    pages: dict[Path, str] = {}
    for name, (title, faces) in FILES.items():
        page, known = Page(), {"start", "shutdown"}
        for face in faces:
            derived = known if not face.base.startswith("Blocking") else {"start", "shutdown"}
            known = derived | handwritten(face.base)
            write_face(page, face, known)
        pages[BLOCKING / f"{name}.py"] = in_style(page.text(title), name)
    return pages


def in_style(text: str, name: str) -> str:
    """As `make lint` would leave it."""
    ruff = Path(sys.executable).with_name("ruff")
    for step in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        command = [str(ruff), *step, "--stdin-filename", str(BLOCKING / f"{name}.py"), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main() -> None:
    stale = [(path, text) for path, text in generated().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path, _ in stale)
            raise SystemExit(f"{names}: not what tools/blocking_clients.py makes of the asyncio clients: run it")
        return
    for path, text in stale:
        path.write_text(text)


if __name__ == "__main__":
    main()
