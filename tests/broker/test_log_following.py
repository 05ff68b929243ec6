"""A slave follows a scripted master over a real socket: what it reports, when it begins again, whom it refuses."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from broker.harness import Bench, Link
from contrailmq.broker.cluster import log_following
from contrailmq.broker.cluster.log_following import LogFollowing
from contrailmq.broker.cluster.resync import resync
from contrailmq.message import Message
from contrailmq.store import Files, MessageStore, StoreConfig
from contrailmq.wire.errors import ConnectError
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command, Fields
from waiting_for import LIMIT_S, until_async

MASTER = "10.0.0.2:10911"
FILE_BYTES = 16 * 1024
HEAD = struct.Struct(">qi")
REPORT = struct.Struct(">q")


class Master:
    """A log, an HA port that does as it is told, and the ordinary port's two answers."""

    def __init__(self, path: Path) -> None:
        self.bench = Bench(path, mapped_file_size_commit_log=FILE_BYTES)
        self.store = self.bench.store
        self.reports: list[int] = []
        self.connections: list[asyncio.StreamWriter] = []
        self.is_gone = False
        self.has_closed = 0
        self.block_bytes = 700
        self.asked: list[int] = []
        self.is_silent = False
        self.repeats = False  # the next block, at once, and says nothing more
        self.addresses = {MASTER}  # where its ordinary port is

    def put(self, count: int, size_bytes: int = 200) -> None:
        for number in range(count):
            self.put_one(b"%d" % number + bytes(size_bytes))

    def put_one(self, body: bytes) -> None:
        self.store.append("T", 0, body, b"", tags_code=0, keys=None, unique_key=None)
        self.store.dispatch()

    async def listen(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        listening = asyncio.ensure_future(self._hear(reader))
        try:
            await until_async(lambda: bool(self.reports))
            at = self.reports[-1]
            if at == 0:
                at = self.store.log_max_offset - self.store.log_max_offset % FILE_BYTES
            while not listening.done():
                data = None if self.is_silent else self.store.read_log(at, self.block_bytes)
                if data is None:
                    await asyncio.sleep(0.005)
                    continue
                block = HEAD.pack(at, len(data)) + bytes(data)
                writer.write(block * 2 if self.repeats else block)
                self.is_silent = self.repeats
                at += len(data)
                data.release()
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            listening.cancel()
            self.has_closed += 1

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        self.reports.clear()
        while len(report := await reader.read(8)) == 8:
            self.reports.append(REPORT.unpack(report)[0])

    def hang_up(self) -> None:
        self.reports.clear()
        for writer in self.connections:
            writer.transport.abort()
        self.connections.clear()

    async def invoke(
        self, address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command:
        if self.is_gone or address not in self.addresses:
            raise ConnectError(address, "refused")
        self.asked.append(code)
        link = Link()
        self.bench.handlers.handle(link, FrameParser().feed(encode_request(code, ext, body, opaque=1)))
        await self.bench.handlers.drain()
        (answer,) = link.take()
        return answer


class Story:
    """A master and a slave's following of it, on one loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.master = Master(path / "master")
        self.slave = self.new_slave()
        self.looked_again = 0

    def new_slave(self, **settings: object) -> Bench:
        bench = Bench(
            self.path / "slave",
            settings={"brokerId": "1"},
            broker_role="SLAVE",
            mapped_file_size_commit_log=FILE_BYTES,
            **settings,
        )
        bench.node.set_address("10.0.0.3", 10_911)
        bench.node.call_soon = bench.loop.call_soon
        return bench

    def look(self) -> None:
        self.looked_again += 1

    def play(self, act: Callable[[LogFollowing, str], Awaitable[None]], *, is_told: bool = True) -> None:
        """Run an act while the slave follows; both live on the slave's loop."""

        async def whole() -> None:
            address = await self.master.listen()
            following = LogFollowing(self.slave.node, self.master, look_again=self.look)
            loop = asyncio.get_running_loop()

            def tell(offset: int) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self.durable, following, offset)

            self.slave.store.on_durable(tell)
            if is_told:
                following.master_told(MASTER, address)
            task = asyncio.ensure_future(following.run())
            try:
                async with asyncio.timeout(2 * LIMIT_S):
                    await act(following, address)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                self.master.hang_up()
                self.master.server.close()

        self.slave.run(whole())

    def durable(self, following: LogFollowing, offset: int) -> None:
        self.slave.node.durable(offset)
        following.durable(offset)

    def is_copied(self) -> bool:
        ours, theirs = self.slave.store, self.master.store
        return ours.dispatched_offset == theirs.log_max_offset and ours.queues() == theirs.queues()

    def close(self) -> None:
        self.slave.close()
        self.master.bench.close()


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    monkeypatch.setattr(log_following, "PAUSE_S_MIN", 0.01)
    monkeypatch.setattr(log_following, "PAUSE_S_MAX", 0.05)
    monkeypatch.setattr(log_following, "LOOK_AGAIN_S", 0.01)
    made = Story(tmp_path)
    yield made
    made.close()


def follow_then_replace(story: Story) -> int:
    """A slave copies three messages; then another master has six others of the same size. Where the slave ends."""
    story.master.put(3)
    story.play(lambda following, address: until_async(story.is_copied))
    story.master.bench.close()
    story.master = Master(story.path / "another")
    for body in b"xyzabc":
        story.master.put_one(bytes([body]) + bytes(200))
    return story.slave.store.log_max_offset


def test_a_slave_copies_what_is_there_and_what_comes_and_reports_it(story: Story) -> None:
    story.master.put(5)

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(story.is_copied)
        story.master.put(120)  # several files
        await until_async(story.is_copied)
        await until_async(lambda: story.master.reports[-1] == story.master.store.log_max_offset)
        assert story.master.reports == sorted(story.master.reports)
        assert story.master.reports[0] == 0
        assert following.lag == (True, 0, 0)

    story.play(act)


def test_a_connection_that_breaks_anywhere_costs_nothing(story: Story) -> None:
    story.master.put(5)
    story.master.block_bytes = 333

    async def act(following: LogFollowing, address: str) -> None:
        for round_ in range(1, 6):
            story.master.put(10)
            await until_async(lambda: story.slave.store.replica.end > round_ * 700)  # noqa: B023
            story.master.hang_up()
        await until_async(story.is_copied)

    story.play(act)


def test_what_came_whole_before_a_wrong_block_is_in_the_queues_at_once(story: Story) -> None:
    """It was reported by the next connection, and nobody could read it until the next message came."""
    story.master.put(3)
    story.master.block_bytes = 10_000
    story.master.repeats = True

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(lambda: story.slave.store.replica.end == story.master.store.log_max_offset)
        await until_async(lambda: story.master.has_closed > 0)
        await until_async(story.is_copied)

    story.play(act)


def test_a_master_that_is_back_at_its_old_address_is_followed_at_once(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause before the next try had grown to five seconds, and sends that wait for a slave failed meanwhile."""
    story.master.put(2)
    monkeypatch.setattr(log_following, "PAUSE_S_MIN", 3600.0)
    monkeypatch.setattr(log_following, "PAUSE_S_MAX", 3600.0)

    async def act(following: LogFollowing, address: str) -> None:
        story.master.is_gone = True
        following.master_told(MASTER, address)
        await until_async(lambda: story.looked_again > 0)
        await asyncio.sleep(0)
        following.master_told("", "")
        story.master.is_gone = False
        following.master_told(MASTER, address)
        await until_async(story.is_copied)

    story.play(act, is_told=False)


def test_while_no_master_is_known_the_name_servers_are_asked_again_and_again(story: Story) -> None:
    story.master.put(2)

    async def act(following: LogFollowing, address: str) -> None:
        following.master_told("", "")
        await until_async(lambda: story.looked_again >= 3)
        assert story.master.asked == []
        following.master_told(MASTER, address)
        await until_async(story.is_copied)

    story.play(act, is_told=False)


def test_a_configured_address_wins_and_needs_no_name_server(story: Story) -> None:
    story.master.put(2)

    async def act(following: LogFollowing, address: str) -> None:
        object.__setattr__(story.slave.store.config, "ha_master_address", address)
        await until_async(story.is_copied)
        following.master_told(MASTER, "127.0.0.1:1")
        story.master.put(2)
        await until_async(story.is_copied)

    story.play(act, is_told=False)


def beside(address: str) -> str:
    """The ordinary port of a broker whose HA port this is, unless somebody chose another."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 1}"


@pytest.mark.parametrize("answers", [True, False], ids=["it can be asked", "it cannot be asked"])
def test_a_configured_master_with_another_history_is_not_followed_without_a_name_server(
    story: Story, caplog: pytest.LogCaptureFixture, answers: bool
) -> None:
    """The next record would fit: all of them have one size."""
    end = follow_then_replace(story)
    tried = 0

    async def act(following: LogFollowing, address: str) -> None:
        nonlocal tried
        check = following._check_history

        async def counted(master: str) -> None:
            nonlocal tried
            tried += 1
            assert master == beside(address)
            await check(master)

        following._check_history = counted  # type: ignore[method-assign]
        story.master.addresses = {beside(address)} if answers else set()
        object.__setattr__(story.slave.store.config, "ha_master_address", address)
        await until_async(lambda: tried >= 3)
        assert story.master.reports == []  # it connected, asked, and left
        assert story.slave.store.log_max_offset == end

    story.play(act, is_told=False)
    assert f"at {end}" in caplog.text or f"at offset {end}" in caplog.text
    assert ("got others since" if answers else "set namesrvAddr on both brokers") in caplog.text


def test_a_configured_master_is_asked_at_the_port_below_and_followed(story: Story) -> None:
    story.master.put(3)
    story.play(lambda following, address: until_async(story.is_copied))
    story.master.put(3)

    async def act(following: LogFollowing, address: str) -> None:
        story.master.addresses = {beside(address)}
        object.__setattr__(story.slave.store.config, "ha_master_address", address)
        await until_async(story.is_copied)
        assert len(story.master.asked) == 2 + 1, "an empty slave asks once, and then for its last record too"

    story.play(act, is_told=False)


def test_a_slave_with_name_servers_waits_for_their_answer_before_it_connects(story: Story) -> None:
    story.slave.node.config.namesrv_addr = "10.0.0.9:9876"
    story.master.put(3)

    async def act(following: LogFollowing, address: str) -> None:
        object.__setattr__(story.slave.store.config, "ha_master_address", address)
        looked = story.looked_again
        await until_async(lambda: story.looked_again > looked + 3)
        assert story.master.connections == []
        following.master_told(MASTER, address)
        await until_async(story.is_copied)
        assert story.master.asked, "the master was asked for its history first"

    story.play(act, is_told=False)


def test_name_servers_that_do_not_answer_are_not_waited_for_without_end(story: Story) -> None:
    story.slave.node.config.namesrv_addr = "10.0.0.9:9876"
    story.master.put(3)

    async def act(following: LogFollowing, address: str) -> None:
        story.master.addresses = {beside(address)}
        object.__setattr__(story.slave.store.config, "ha_master_address", address)
        await until_async(lambda: story.looked_again > 3)
        assert story.master.connections == []
        story.slave.clock.advance(log_following.FIND_MS)
        await until_async(story.is_copied)

    story.play(act, is_told=False)


def test_under_sync_flush_only_what_is_synced_is_reported(story: Story) -> None:
    story.slave.close()
    story.slave = story.new_slave(flush_disk_type="SYNC_FLUSH")
    story.master.put(30)
    unsynced: list[tuple[int, int]] = []

    async def act(following: LogFollowing, address: str) -> None:
        send = following._send

        def watched(report: bytes) -> None:
            if report:
                unsynced.append((REPORT.unpack(report)[0], story.slave.store.durable_offset))
            send(report)

        following._send = watched  # type: ignore[method-assign]
        await until_async(story.is_copied)
        await until_async(lambda: story.master.reports[-1] == story.master.store.log_max_offset)

    story.play(act)
    assert unsynced
    assert all(reported <= durable for reported, durable in unsynced)


def test_a_slave_that_is_ahead_takes_nothing_and_says_so_once_with_both_offsets(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    story.master.put(3)
    story.play(lambda following, address: until_async(story.is_copied))
    end = story.slave.store.log_max_offset
    story.master.bench.close()
    story.master = Master(story.path / "another")
    story.master.put(1)
    short = story.master.store.log_max_offset
    caplog.set_level(logging.INFO, "contrailmq.broker")

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(lambda: len(story.master.asked) > 4)
        assert story.master.reports == []
        assert story.slave.store.log_max_offset == end
        assert len(story.slave.store.get("T", 0, 0)) == 3, "it keeps serving reads"

    story.play(act)
    lines = [record.message for record in caplog.records if "does not follow" in record.message]
    assert len(lines) == 1
    assert f"ends at offset {end}" in lines[0]
    assert f"at {short}" in lines[0]
    assert "store truncate" in lines[0]


def test_a_master_that_lost_messages_and_got_as_many_others_is_not_followed(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets alone do not tell: records of one size end at the same places."""
    end = follow_then_replace(story)
    assert story.master.store.log_max_offset >= end

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(lambda: len(story.master.asked) > 6)
        assert story.master.reports == []
        assert story.slave.store.log_max_offset == end

    story.play(act)
    assert "has lost messages that this slave has, and got others since" in caplog.text


def test_a_master_that_comes_back_with_another_history_while_the_slave_connects_is_not_followed(story: Story) -> None:
    """It has the slave's last record when it is asked, loses power, and has got other messages of the same sizes when
    the connection comes."""
    story.master.put(3)
    story.play(lambda following, address: until_async(story.is_copied))
    end = story.slave.store.log_max_offset
    before, after = story.master, Master(story.path / "another")
    for body in b"xyzabc":
        after.put_one(bytes([body]) + bytes(200))

    class Asked:
        now = before

        async def invoke(
            self, address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
        ) -> Command:
            return await self.now.invoke(address, code, ext, body, timeout_s)

    asked = Asked()

    async def connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        asked.now = after
        return await log_following.open_link(host, port)

    async def whole() -> None:
        address = await after.listen()
        following = LogFollowing(story.slave.node, asked, look_again=story.look, connect=connect)
        following.master_told(MASTER, address)
        task = asyncio.ensure_future(following.run())
        try:
            await until_async(lambda: len(after.asked) >= 4 or story.slave.store.log_max_offset > end)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            after.hang_up()
            after.server.close()

    story.slave.run(whole())
    assert story.slave.store.log_max_offset == end
    assert after.reports == []
    after.bench.close()


def close_early(story: Story) -> int:
    """Seed 707: both lost power. The slave had the BLANK at the end of a file, the master lost it and wrote messages in
    its place: the last record is the same, and the slave's log ends inside the master's. Where the BLANK begins."""
    story.master.put(30)
    closed_at = story.master.store.log_max_offset
    story.master.put_one(bytes(12_000))  # the next file is for this one
    same = bytes(story.master.store.read_log(0, closed_at) or b"")
    story.slave.store.replica.append(0, bytes(story.master.store.read_log(0, FILE_BYTES) or b""))
    story.slave.store.dispatch()
    story.master.bench.close()
    story.master = Master(story.path / "another")
    story.master.store.replica.append(0, same)
    story.master.store.dispatch()
    story.master.bench.close()
    story.master = Master(story.path / "another")  # opened again, as after the power cut: it knows its queues' ends
    story.master.put(3)
    story.master.put_one(bytes(12_000))
    assert story.slave.store.log_max_offset == FILE_BYTES < story.master.store.log_max_offset
    return closed_at


def test_a_slave_that_closed_a_file_where_the_master_has_other_messages_now_is_refused(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    closed_at = close_early(story)

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(lambda: len(story.master.asked) >= 6 or story.slave.store.log_max_offset > FILE_BYTES)
        assert story.master.reports == []

    story.play(act)
    assert story.slave.store.log_max_offset == FILE_BYTES
    assert f"offset {closed_at}" in caplog.text


def test_resync_opens_a_file_that_the_slave_closed_early(story: Story) -> None:
    closed_at = close_early(story)
    config, store_config = story.slave.node.config, story.slave.store.config
    object.__setattr__(store_config, "ha_master_address", MASTER.replace("10911", "10912"))
    story.slave.close()
    asyncio.run(resync(config, store_config, story.master, Files()))
    story.slave = story.new_slave()
    assert story.slave.store.log_max_offset == closed_at
    story.play(lambda following, address: until_async(story.is_copied))


def test_a_slave_that_closed_a_file_as_its_master_did_goes_on(story: Story) -> None:
    story.master.put(30)
    story.master.put_one(bytes(12_000))
    story.slave.store.replica.append(0, bytes(story.master.store.read_log(0, FILE_BYTES) or b""))
    story.slave.store.dispatch()
    assert story.slave.store.log_max_offset == FILE_BYTES
    story.play(lambda following, address: until_async(story.is_copied))


def test_a_slave_whose_place_the_master_has_deleted_is_refused(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.master.put(3)
    story.play(lambda following, address: until_async(story.is_copied))
    end = story.slave.store.log_max_offset
    story.master.put(200)
    first = story.master.store._log_files.files[0]
    story.master.store._log_files._remove_first(first, 0)
    begin = story.master.store.log_min_offset
    assert begin > end

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(lambda: len(story.master.asked) > 4)
        assert story.slave.store.log_max_offset == end

    story.play(act)
    assert f"ends at offset {end}" in caplog.text
    assert f"begins at {begin}" in caplog.text


def test_a_master_that_is_away_is_tried_again_and_the_log_has_two_lines(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    story.master.put(3)
    story.master.is_gone = True
    caplog.set_level(logging.INFO, "contrailmq.broker")

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(lambda: story.looked_again >= 3)
        story.master.is_gone = False
        await until_async(story.is_copied)

    story.play(act)
    lines = [record.message for record in caplog.records if "its master's log" in record.message]
    assert len(lines) == 2
    assert lines[0].startswith("slave b does not follow its master's log: ")
    assert "trying again" in lines[0]
    assert lines[1].startswith("slave b follows its master's log: 127.0.0.1:")


def test_a_master_that_is_named_within_seconds_is_no_fault(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "contrailmq.broker")
    story.master.put(2)

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(lambda: story.looked_again >= 3)
        story.slave.clock.advance(log_following.FIND_MS - 1)
        await until_async(lambda: story.looked_again >= 6)
        following.master_told(MASTER, address)
        await until_async(story.is_copied)

    story.play(act, is_told=False)
    assert [record.message for record in caplog.records if "its master's log" in record.message] == []


def test_a_refusal_is_told_although_no_master_was_known_before(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.master.put(3)
    story.play(lambda following, address: until_async(story.is_copied))
    end = story.slave.store.log_max_offset
    story.master.bench.close()
    story.master = Master(story.path / "another")
    story.master.put(1)
    short = story.master.store.log_max_offset

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(lambda: story.looked_again >= 1)
        story.slave.clock.advance(log_following.FIND_MS)
        await until_async(lambda: "no NameServer knows the HA address" in caplog.text)
        following.master_told(MASTER, address)
        await until_async(lambda: len(story.master.asked) > 4)

    story.play(act, is_told=False)
    lines = [record.message for record in caplog.records if "does not follow" in record.message]
    assert len(lines) == 2
    assert f"this slave's log ends at offset {end}, that of master {MASTER} at {short}" in lines[1]
    assert "store truncate" in lines[1]


@pytest.mark.parametrize("told", ["10.0.0.2:76448", "10.0.0.2", "a b:10912"])
def test_a_ha_address_that_cannot_be_dialled_is_refused_with_the_setting_it_comes_from(
    story: Story, caplog: pytest.LogCaptureFixture, told: str
) -> None:
    """A port above 65535 would be dialled modulo 65536."""

    async def act(following: LogFollowing, address: str) -> None:
        following.master_told(MASTER, told)
        await until_async(lambda: "brokerIP2" in caplog.text)
        following.master_told(MASTER, address)
        await until_async(story.is_copied)

    story.master.put(1)
    story.play(act, is_told=False)
    assert f"the NameServers give {told!r} as its HA address" in caplog.text


def test_an_empty_slave_with_files_of_another_size_says_so_once_and_tries_less_and_less(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    """A heartbeat comes before the first block: it does not mean that all is well."""
    caplog.set_level(logging.INFO, "contrailmq.broker")
    story.master.put(3)
    pauses: list[float] = []

    async def other_sizes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(HEAD.pack(FILE_BYTES // 2, 0))
        await writer.drain()
        await asyncio.sleep(0.01)  # a wakeup of its own
        writer.write(HEAD.pack(FILE_BYTES // 2, 4) + b"abcd")
        await reader.read()
        writer.close()

    async def act(following: LogFollowing, address: str) -> None:
        pause = following._pause

        async def noted(seconds: float) -> None:
            pauses.append(seconds)
            await pause(seconds)

        following._pause = noted  # type: ignore[method-assign]
        server = await asyncio.start_server(other_sizes, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        following.master_told(MASTER, f"{host}:{port}")
        await until_async(lambda: len(pauses) >= 6)
        server.close()

    story.play(act, is_told=False)
    lines = [record.message for record in caplog.records if "its master's log" in record.message]
    assert len(lines) == 1
    assert "mappedFileSizeCommitLog" in lines[0]
    assert pauses[-1] == log_following.PAUSE_S_MAX


def test_a_silent_master_is_left_after_the_housekeeping_interval_and_heard_from_meanwhile(story: Story) -> None:
    story.slave.close()
    story.slave = story.new_slave(ha_housekeeping_interval=200, ha_send_heartbeat_interval=20)
    story.master.put(1)

    async def act(following: LogFollowing, address: str) -> None:
        await until_async(story.is_copied)
        story.master.is_silent = True
        end = story.master.store.log_max_offset
        for beats in (2, 3, 4):
            story.slave.clock.advance(25)
            await until_async(lambda: story.master.reports.count(end) >= beats)  # noqa: B023
        story.slave.clock.advance(1000)
        await until_async(lambda: story.master.has_closed >= 1)
        story.master.is_silent = False
        story.master.put(1)
        await until_async(story.is_copied)

    story.play(act)


def test_hostile_bytes_end_the_connection_and_change_nothing(story: Story) -> None:
    story.master.put(3)
    story.play(lambda following, address: until_async(story.is_copied))
    end = story.slave.store.log_max_offset
    heard = 0

    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await reader.readexactly(8)
        answers = [
            HEAD.pack(end, -1),
            HEAD.pack(-5, 10),
            HEAD.pack(end, 2**31 - 1),
            HEAD.pack(end + 1, 4) + b"abcd",
            HEAD.pack(end, 100) + b"\xff" * 100,
            b"\0" * 5,
        ]
        writer.write(answers[heard % len(answers)])
        heard += 1
        if heard % len(answers):
            await reader.read()  # until the slave has hung up
        writer.close()

    async def act(following: LogFollowing, address: str) -> None:
        server = await asyncio.start_server(hostile, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        following.master_told(MASTER, f"{host}:{port}")
        await until_async(lambda: heard >= 12)
        server.close()
        assert story.slave.store.replica.end == story.slave.store.replica.received_end == end

    story.play(act, is_told=False)


def test_an_embedded_store_is_the_same_copy(story: Story) -> None:
    story.master.put(20)
    story.play(lambda following, address: until_async(story.is_copied))
    path, end = story.path / "slave" / "store", story.slave.store.log_max_offset
    story.slave.close()
    with MessageStore(StoreConfig(path)) as promoted:
        assert promoted.log_max_offset == end
        put = promoted.put(Message("T", b"next"))
        assert put.queue_offset == story.master.store.max_offset("T", 0)
    story.slave = story.new_slave()
