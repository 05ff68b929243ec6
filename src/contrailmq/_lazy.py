"""Public names of a package that are imported when they are first used.

    __getattr__, __dir__ = lazy_names(globals(), {"Message": "contrailmq.message"})

The package lists the same names under TYPE_CHECKING, so that editors and mypy see them where they come from.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def lazy_names(
    package: dict[str, object], homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package (given its globals) whose names live in the modules of `homes`."""

    def get(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(home), name)
        package[name] = value  # asked for once only
        return value

    def names() -> list[str]:
        return sorted({*package, *homes})

    return get, names
