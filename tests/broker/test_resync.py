"""A slave that is ahead of its master: refused with both offsets, and with `resync` cut to what both have."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.test_replication import Pair, bodies_in, log_of
from broker.test_slave_end_to_end import broker
from contrailmq.broker.cluster import resync as resync_module
from contrailmq.broker.cluster.master_log import UnlikeError
from contrailmq.broker.config import BrokerConfigError
from contrailmq.broker.server import BrokerServer
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.store.recovery.truncation import NAME, decide_truncation
from contrailmq.wire.transport import RemotingClient
from waiting_for import until_async

pytestmark = pytest.mark.servers

BODY = 100_000  # of messages: ten of them fill a file of the log
AS_SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}


class Group(Pair):
    """A pair whose master can lose what it got after `remember`."""

    async def some(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            answer = await self.send("single", (b"%d," % number).ljust(BODY, b"x"))
            assert answer.code == 0, answer.remark

    async def remember(self) -> None:
        await self.master.stop()
        shutil.copytree(self.path / "master", self.path / "earlier")
        await self.start_master()
        await self.following()

    async def lose(self) -> None:
        """Both go, and the master has what it had earlier."""
        await self.slave.kill()
        await self.master.kill()
        shutil.rmtree(self.path / "master")
        shutil.move(self.path / "earlier", self.path / "master")

    async def start_slave(self, **more: str) -> None:
        self.slave = broker(self.path / "slave", self.namesrv, **AS_SLAVE, **more)
        await self.slave.start()


@asynccontextmanager
async def group(path: Path) -> AsyncIterator[Group]:
    namesrv = NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(path / "home")))
    await namesrv.start()
    client = RemotingClient()
    made = Group(path, namesrv.address, client, {})
    await made.start_master()
    await made.start_slave()
    try:
        await made.following()
        yield made
    finally:
        await client.close()
        await made.slave.stop()
        await made.master.stop()
        await namesrv.stop()


def numbers_in(server: BrokerServer) -> set[int]:
    """Of the messages that readers find."""
    found = (server.store.get("T", 0, offset, 1) for offset in range(server.store.max_offset("T", 0)))
    return {int(message.body.partition(b",")[0]) for result in found for message in result}


@pytest.mark.parametrize("others", [0, 3, 25], ids=["no others", "fewer others", "more others"])
def test_what_the_master_has_lost_goes_with_resync_alone(
    tmp_path: Path, others: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Two files of the slave are the master's no more; the master has got others since, or not."""

    async def work() -> None:
        async with group(tmp_path) as made:
            await made.some(0, 14)
            await made.in_step()
            await made.remember()
            common = made.master.store.log_max_offset
            await made.some(100, 16)
            await made.in_step()
            end = made.slave.store.log_max_offset
            await made.lose()
            await made.start_master()
            await made.some(200, others)
            master_end = made.master.store.log_max_offset
            await made.start_slave()

            def refusals() -> list[str]:
                said = [record.message for record in caplog.records]
                return [line for line in said if "does not follow" in line and "--resync" in line]

            await until_async(lambda: bool(refusals()))
            (said,) = refusals()
            assert str(end) in said
            assert str(master_end) in said
            assert made.slave.store.log_max_offset == end, "nothing was cut unasked"
            await made.slave.stop()

            await made.start_slave(resync="true")
            assert f"ended at offset {end} and was cut at {common}" in caplog.text
            await made.some(300, 1)
            await made.in_step()
            ours, theirs = made.logs()
            assert ours == theirs
            expected = {*range(14), *range(200, 200 + others), 300}
            await until_async(lambda: numbers_in(made.slave) == expected)
            await made.slave.kill()
            await made.start_slave()  # the tail does not come back
            await made.in_step()
            assert log_of(made.slave) == ours
            assert numbers_in(made.slave) == expected

    caplog.set_level(logging.INFO, "contrailmq.broker")
    asyncio.run(work())


def test_a_resync_that_was_killed_goes_on_without_the_flag(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path) as made:
            await made.some(0, 3)
            await made.in_step()
            await made.remember()
            common = made.master.store.log_max_offset
            await made.some(100, 3)
            await made.in_step()
            await made.lose()
            await made.start_master()
            decide_truncation(tmp_path / "slave", made.slave.store.files, common)  # and here the kill comes
            await made.start_slave()
            assert not (tmp_path / "slave" / NAME).exists()
            await made.some(200, 1)
            await made.in_step()
            ours, theirs = made.logs()
            assert ours == theirs
            assert len(bodies_in(theirs)) == 4

    asyncio.run(work())


def test_a_slave_that_is_not_ahead_loses_nothing_by_resync(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that is behind, one that is in step, and one that is new."""

    async def work() -> None:
        async with group(tmp_path) as made:
            await made.slave.stop()
            shutil.rmtree(tmp_path / "slave")
            await made.some(0, 2)
            for behind in (2, 0):
                await made.start_slave(resync="true")
                await made.in_step()
                await made.slave.stop()
                await made.some(10, behind)
            await made.start_slave(resync="true")
            await made.in_step()
            ours, theirs = made.logs()
            assert ours == theirs
            assert "was cut" not in caplog.text
            assert "has nothing that master" in caplog.text

    caplog.set_level(logging.INFO, "contrailmq.broker")
    asyncio.run(work())


def test_nothing_is_cut_without_a_master_and_without_a_common_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resync_module, "FIND_TRIES", 1)

    async def work() -> None:
        async with group(tmp_path) as made:
            await made.some(0, 3)
            await made.in_step()
            end = made.slave.store.log_max_offset
            await made.slave.stop()
            await made.master.stop()
            await made.start_slave(resync="true")
            assert "no master of b answers, so nothing is cut" in caplog.text
            assert f"Asked: NameServer {made.namesrv} (it knows no master of b)" in caplog.text
            assert made.slave.store.log_max_offset == end
            await made.slave.stop()
            shutil.rmtree(tmp_path / "master")
            await made.start_master()
            await made.some(50, 3)
            stranger = broker(tmp_path / "slave", made.namesrv, **AS_SLAVE, resync="true")
            with pytest.raises(UnlikeError, match=f"ends at offset {end}.*nothing was cut.*empty directory"):
                await stranger.start()
            await made.start_slave()
            assert made.slave.store.log_max_offset == end

    caplog.set_level(logging.INFO, "contrailmq.broker")
    asyncio.run(work())


def test_a_master_has_nobody_to_go_by(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(BrokerConfigError, match="only a slave has a master to go by"):
            await broker(tmp_path, "", resync="true").start()

    asyncio.run(work())
