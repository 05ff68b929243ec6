"""Loads NiceGUI without clients that no console uses: those for Redis and for other web servers.

Its websocket library imports both where they are installed, and does without where they are not. Both cost 0.4 s of
the start and 17 MB, so they are hidden while it is imported, and found again after that.
"""

from __future__ import annotations

import sys
from typing import Final

_HIDDEN: Final = ("redis", "aiohttp")


def _load() -> None:
    hidden = [name for name in _HIDDEN if name not in sys.modules]
    blocked: dict[str, None] = dict.fromkeys(hidden)
    sys.modules.update(blocked)  # type: ignore[arg-type]
    try:
        import nicegui  # noqa: F401
    finally:
        for name in hidden:
            del sys.modules[name]


_load()
