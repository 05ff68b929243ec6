"""A slave that is far behind takes the log first, and makes queues and index of it afterwards (log_first.py).

The slave follows a link whose next portion is there whenever it looks, until the script has a pause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from broker.harness import Bench
from broker.test_log_following import FILE_BYTES, HEAD, MASTER, Master
from contrailmq.broker.cluster import log_following
from contrailmq.broker.cluster.log_following import LogFollowing
from contrailmq.broker.cluster.master_link import MasterLink
from contrailmq.broker.state.log_first import LogFirst
from waiting_for import until_async

PORTION_BYTES = 1000  # of the log; several records
MESSAGES = 300
FEW_BYTES = 4 * PORTION_BYTES  # what counts as far behind


class ReadyLink(MasterLink):
    """What the script holds is there at once; at its end nothing comes, or the end of the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.script: deque[bytes] = deque()
        self.seems_ready = False  # also when the script is at its end

    def _give(self) -> None:
        if self.script and not self._filled:
            portion = self.script.popleft()
            self.get_buffer(-1)[: len(portion)] = portion
            self.buffer_updated(len(portion))

    @property
    def has_come(self) -> bool:
        self._give()
        return super().has_come or self.seems_ready

    async def read(self) -> memoryview:
        self._give()
        return await super().read()

    def more(self, portions: list[bytes]) -> None:
        """After a pause."""
        self.script += portions
        self._give()


class Story:
    def __init__(self, path: Path) -> None:
        self.master = Master(path / "master")
        self.master.put(MESSAGES, 100)
        self.end = self.master.store.log_max_offset
        self.slave = self.open_slave(path)
        self.link = ReadyLink()
        self.marks: list[tuple[int, int]] = []  # at each turn of dispatch: the end of the log, and of the queues
        dispatch = self.slave.store.dispatch

        def noted(bytes_max: int) -> int:
            self.marks.append((self.slave.store.replica.end, self.slave.store.dispatched_offset))
            return dispatch(bytes_max)

        self.slave.store.dispatch = noted  # type: ignore[method-assign]

    @staticmethod
    def open_slave(path: Path) -> Bench:
        slave = Bench(
            path / "slave",
            settings={"brokerId": "1"},
            broker_role="SLAVE",
            mapped_file_size_commit_log=FILE_BYTES,
        )
        slave.node.set_address("10.0.0.3", 10_911)
        slave.node.call_soon = slave.loop.call_soon
        return slave

    def portions(self, begin: int, end: int) -> list[bytes]:
        found = []
        while begin < end:
            block = self.master.store.read_log(begin, min(PORTION_BYTES, end - begin))
            assert block is not None
            found.append(HEAD.pack(begin, len(block)) + bytes(block))
            begin += len(block)
        return found

    def play(self, act: Callable[[], Awaitable[None]]) -> None:
        async def connect(host: str, port: int) -> MasterLink:
            return self.link

        async def whole() -> None:
            following = LogFollowing(self.slave.node, self.master, look_again=lambda: None, connect=connect)
            following.master_told(MASTER, "10.0.0.2:10912")
            task = asyncio.ensure_future(following.run())
            try:
                await act()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        self.slave.run(whole())

    def is_copied(self) -> bool:
        ours = self.slave.store
        return ours.dispatched_offset == self.end and ours.queues() == self.master.store.queues()


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    monkeypatch.setattr(log_following, "BEHIND_BYTES", FEW_BYTES)
    made = Story(tmp_path)
    yield made
    made.slave.close()
    made.master.bench.close()


def test_nothing_is_dispatched_before_most_of_the_log_is_there_and_then_all_of_it(story: Story) -> None:
    story.link.script += story.portions(0, story.end)
    story.play(lambda: until_async(story.is_copied))
    log_end, dispatched = story.marks[0]
    assert (dispatched, story.end - log_end <= FEW_BYTES) == (0, True)


def test_while_the_master_pauses_what_came_is_dispatched(story: Story) -> None:
    story.link.script += story.portions(0, story.end)[:10]

    async def act() -> None:
        replica = story.slave.store.replica
        await until_async(lambda: 0 < replica.end == story.slave.store.dispatched_offset and not story.link.script)
        assert story.end - replica.end > FEW_BYTES, "it is far behind all the same"
        story.link.more(story.portions(0, story.end)[10:])
        await until_async(story.is_copied)

    story.play(act)


def test_when_the_connection_ends_on_the_way_what_came_is_dispatched(story: Story) -> None:
    story.link.script += story.portions(0, story.end)[:10]

    async def act() -> None:
        await until_async(lambda: not story.link.script)
        story.link.connection_lost(None)
        replica = story.slave.store.replica
        await until_async(lambda: 0 < replica.end == story.slave.store.dispatched_offset)
        assert story.end - replica.end > FEW_BYTES

    story.play(act)


def test_what_waits_for_dispatch_is_bounded(story: Story) -> None:
    bound = 5 * PORTION_BYTES
    node = story.slave.node
    later = node.log_first._later
    node.log_first = LogFirst(node.store, later, backlog_bytes_max=bound)
    story.link.script += story.portions(0, story.end)
    story.play(lambda: until_async(story.is_copied))
    backlog = max(log_end - dispatched for log_end, dispatched in story.marks)
    assert bound < backlog <= bound + 2 * PORTION_BYTES


def test_half_a_buffer_at_once_says_that_there_is_more(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master's end is known of the moment of the connection alone. The last portion is as large as the others."""
    monkeypatch.setattr(log_following, "BEHIND_BYTES", 1 << 30)
    monkeypatch.setattr(log_following, "BUFFER_BYTES", 2 * HEAD.size)
    story.link.script += story.portions(0, story.end)
    story.play(lambda: until_async(story.is_copied))
    assert story.marks[0] == (story.end, 0)


def test_a_slave_that_keeps_up_dispatches_each_portion(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_following, "BEHIND_BYTES", 1 << 30)
    portions = story.portions(0, story.end)
    story.link.script += portions
    story.play(lambda: until_async(story.is_copied))
    assert max(log_end - dispatched for log_end, dispatched in story.marks) <= 2 * PORTION_BYTES
    assert len(story.marks) >= len(portions)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_slave_that_ends_before_it_dispatched_has_everything_after_its_next_start(
    story: Story, tmp_path: Path, is_killed: bool
) -> None:
    portions = story.portions(0, story.end)
    story.link.script += portions[: len(portions) * 3 // 4]
    story.link.script.append(portions[len(portions) * 3 // 4][: HEAD.size + 1])  # and the begin of a block
    story.link.seems_ready = True

    async def act() -> None:
        await until_async(lambda: not story.link.script)
        assert story.slave.store.dispatched_offset == 0
        story.slave.node.is_accepting = False  # as a server that stops says
        if is_killed:
            story.slave.store.abandon()

    story.play(act)
    story.slave.close()
    story.slave = story.open_slave(tmp_path)
    store = story.slave.store
    assert store.dispatched_offset == store.replica.end > story.end // 2
    (key,) = story.master.store.queues()
    assert MESSAGES // 2 < store.queues()[key][1] < MESSAGES
