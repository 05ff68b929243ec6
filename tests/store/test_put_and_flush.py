"""What a put leaves behind when it returns: a message that can be read, durable as configured, for few syncs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from interrupts import interrupted

from contrailmq.message import Message, encode_host
from contrailmq.message.codec import BatchPart, encode_batch
from contrailmq.store import Boundary, Drive, Files, ManualClock, MessageStore, PutStatus, StoreConfig
from contrailmq.store.base.errors import StoreClosedError
from contrailmq.store.base.status import Arrival
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.putting import LAG_MAX

BODY = bytes(100)


def config_at(path: Path, **settings: object) -> StoreConfig:
    return StoreConfig(path, mapped_file_size_commit_log=1 << 20, max_hash_slot_num=50, max_index_num=1200, **settings)


READS: dict[str, Callable[[MessageStore, int], object]] = {
    "get": lambda store, offset: len(store.get("T", 0, offset, 1)),
    "get_slices": lambda store, offset: store.get_slices("T", 0, offset, 1).count,
    "get_slices_cold": lambda store, offset: store.get_slices_cold("T", 0, offset, 1).count,
    "query": lambda store, offset: len(store.query("T", f"k{offset}")),
    "max_offset": lambda store, offset: store.max_offset("T", 0) - offset,
    "queues": lambda store, offset: store.queues()["T", 0][1] - offset,
    "read_units": lambda store, offset: len(store.read_units("T", 0, offset, 1)),
    "store_time_at": lambda store, offset: store.store_time_at("T", 0, offset) == ManualClock().now_ms() + offset,
    "offset_at": lambda store, offset: store.offset_at("T", 0, 2**62, Boundary.UPPER) + 1 - offset,
    "dispatched_offset": lambda store, offset: store.dispatched_offset == store.log_max_offset,
    "delete_topics": lambda store, offset: store.delete_topics(["T"]) if offset == LAG_MAX else 1,
}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("read", READS)
def test_a_message_can_be_read_in_every_way_as_soon_as_its_put_returns(read: str, flush: str, tmp_path: Path) -> None:
    clock = ManualClock()
    with MessageStore(config_at(tmp_path, flush_disk_type=flush), clock=clock) as store:
        for number in range(LAG_MAX + 1):
            assert store.put(Message("T", BODY, keys=f"k{number}")).queue_offset == number
            assert READS[read](store, number) == 1
            clock.advance(1)


def test_whoever_listens_hears_of_a_message_before_its_put_returns(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path, flush_disk_type="SYNC_FLUSH")) as store:
        store.put(Message("T", BODY))
        heard: list[int] = []
        store.add_arrival_listener(lambda arrival: heard.append(arrival.queue_offset))
        store.put(Message("T", BODY))
        assert heard == [0, 1]
        store.put_many([Message("T", BODY)] * 3)
        assert heard == [0, 1, 2, 3, 4]


def test_whoever_listens_to_some_queues_hears_of_their_messages_alone_and_may_change_them_meanwhile(
    tmp_path: Path,
) -> None:
    queues, heard = {("T", 0)}, list[tuple[str, int]]()

    def listen(arrival: Arrival) -> None:
        heard.append((arrival.topic, arrival.queue_offset))
        if heard == [("T", 0), ("T", 1)]:
            queues.clear()
            queues.add(("V", 0))

    with MessageStore(config_at(tmp_path)) as store:
        store.add_arrival_listener(listen, queues=queues)
        for topic, count in (("U", 2), ("T", 3), ("U", 1), ("V", 2), ("T", 1)):
            store.append_batch(topic, 0, encode_batch([BatchPart(0, BODY, b"")] * count))
        assert store.dispatch() == 9
    assert heard == [("T", 0), ("T", 1), ("V", 0), ("V", 1)]


def test_what_nobody_reads_is_dispatched_and_written_by_the_next_thorough_round(tmp_path: Path) -> None:
    clock = ManualClock()
    with MessageStore(config_at(tmp_path), clock=clock) as store:
        put = store.put(Message("T", BODY))
        clock.advance(61_000)
        store.tick()
        unit = (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").read_bytes()[:12]
        assert unit == put.physical_offset.to_bytes(8, "big") + put.size_bytes.to_bytes(4, "big")


def test_a_store_that_was_let_go_dispatches_nothing_more(tmp_path: Path) -> None:
    store = MessageStore(config_at(tmp_path)).open()
    store.put(Message("T", BODY))
    store.abandon()
    with pytest.raises(StoreClosedError):
        store.max_offset("T", 0)
    with pytest.raises(StoreClosedError):
        store.get("T", 0, 0)
    assert not (tmp_path / "consumequeue").exists()
    with MessageStore(config_at(tmp_path)) as again:
        assert again.max_offset("T", 0) == 1


def test_a_loop_decides_itself_when_to_dispatch(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path), drive=Drive.LOOP) as store:
        store.append("T", 0, BODY, b"", tags_code=0, keys=None, unique_key=None)
        assert store.max_offset("T", 0) == 0
        store.dispatch()
        assert store.max_offset("T", 0) == 1


class SyncsOfTheLog(Files):
    """Counts the syncs of writers; holds the first one up until `writers` others have written."""

    def __init__(self, writers: int) -> None:
        super().__init__()
        self.armed = False
        self.syncs = 0
        self._writers = writers
        self._all_wrote = threading.Event()

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        super().pwrite(descriptor, data, position)
        if self.armed and self.syncs and _is_writer():
            self._writers -= 1
            if not self._writers:
                self._all_wrote.set()

    def sync(self, descriptor: int) -> None:
        if self.armed and _is_writer():
            self.syncs += 1
            if self.syncs == 1:
                assert self._all_wrote.wait(120)
        super().sync(descriptor)


def _is_writer() -> bool:
    return threading.current_thread().name.startswith("writer")


def test_writers_that_come_while_a_flush_runs_share_the_next_one(tmp_path: Path) -> None:
    others = 63
    files = SyncsOfTheLog(others)
    settings = config_at(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=600_000)
    with MessageStore(settings, files=files) as store:
        store.put(Message("T", BODY))
        files.armed = True
        ends: list[bool] = []

        def write() -> None:
            put = store.put(Message("T", BODY))
            ends.append(store.durable_offset >= put.physical_offset + put.size_bytes)

        writers = [threading.Thread(target=write, name=f"writer {n}") for n in range(others + 1)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        files.armed = False
        assert ends == [True] * (others + 1)
        assert files.syncs == 2


@pytest.mark.parametrize("pool", [False, True])
def test_a_store_goes_on_after_interrupts_in_the_middle_of_puts(pool: bool, tmp_path: Path) -> None:
    """Ctrl-C at random moments of puts that wait for their flush: another thread's put goes through after each."""
    settings, interrupts = config_at(tmp_path, flush_disk_type="SYNC_FLUSH", transient_store_pool_enable=pool), 0
    store = MessageStore(settings).open()
    for _ in interrupted(lambda: store.put(Message("T", BODY)), rounds=300, longest_s=1e-3, seed=7):
        interrupts += 1
        other = threading.Thread(target=store.put, args=(Message("U", BODY),), daemon=True)
        other.start()
        other.join(120)
        assert not other.is_alive()  # a close would wait as well: no `with` around this
    assert store.max_offset("U", 0) == interrupts == 300
    store.close()


