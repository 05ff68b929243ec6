"""Long lists in short turns: a legal request may name thousands of topics while everybody else waits for the loop.

    async for topic in in_turns(topics): ...

gives way to the loop after TURN_S of work. Clients' requests have 5 ms at a stretch too (wire/connection.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")

TURN_S: Final = 0.005
_BETWEEN_LOOKS: Final = 16  # items between two looks at the clock: the dearest (a group) takes 30 us


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The same items. What is iterated must not change meanwhile: pass a copy of what others own."""
    source = iter(items)
    end_s = time.monotonic() + TURN_S
    while part := list(islice(source, _BETWEEN_LOOKS)):
        for item in part:
            yield item
        if time.monotonic() >= end_s:
            await asyncio.sleep(0)
            end_s = time.monotonic() + TURN_S
