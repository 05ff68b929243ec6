"""`resync=true`: a slave that has what its master has lost cuts that off at its start, and follows.

A slave that is ahead of its master, or has gone another way since a common record, follows nobody (log_following.py).
With `--resync` its operator has decided that the master's history counts. Before the store is opened, the slave looks
for the last record that both have: in its newest file that begins with a record of the master's, by halving. What
follows it is cut by `truncate_store`, which a kill or a power failure at any point leaves undecided or done. Positions
that the cut has left beyond the end of a queue are set back by the start that follows (store/recovery/truncation.py).

Nothing is cut that the master has, and nothing at all when no master answers, when the logs have no record in common,
or when the slave's log is a part of the master's, as it should be.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import Final

from contrailmq.broker.cluster.master_log import Asking, UnlikeError, has_record_at, log_bounds, record_at
from contrailmq.broker.config import BrokerConfig
from contrailmq.message.addresses import split_host_port
from contrailmq.store import ClosedLog, Files, StoreConfig, truncate_store
from contrailmq.wire.bodies import ClusterInfo, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError

log = logging.getLogger("contrailmq.broker")

FIND_TRIES: Final = 5  # a second apart: a master that is started at the same time gets these
ASK_TIMEOUT_S: Final = 3.0


async def resync(config: BrokerConfig, store_config: StoreConfig, client: Asking, files: Files) -> None:
    """Cut the log of a store that is not open at the end of what it has in common with the master's.

    UnlikeError when they have nothing in common, StoreLockedError while somebody has the store open.
    """
    if not any(files.exists(path) for path in store_config.commit_log_paths):
        return  # a new slave
    master, asked = await _find_master(config, store_config, client)
    if not master:
        log.warning(
            "--resync: no master of %s answers, so nothing is cut; start the master, and this slave again if it does "
            "not follow. Asked: %s",
            config.broker_name,
            "; ".join(asked) or "nobody, because neither namesrvAddr nor haMasterAddress is set",
        )
        return
    with ClosedLog(store_config) as ours:
        end, common = await _compare(ours, client, master)
        is_closed = bool(end) and ours.is_closed_at(end)
    # The last record is the same, but this slave has closed the file behind it and the master has not.
    is_closed_early = common == end and is_closed and await has_record_at(client, master, end)
    if common == end and not is_closed_early:
        log.info("--resync: the log ends at offset %d and has nothing that master %s lacks", end, master)
        return
    report = await asyncio.to_thread(truncate_store, store_config, common, files=files)
    log.warning(
        "--resync: the log ended at offset %d and was cut at %d, the end of what master %s has too: %d messages went",
        end,
        common,
        master,
        sum(report.messages.values()),
    )


async def _find_master(config: BrokerConfig, store_config: StoreConfig, client: Asking) -> tuple[str, list[str]]:
    """The ordinary address of a master that answers, or "" and what came of asking each of those who might know."""
    for left in reversed(range(FIND_TRIES)):
        asked: list[str] = []
        for address in await _named(config, store_config, client, asked):
            try:
                await log_bounds(client, address)
            except (WireError, UnlikeError) as exc:
                asked.append(f"{address} ({exc})")
                continue
            return address, asked
        if left:
            await asyncio.sleep(1)
    return "", asked


async def _named(config: BrokerConfig, store_config: StoreConfig, client: Asking, asked: list[str]) -> list[str]:
    """Who may be the master: whom the NameServers name, and the port below haMasterAddress. `asked` gets those who name
    none."""
    found: list[str] = []
    for namesrv in config.namesrv_addresses:
        try:
            answer = await client.invoke(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, None, b"", ASK_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                asked.append(f"NameServer {namesrv} ({answer.code} {answer.remark})")
                continue
            group = decode_body(answer.body, ClusterInfo).broker_addr_table.get(config.broker_name)
        except WireError as exc:
            asked.append(f"NameServer {namesrv} ({exc})")
            continue
        if group is not None and 0 in group.broker_addrs:
            found.append(group.broker_addrs[0])
        else:
            asked.append(f"NameServer {namesrv} (it knows no master of {config.broker_name})")
    if store_config.ha_master_address:
        host, port = split_host_port(store_config.ha_master_address)
        found.append(f"{host}:{port - 1}")
    return list(dict.fromkeys(found))


async def _compare(ours: ClosedLog, client: Asking, master: str) -> tuple[int, int]:
    """Where our log ends, and where what both have ends."""
    begin, master_end = await log_bounds(client, master)

    async def is_same(offset: int) -> bool:
        return begin <= offset < master_end and await record_at(client, master, offset) == ours.record(offset)

    end = -1
    files = ours.files()
    while (offsets := await asyncio.to_thread(next, files, None)) is not None:
        if end < 0:
            end = _end_of(ours, offsets[-1])
        offsets = offsets[bisect_left(offsets, begin) :]  # what the master has deleted cannot be compared
        if offsets and await is_same(offsets[0]):
            return end, _end_of(ours, offsets[await _last_same(offsets, is_same)])
    if end < 0:
        return 0, 0  # no record at all
    raise UnlikeError(
        f"--resync: no record of this slave, whose log ends at offset {end}, is one of master {master}, whose log has "
        f"the offsets {begin} to {master_end}: nothing was cut. Give this slave an empty directory"
    )


async def _last_same(offsets: array[int], is_same: Callable[[int], Awaitable[bool]]) -> int:
    """The index of the last record that the master has too, as it has the first: once one differs, all after it do."""
    low, high = 0, len(offsets)
    while high - low > 1:
        middle = (low + high) // 2
        if await is_same(offsets[middle]):
            low = middle
        else:
            high = middle
    return low


def _end_of(ours: ClosedLog, offset: int) -> int:
    return offset + len(ours.record(offset))
