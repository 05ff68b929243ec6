"""Brokers with slaves are made to survive: `contrailmq up` starts the one that ends again, and the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final

from contrailmq.message import ContrailError
from contrailmq.testing.members import Member, figures
from contrailmq.wire.tls import client_tls
from contrailmq.wire.transport import RemotingClient

log = logging.getLogger("contrailmq")

PAUSE_S: Final = 1.0  # before the first try; twice as long before each one after it
PAUSE_S_MAX: Final = 30.0  # and who ran for longer begins with PAUSE_S again
FOLLOW_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.05


async def keep_running(name: str, member: Member, stopped: asyncio.Event) -> None:
    """Start a broker again whenever it ends, until `stopped`; a start in progress is waited for."""
    now = asyncio.get_running_loop().time
    pause_s, began = PAUSE_S, now()
    while await _ends(member, stopped):
        await member.stop()  # it is gone: this takes its exit code
        pause_s = PAUSE_S if now() - began > PAUSE_S_MAX else pause_s
        what = f"broker {name} ended by itself with {member.ending}"
        while True:
            log.error("%s: it is started again in %.0f s, the others go on", what, pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), pause_s)
                return
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            try:
                began = now()
                await member.start()
                break
            except (ContrailError, OSError) as exc:
                what = str(exc)
        log.info("broker %s runs again at %s", name, member.address)


async def _ends(member: Member, stopped: asyncio.Event) -> bool:
    """Whether the broker ended, and not all of it is to end."""
    waits = [asyncio.ensure_future(member.failed()), asyncio.ensure_future(stopped.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return not stopped.is_set()


async def wait_for_slaves(slaves: Mapping[str, Member], properties: Mapping[str, str], stopped: asyncio.Event) -> None:
    """Return when all of them follow their masters, or after a while: a line says which do not."""
    client = RemotingClient(tls=client_tls(properties))
    waits = {asyncio.ensure_future(_follows(client, slave, stopped)): name for name, slave in slaves.items()}
    try:
        _, late = await asyncio.wait(waits, timeout=FOLLOW_TIMEOUT_S)
        if late:
            names = ", ".join(sorted(waits[wait] for wait in late))
            text = "%s: no copy of the master's log is made after %.0f s, its own log says why; trying goes on"
            log.warning(text, names, FOLLOW_TIMEOUT_S)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await client.close()


async def _follows(client: RemotingClient, slave: Member, stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        with contextlib.suppress(ContrailError, OSError):  # it may have ended, and be started again
            if (await figures(client, slave)).get("haIsFollowing") == "true":
                return
        await asyncio.sleep(POLL_S)
