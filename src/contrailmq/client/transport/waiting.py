"""Waiting for an event with a time limit, and being cancelled meanwhile.

Not `asyncio.wait_for`: on Python 3.11 it can swallow a cancellation that arrives together with the event, and a
background loop that was cancelled would go on for ever.
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


def is_being_cancelled() -> bool:
    """Whether somebody cancelled the current task itself, not only what it waits for.

    At shutdown both happen at once. A background loop that heard of the second only would take it for one more failure
    and go on, and `release` would wait for it for ever.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