def put_batch(store: MessageStore, body: bytes) -> None:
    store.append_batch("T", 0, encode_batch([BatchPart(0, body, b""), BatchPart(0, body + b" too", b"")]))


def put_odd(store: MessageStore, body: bytes) -> None:
    host = encode_host("::1", 1)
    store.append("T", 0, body, b"", tags_code=0, keys=None, unique_key=None, born_host=host)


def put_light(store: MessageStore, body: bytes) -> None:
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%q\x02"
    store.append("T", 0, body, properties, tags_code=0, keys=None, unique_key=None)


@pytest.mark.parametrize(
    ("put", "queue", "expected"),
    [
        (put_batch, "T", [b"one", b"one too", b"two", b"two too"]),
        (put_odd, "T", [b"one", b"two"]),
        (put_light, "%LMQ%q", [b"one", b"two"]),
    ],
)
def test_an_interrupt_behind_a_write_repeats_no_queue_offset(
    put: Callable[[MessageStore, bytes], None], queue: str, expected: list[bytes], tmp_path: Path
) -> None:
    """The pages ahead are asked for as soon as a record is written: there the interrupt comes."""

    def interrupt(file: MappedFile, position: int) -> int:
        raise KeyboardInterrupt

    with MessageStore(config_at(tmp_path, enable_lmq=True, enable_multi_dispatch=True)) as store:
        store.put(Message("U", b"opens the file"))
        log = store._log
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log._allocator, "prefault_ahead", interrupt)
            log._prefault_at = 0
            with pytest.raises(KeyboardInterrupt):
                put(store, b"one")
        put(store, b"two")
        assert [message.body for message in store.get(queue, 0, 0)] == expected


