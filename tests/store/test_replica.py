"""A slave's log: bytes of a master, cut anywhere, become whole records; nothing else gets in; kills leave a prefix."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from faulty_files import FaultyFiles, Loss
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_store import unpack_golden

from contrailmq.message import Message, SysFlag, encode_properties
from contrailmq.message.codec import Kind, check_record, encode_record
from contrailmq.store import Drive, ManualClock, MessageStore, PutStatus, StoreConfig, StoreView, verify_store
from contrailmq.store.base.errors import StoreClosedError, StoreFullError, StoreReadOnlyError
from contrailmq.store.replication.stream import ReplicationError

FILE_BYTES = 4096
SMALL: dict[str, object] = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 120,
}


def config_at(path: Path, **given: object) -> StoreConfig:
    return StoreConfig(path, **(SMALL | given))


def slave_at(path: Path, files: FaultyFiles | None = None, **given: object) -> MessageStore:
    config = config_at(path, broker_role="SLAVE", **given)
    return MessageStore(config, files=files, clock=ManualClock(), drive=Drive.LOOP)


def log_bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").glob("[0-9]*")))


def written(path: Path, count: int = 40) -> tuple[bytes, list[int]]:
    """A master's log of several files, and the borders in it: ends of records and of files."""
    with MessageStore(config_at(path), clock=ManualClock()) as master:
        for number in range(count):
            body = bytes([65 + number % 26]) * (37 * number % 400)
            assert master.put(Message("T", body, keys=f"k{number}"), number % 2).status is PutStatus.PUT_OK
        end = master.log_max_offset
    log = log_bytes(path)[:end]
    borders = [0]
    while borders[-1] < end:
        limit = borders[-1] - borders[-1] % FILE_BYTES + FILE_BYTES
        verdict = check_record(log, borders[-1], limit=min(limit, end), physical_offset=borders[-1])
        assert verdict.kind in (Kind.WHOLE, Kind.BLANK)
        borders.append(borders[-1] + verdict.size_bytes)
    return log, borders


def feed(slave: MessageStore, log: bytes, cuts: list[int]) -> None:
    """As a master sends it: blocks that end at `cuts` and at the ends of files, from where the slave is."""
    begin = slave.replica.received_end
    ends = sorted({*cuts, *range(FILE_BYTES, len(log), FILE_BYTES), len(log)})
    for end in ends:
        if end > begin:
            slave.replica.append(begin, log[begin:end])
            begin = end


def places(store: MessageStore, key: str) -> list[tuple[int, bytes]]:
    return [(message.physical_offset, message.body) for message in store.query("T", key)]


def assert_copy(master: Path, slave: Path, end: int) -> None:
    assert log_bytes(slave)[:end] == log_bytes(master)[:end]
    with MessageStore(config_at(master)) as ours, MessageStore(config_at(slave)) as theirs:
        assert theirs.queues() == ours.queues()
        assert theirs.log_max_offset == ours.log_max_offset
        for number in range(40):
            assert places(theirs, f"k{number}") == places(ours, f"k{number}")


