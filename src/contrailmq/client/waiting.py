"""Waiting for an event with a bound.

Not `asyncio.wait_for`: on Python 3.11 it can swallow a cancellation that arrives together with the event, and a
background loop that was told to stop would go on for ever.
"""

from __future__ import annotations

import asyncio


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within the time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