def mixed_messages() -> list[Message]:
    """New queues in between, odd topics, one that does not fit, more than one go and more than one file."""
    messages = []
    for number in range(400):
        topic = ("T", "U", "%RETRY%" + "g" * 140)[0 if number % 50 else number // 50 % 3]
        body = bytes([number % 251]) * (number * 37 % 9_000)
        flag = 2**31 if number == 77 else number
        message = Message(topic, body, tags=("A", None)[number % 2], keys=f"k{number} all", flag=flag)
        message.properties["UNIQ_KEY"] = f"7F000001{number:024X}"
        messages.append(message)
    messages.insert(200, Message("T", bytes(2 << 20)))  # larger than a file
    messages[200].properties["UNIQ_KEY"] = "too large"
    return messages


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"flush_disk_type": "SYNC_FLUSH"},
        {"transient_store_pool_enable": True, "transient_store_pool_size": 3},
        {"enabled_append_prop_crc": True},
        {"store_host_address": "[::1]:10911"},
    ],
)
def test_many_at_once_are_stored_as_one_by_one(settings: dict[str, object], tmp_path: Path) -> None:
    logs, results, found = [], [], []
    for way in ("one by one", "at once"):
        with MessageStore(config_at(tmp_path / way, **settings), clock=ManualClock()) as store:
            messages = mixed_messages()
            if way == "at once":
                results.append(store.put_many(messages, queue_id=3))
            else:
                results.append([store.put(message, queue_id=3) for message in messages])
            store.flush()  # out of the write buffers as well
            found.append((store.queues(), [put.physical_offset for put in store.query("T", "all", 64)]))
        logs.append([file.read_bytes() for file in sorted((tmp_path / way / "commitlog").iterdir())])
    assert results[0] == results[1]
    assert [put.status for put in results[0]].count(PutStatus.PUT_OK) == 399
    assert found[0] == found[1]
    assert len(found[0][1]) == 64
    assert logs[0] == logs[1]


def test_a_queue_that_cannot_be_is_refused_each_time_and_costs_no_offset(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        for _ in range(2):
            results = store.put_many([Message("T", BODY)] * 3, queue_id=2**31)
            assert [result.status for result in results] == [PutStatus.MESSAGE_ILLEGAL] * 3
        assert store.put_many([Message("T", BODY)] * 3)[2].queue_offset == 2
        assert store.log_max_offset == 3 * store.put(Message("T", BODY)).size_bytes


@pytest.mark.parametrize("read", ["query", "get", "get_slices", "max_offset", "queues"])
def test_a_read_waits_for_what_another_thread_is_dispatching(read: str, tmp_path: Path) -> None:
    """Housekeeping, a flush or a commit may have begun with the message that this thread has just put."""
    found: list[object] = []
    with MessageStore(config_at(tmp_path)) as store:
        reader = threading.Thread(target=lambda: found.append(READS[read](store, 0)))

        def while_dispatching(_: Arrival) -> None:
            reader.start()
            reader.join(0.1)  # it ends at once if it does not wait

        store.add_dispatcher(while_dispatching)
        store.put(Message("T", BODY, keys="k0"))
        reader.join()
    assert found == [1]


def test_whoever_listens_may_read_the_store_and_sees_what_is_in_so_far(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with MessageStore(config_at(tmp_path)) as store:
        store.add_dispatcher(lambda arrival: seen.append((arrival.queue_offset, store.max_offset("T", 0))))
        store.add_arrival_listener(lambda arrival: seen.append((arrival.queue_offset, store.max_offset("T", 0))))
        store.put_many([Message("T", BODY), Message("T", BODY)])
    assert seen == [(0, 0), (1, 1), (0, 2), (1, 2)]