def test_blocks_that_cross_nothing_give_the_same_files_queues_and_answers(tmp_path: Path) -> None:
    log, _ = written(tmp_path / "master")
    with slave_at(tmp_path / "slave") as slave:
        assert slave.append("T", 0, b"x", b"", tags_code=0, keys=None, unique_key=None).status is (
            PutStatus.SERVICE_NOT_AVAILABLE
        )
        feed(slave, log, [])
        assert (slave.replica.end, slave.replica.received_end) == (len(log), len(log))
        slave.dispatch()
        assert slave.dispatched_offset == len(log)
    assert_copy(tmp_path / "master", tmp_path / "slave", len(log))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_log_cut_anywhere_ends_at_borders_alone(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cuts")
    log, borders = written(path / "master", 20)
    cuts = data.draw(st.lists(st.integers(1, len(log)), max_size=40))
    with slave_at(path / "slave") as slave:
        begin = 0
        for end in sorted({*cuts, *range(FILE_BYTES, len(log), FILE_BYTES), len(log)}):
            before = slave.replica.end
            grown = slave.replica.append(begin, log[begin:end])
            expected = max(border for border in borders if border <= end)
            assert (slave.replica.end, slave.replica.received_end) == (expected, end)
            assert grown == expected - before
            slave.dispatch()
            assert slave.dispatched_offset == expected
            begin = end
    assert_copy(path / "master", path / "slave", len(log))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_byte_at_a_time(flush: str, tmp_path: Path) -> None:
    log, _ = written(tmp_path / "master", 12)
    with slave_at(tmp_path / "slave", flush_disk_type=flush) as slave:
        feed(slave, log, list(range(len(log))))
        assert slave.replica.end == len(log)
        slave.flush()
        assert slave.durable_offset == len(log)
        slave.dispatch()
        assert slave.dispatched_offset == len(log)


@pytest.mark.parametrize("name", ["store-5.5.0-clean", "store-5.5.0-direct", "store-5.5.0-direct-crc"])
def test_every_record_that_apache_wrote_is_taken(name: str, tmp_path: Path) -> None:
    """Long topics, IPv6 hosts, halves, property checksums, empty bodies, files full to 8 spare bytes, a file that is
    nothing but a BLANK."""
    root = unpack_golden(name, tmp_path)
    files = sorted((root / "commitlog").glob("[0-9]*"))
    file_bytes, first = files[0].stat().st_size, int(files[0].name)
    with MessageStore(StoreConfig(root)) as master:
        end, queues = master.log_max_offset, master.queues()
    log = log_bytes(root)[: end - first]
    with MessageStore(
        StoreConfig(tmp_path / "slave", broker_role="SLAVE", mapped_file_size_commit_log=file_bytes), drive=Drive.LOOP
    ) as slave:
        begin = first
        rng = random.Random(7)
        while begin < end:
            stop = min(begin + rng.randint(1, 9000), begin - begin % file_bytes + file_bytes, end)
            slave.replica.append(begin, log[begin - first : stop - first])
            begin = stop
        assert slave.replica.end == end
        slave.dispatch()
        found = slave.queues()
        assert {key: value for key, value in queues.items() if key in found} == found
        assert all(low == high for key, (low, high) in queues.items() if key not in found)
    assert log_bytes(tmp_path / "slave")[: end - first] == log


def test_a_property_that_ends_in_nul_does_not_wait_for_the_next_record(tmp_path: Path) -> None:
    record = encode_record(
        topic="T", body=b"b", properties=b"name\x01value\x00", queue_id=0, queue_offset=0, physical_offset=0,
        store_time_ms=5, born_time_ms=5, born_host=b"\x7f\0\0\1\0\0\0\0", store_host=b"\x7f\0\0\1\0\0\0\0",
    )  # fmt: skip
    with slave_at(tmp_path) as slave:
        assert slave.replica.append(0, record) == len(record)


def test_bytes_for_another_place_are_refused_with_both_offsets(tmp_path: Path) -> None:
    log, borders = written(tmp_path / "master", 3)
    with slave_at(tmp_path / "slave") as slave:
        slave.replica.append(0, log[: borders[1]])
        for at in (0, borders[1] - 1, borders[1] + 1, borders[2]):
            with pytest.raises(ReplicationError, match=f"from offset {at} on, ours goes on at {borders[1]}"):
                slave.replica.append(at, log[at : borders[3]])
        assert slave.replica.append(borders[1], log[borders[1] :]) == len(log) - borders[1]


@pytest.mark.parametrize("at", [5, FILE_BYTES + 1])
def test_an_empty_slave_begins_at_the_begin_of_a_file(at: int, tmp_path: Path) -> None:
    with slave_at(tmp_path) as slave:
        with pytest.raises(ReplicationError, match="mappedFileSizeCommitLog"):
            slave.replica.append(at, b"x")
        assert slave.log_min_offset == -1


def test_a_new_slave_begins_with_the_masters_last_file(tmp_path: Path) -> None:
    log, _ = written(tmp_path / "master")
    begin = len(log) - len(log) % FILE_BYTES
    with slave_at(tmp_path / "slave") as slave:
        slave.replica.append(begin, log[begin:])
        slave.dispatch()
        assert (slave.log_min_offset, slave.log_max_offset) == (begin, len(log))
        low, high = slave.queues()["T", 1]
        assert 0 < low < high == 20
        assert [message.keys for message in slave.get("T", 1, high - 1)] == [["k39"]]


@pytest.mark.parametrize("where", ["magic", "offset", "body", "size"])
def test_a_damaged_record_is_refused_and_all_before_it_stays(where: str, tmp_path: Path) -> None:
    log, borders = written(tmp_path / "master", 6)
    bad = bytearray(log)
    begin = borders[3]
    position = begin + {"size": 0, "magic": 5, "offset": 35, "body": 90}[where]
    bad[position] ^= 0x55
    with slave_at(tmp_path / "slave") as slave:
        with pytest.raises(ReplicationError, match=str(begin)):
            slave.replica.append(0, bytes(bad))
        assert slave.replica.end == slave.replica.received_end == begin
        assert log_bytes(tmp_path / "slave")[begin : begin + 500] == bytes(500), "nothing is left of it"
        assert slave.replica.append(begin, log[begin:]) == len(log) - begin, "sound ones are taken afterwards"


def test_files_of_another_size_are_noticed_before_a_byte_is_lost(tmp_path: Path) -> None:
    log, _ = written(tmp_path / "master")
    for size in (FILE_BYTES // 2, FILE_BYTES * 2):
        with slave_at(tmp_path / f"slave-{size}", mapped_file_size_commit_log=size) as slave:
            with pytest.raises(ReplicationError, match="mappedFileSizeCommitLog"):
                feed(slave, log, list(range(0, len(log), 700)))
            assert slave.replica.end <= FILE_BYTES


def test_a_dropped_connection_leaves_no_half_record_on_the_disk(tmp_path: Path) -> None:
    log, borders = written(tmp_path / "master", 6)
    with slave_at(tmp_path / "slave") as slave:
        slave.replica.append(0, log[: borders[4] + 60])
        slave.replica.drop_unfinished()
        assert slave.replica.received_end == borders[4]
        assert log_bytes(tmp_path / "slave")[borders[4] :].strip(b"\0") == b""
        feed(slave, log, [])
    assert_copy(tmp_path / "master", tmp_path / "slave", len(log))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_slave_killed_after_any_byte_goes_on_behind_its_last_whole_record(flush: str, tmp_path: Path) -> None:
    log, borders = written(tmp_path / "master", 9)
    for cut in range(1, len(log), 97):
        path = tmp_path / f"slave-{cut}"
        slave = slave_at(path, flush_disk_type=flush).open()
        feed(slave, log[:cut], [])
        slave.dispatch()
        slave.abandon()
        with slave_at(path, flush_disk_type=flush) as again:
            recovered = again.replica.end
            last = max(border for border in borders if border <= cut)
            # a BLANK that closes the last file is cut, and sent again
            assert recovered in (last, borders[borders.index(last) - 1])
            feed(again, log, [])
            again.flush()
            again.dispatch()
            assert again.dispatched_offset == len(log)
        assert log_bytes(path)[: len(log)] == log


@pytest.mark.parametrize("loss", list(Loss))
def test_a_power_cut_leaves_a_prefix_that_holds_all_that_was_reported_durable(loss: Loss, tmp_path: Path) -> None:
    log, borders = written(tmp_path / "master", 25)
    rng = random.Random(11)
    (tmp_path / "slave").mkdir()
    files = FaultyFiles(tmp_path / "slave")
    durable: list[tuple[int, int]] = [(0, 0)]
    slave = slave_at(tmp_path / "slave", files, flush_disk_type="SYNC_FLUSH").open()
    begin = 0
    while begin < len(log):
        end = min(begin + rng.randint(1, 900), begin - begin % FILE_BYTES + FILE_BYTES, len(log))
        slave.replica.append(begin, log[begin:end])
        begin = end
        if rng.random() < 0.5:
            slave.flush()
            slave.dispatch()
            durable.append((files.journal.event, slave.durable_offset))
    slave.abandon()
    for number in range(12):
        at = rng.randint(durable[1][0], files.journal.event)
        image = tmp_path / f"image-{loss.name}-{number}"
        image.mkdir()
        files.journal.image(at, image, rng, loss)
        promised = max(offset for event, offset in durable if event <= at)
        with slave_at(image) as again:
            assert again.replica.end in borders
            # The BLANK of a last file is cut at each start.
            assert again.replica.end >= max(border for border in borders if border <= promised and border % FILE_BYTES)
            assert log_bytes(image)[: again.replica.end] == log[: again.replica.end]
            feed(again, log, [])
            again.dispatch()
            assert again.dispatched_offset == len(log)
        with StoreView(config_at(image)) as view:
            assert verify_store(view).findings == []


def test_a_slave_started_as_a_master_goes_on_with_the_masters_offsets_and_times(tmp_path: Path) -> None:
    clock = ManualClock()
    clock.advance(3_600_000)  # the master's clock is an hour ahead of the slave's
    with MessageStore(config_at(tmp_path / "master"), clock=clock, drive=Drive.LOOP) as master:
        half = {"tags_code": 0, "keys": None, "unique_key": None, "sys_flag": int(SysFlag.TRANSACTION_PREPARED)}
        put = {"tags_code": 0, "keys": "k", "unique_key": None}
        properties = encode_properties({"KEYS": "k"})
        first = master.append("T", 0, b"one", properties, **put)
        master.append("T", 0, b"half", properties, **half)
        last = master.append("T", 0, b"two", properties, **put)
        log = master.read_log(0, FILE_BYTES)
        assert log is not None
        data = bytes(log)
        log.release()
    with slave_at(tmp_path / "slave") as slave:
        slave.replica.append(0, data)
        slave.dispatch()
        assert slave.replica.last_record_offset == last.physical_offset
    with MessageStore(config_at(tmp_path / "slave"), clock=ManualClock(), drive=Drive.LOOP) as promoted:
        third = promoted.append("T", 0, b"three", properties, **put)
        assert (first.queue_offset, last.queue_offset, third.queue_offset) == (0, 1, 2)
        assert third.store_time_ms >= last.store_time_ms
        promoted.dispatch()
        assert [m.body for m in promoted.query("T", "k")] == [b"three", b"two", b"half", b"one"]


def test_a_full_disk_stops_the_copy_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    log, _ = written(tmp_path / "master")
    files = FaultyFiles(tmp_path / "slave")
    full = OSError(errno.ENOSPC, "no space")
    with slave_at(tmp_path / "slave", files) as slave:
        feed(slave, log[:FILE_BYTES], [])
        files.fault = lambda operation, path, count: full if operation == "allocate" else None
        with pytest.raises(StoreFullError):
            feed(slave, log, [])
        end = slave.replica.end
        assert end % FILE_BYTES == 0
        files.fault = lambda *_: None
        feed(slave, log, [])
        assert slave.replica.end == len(log)
    assert_copy(tmp_path / "master", tmp_path / "slave", len(log))


def test_after_a_failed_sync_nothing_more_is_taken(tmp_path: Path) -> None:
    log, borders = written(tmp_path / "master", 6)
    files = FaultyFiles(tmp_path / "slave")
    slave = slave_at(tmp_path / "slave", files, flush_disk_type="SYNC_FLUSH").open()
    slave.replica.append(0, log[: borders[2]])
    files.fault = lambda operation, path, count: OSError(errno.EIO, "io") if operation == "sync" else None
    with pytest.raises(StoreReadOnlyError):
        slave.flush()
    files.fault = lambda *_: None
    with pytest.raises(StoreReadOnlyError):
        slave.replica.append(borders[2], log[borders[2] :])
    assert slave.durable_offset == 0
    slave.close()
    with pytest.raises(StoreClosedError):
        slave.replica.append(borders[2], log[borders[2] :])


@pytest.mark.parametrize("loss", list(Loss))
def test_a_slave_that_began_empty_has_no_hole_whenever_it_dies(loss: Loss, tmp_path: Path) -> None:
    """The file that was made for offset 0 stayed beside the master's newest one."""
    log, _ = written(tmp_path / "master")
    begin = len(log) - len(log) % FILE_BYTES
    assert begin >= 2 * FILE_BYTES
    (tmp_path / "slave").mkdir()
    files = FaultyFiles(tmp_path / "slave")
    slave = slave_at(tmp_path / "slave", files).open()
    opened = files.journal.event
    slave.replica.append(begin, log[begin:])
    slave.flush()
    slave.abandon()
    rng = random.Random(5)
    for at in range(opened, files.journal.event + 1):
        image = tmp_path / f"image-{at}"
        image.mkdir()
        files.journal.image(at, image, rng, loss)
        with slave_at(image) as again:
            assert again.log_min_offset in (-1, begin)
            assert again.recovery.holes == ()
            slave_begin = max(again.replica.end, begin)
            again.replica.append(slave_begin, log[slave_begin:])
            again.dispatch()
        with StoreView(config_at(image)) as view:
            assert verify_store(view).findings == []
            assert [file.base for file in view.log_files] == [begin]


@pytest.mark.parametrize("unused", [1, 2])
def test_files_of_zeros_that_an_older_kill_left_before_a_gap_are_removed(unused: int, tmp_path: Path) -> None:
    log, _ = written(tmp_path / "master", 60)
    begin = len(log) - len(log) % FILE_BYTES
    assert begin > unused * FILE_BYTES
    with slave_at(tmp_path / "slave") as slave:
        slave.replica.append(begin, log[begin:])
        slave.dispatch()
        queues = slave.queues()
    for number in range(unused):
        (tmp_path / "slave" / "commitlog" / f"{number * FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    with MessageStore(config_at(tmp_path / "slave"), clock=ManualClock()) as as_it_was:
        assert as_it_was.log_min_offset == 0, "a master's file is never removed for what it does not hold"
    with slave_at(tmp_path / "slave") as again:
        assert (again.log_min_offset, again.log_max_offset, again.queues()) == (begin, len(log), queues)
        assert again.recovery.holes == ()
    with StoreView(config_at(tmp_path / "slave")) as view:
        assert verify_store(view).findings == []


def test_a_file_with_one_byte_is_never_taken_for_an_unused_one(tmp_path: Path) -> None:
    log, _ = written(tmp_path / "master")
    begin = len(log) - len(log) % FILE_BYTES
    with slave_at(tmp_path / "slave") as slave:
        slave.replica.append(begin, log[begin:])
    first = tmp_path / "slave" / "commitlog" / f"{0:020d}"
    first.write_bytes(bytes(FILE_BYTES - 1) + b"\x01")
    with slave_at(tmp_path / "slave"):
        assert first.exists()


def test_a_slave_killed_before_its_first_byte_still_begins_where_its_master_says(tmp_path: Path) -> None:
    log, _ = written(tmp_path / "master")
    begin = len(log) - len(log) % FILE_BYTES
    (tmp_path / "slave" / "commitlog").mkdir(parents=True)
    (tmp_path / "slave" / "commitlog" / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    with slave_at(tmp_path / "slave") as slave:
        slave.replica.append(begin, log[begin:])
        assert (slave.log_min_offset, slave.log_max_offset) == (begin, len(log))


@pytest.mark.parametrize("step_bytes", [FILE_BYTES, 300, 1])
@pytest.mark.parametrize("batch", [False, True], ids=["ordinary", "batch queue"])
def test_a_topic_that_was_deleted_and_made_again_begins_again_at_the_slave(
    tmp_path: Path, step_bytes: int, batch: bool
) -> None:
    """Its new messages have the offsets of the old ones: they were taken for messages that the queue has already."""
    batch_topics = frozenset({"T"} if batch else ())
    lives = [[b"first-%d" % number for number in range(7)], [b"second-%d" % number for number in range(3)], [b"third"]]
    with MessageStore(config_at(tmp_path / "master"), clock=ManualClock(), batch_topics=batch_topics) as master:
        for life in lives:
            master.delete_topics(["T"])
            for body in life:
                assert master.put(Message("T", body, keys=body.decode()), 0).status is PutStatus.PUT_OK
                assert master.put(Message("Other", body), 0).status is PutStatus.PUT_OK
        log = bytes(master.read_log(0, master.log_max_offset) or b"")
    slave = slave_at(tmp_path / "slave")
    slave.set_batch_topics(batch_topics)
    with slave:
        for end in range(step_bytes, len(log) + step_bytes, step_bytes):
            feed(slave, log[:end], [])
            slave.dispatch()
        assert bodies(slave, "T") == lives[-1]
        assert bodies(slave, "Other") == [body for life in lives for body in life]
        assert [message.body for message in slave.query("T", "third")] == [b"third"]
    with MessageStore(config_at(tmp_path / "slave"), clock=ManualClock(), batch_topics=batch_topics) as again:
        assert bodies(again, "T") == lives[-1]


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    """All that a reader finds from the queue's begin on."""
    found: list[bytes] = []
    offset = store.min_offset(topic, 0)
    while offset < store.max_offset(topic, 0):
        result = store.get(topic, 0, offset, 32)
        found += [message.body for message in result]
        assert result.next_offset > offset
        offset = result.next_offset
    return found
