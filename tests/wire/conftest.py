"""Every test that takes `run` runs on both event loops, with a bound in time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.transport import new_event_loop

from .peers import WAIT_S, Run


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    def runner(main: Coroutine[None, None, None]) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(main, WAIT_S)

        with asyncio.Runner(loop_factory=request.param) as loop:
            loop.run(bounded())

    return runner


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings about peers are bounded for a process: no test uses up what another one looks for."""
    monkeypatch.setattr(peer_warnings, "_periods", {})
