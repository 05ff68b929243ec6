"""`--watch SECONDS`: a table again and again, until Ctrl-C.

On a terminal each one takes the place of the one before; elsewhere, and as JSON, one follows the other (JSON a line
each). What cannot be asked the first time ends it; later, the error stands where the table was and it goes on.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final

import typer

from contrailmq.cli.admin.output import on_one_line, time_text

Watch = Annotated[
    float | None, typer.Option("--watch", metavar="SECONDS", min=0.1, help="again and again, until Ctrl-C")
]
CLEAR: Final = "\x1b[2J\x1b[H"
CANNOT: Final = (1, 2)  # exit codes of commands that could not answer
pause: Callable[[float], None] = time.sleep  # tests put their own here


def watched(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one more option."""

    @functools.wraps(command)
    def run(*, watch: float | None = None, **given: object) -> None:
        if watch is None:
            command(**given)
        else:
            _again_and_again(functools.partial(command, **given), watch, as_json=bool(given.get("as_json")))

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("watch", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Watch)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    run.__annotations__ = {name: item.annotation for name, item in run.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return run


def _again_and_again(command: Callable[[], None], seconds: float, *, as_json: bool) -> None:
    is_first = True
    on_one_line.set(True)
    try:
        while True:
            if not as_json and sys.stdout.isatty():
                typer.echo(CLEAR, nl=False)
            if not as_json:
                typer.echo(f"every {seconds:g} s, {time_text(time.time_ns() // 1_000_000)}, Ctrl-C ends")
            try:
                command()
            except typer.Exit as ended:
                if is_first and ended.exit_code in CANNOT:
                    raise
            is_first = False
            pause(seconds)
    except KeyboardInterrupt:  # that is how one ends it
        return
