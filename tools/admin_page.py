"""Writes the list of commands in docs/admin.md, from the commands themselves and from `cli/admin/answers.py`.

python tools/admin_page.py            # write it
python tools/admin_page.py --check    # fail when it is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from contrailmq.cli.admin import app
from contrailmq.cli.admin.answers import ANSWERS, MESSAGE, Answer, Shape

PAGE = Path(__file__).resolve().parents[1] / "docs" / "admin.md"
BEGIN = "<!-- written by tools/admin_page.py -->\n"
SHARED = {"-n", "--json", "--help"}  # said once, above the list


def main() -> int:
    text = PAGE.read_text()
    wanted = text.partition(BEGIN)[0] + BEGIN + generated()
    if "--check" in sys.argv[1:]:
        if text == wanted:
            return 0
        print(f"{PAGE} is not what the commands say: run python tools/admin_page.py", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


def generated() -> str:
    parts = []
    for path, command in commands():
        usage = " ".join(filter(None, (f"contrailmq admin {path}", *(argument(item) for item in command.params))))
        parts.append(f"\n### {path}\n{sentence(command)}\n\n    {usage}\n")
        options = [option(item) for item in command.params if item.param_type_name == "option"]
        parts.append("".join(f"\n- {text}" for text in options if text) + "\n" if any(options) else "")
        for name, answer in ANSWERS.items():
            if name == path or name.startswith(f"{path} --"):
                parts.append(f"\n{described(name.removeprefix(path).strip(), answer)}\n")
    return "".join(parts)


def commands() -> Iterator[tuple[str, Any]]:
    """The leaves of the tree, in its order."""
    yield from _leaves(get_command(app), ())


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, below in command.commands.items():
        yield from _leaves(below, (*path, name))


def sentence(command: Any) -> str:
    return " ".join((command.help or "").split())


def argument(item: Any) -> str:
    if item.param_type_name != "argument":
        return ""
    name = item.human_readable_name.upper()
    return name if item.required else f"[{name}]"


def option(item: Any) -> str:
    if SHARED & set(item.opts):
        return ""
    names = "`, `".join((*item.opts, *item.secondary_opts))
    return f"`{names}`: {item.help}" if item.help else f"`{names}`"


def described(variant: str, answer: Answer) -> str:
    where = f"`--json` with `{variant}`" if variant else "`--json`"
    fields = ", ".join(f"`{name}` {kind}" for name, kind in answer.fields)
    if fields.endswith(MESSAGE_FIELDS):
        fields = fields.removesuffix(MESSAGE_FIELDS) + "the fields of a message"
    text = f"{where}: {answer.shape.value}" + (f" with {fields}" if fields else "") + "."
    if answer.shape is Shape.TABLE:
        text += " The names are RocketMQ's keys."
    return text + (f" Exit code {answer.exits}." if answer.exits else "")


MESSAGE_FIELDS = ", ".join(
    f"`{name}` {kind}" for name, _, kind in (part.strip().rpartition(" ") for part in MESSAGE.split(";"))
)


if __name__ == "__main__":
    sys.exit(main())
