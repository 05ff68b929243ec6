"""Every way into the log writes what the rules say, whatever comes before and after it.

`Golden` is the log by its rules: each record as the reference encoder makes it, at the place and with the offsets that
it has to have, file after file. The same messages go into a store, by every way that there is, in a generated order.
Then the bytes of the log, what dispatch was told, the units of the queues and the counts are compared.
"""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from java_hashes import hashes_by_definition

from contrailmq.message import (
    Message,
    MessageError,
    SysFlag,
    decode_properties,
    encode_host,
    encode_properties,
    tags_code,
)
from contrailmq.message.batch import encode_batch
from contrailmq.store import Drive, Files, ManualClock, MessageStore, PutStatus, StoreConfig, encode_record
from contrailmq.store.base.errors import StoreError
from contrailmq.store.base.status import Copy

EXAMPLES = 400 if os.environ.get("CONTRAILMQ_LONG") else 10
FILE_BYTES = 48 * 1024
BODY_BYTES_MAX = 20_000
PROPERTIES_BYTES_MAX = 32_767
RECORD_BYTES_MAX = FILE_BYTES - 8
HOST, HOST_V6 = encode_host("10.0.0.7", 4711), encode_host("2001:db8::1", 4711)
LONG_TOPIC = "%RETRY%" + "x" * 130
BATCH_TOPIC = "Inner"
NO_QUEUE = (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK)
OK, NO_FILE = PutStatus.PUT_OK, PutStatus.CREATE_MAPPED_FILE_FAILED
MAGICS = (struct.pack(">I", 0xDAA320A7), struct.pack(">I", 0xDAA320AB))


class Disk(Files):
    """Waits for nothing. While `takes_no_records`, writing one is an error; files can be made."""

    takes_no_records = False

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.takes_no_records and bytes(data[4:8]) in MAGICS:
            raise OSError(errno.EIO, "Input/output error")
        super().pwrite(descriptor, data, position)


@dataclass(frozen=True)
class Sent:
    """A message as its sender made it."""

    topic: str
    body: bytes
    properties: dict[str, str]
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_time_ms: int = 77
    born_host: bytes = HOST
    store_host: bytes = HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @property
    def encoded(self) -> bytes:
        """Also where that is too long for a record."""
        return "".join(f"{name}\x01{value}\x02" for name, value in self.properties.items()).encode()


@dataclass
class Golden:
    """The log by its rules."""

    with_crc: bool = False
    with_light_queues: bool = False
    time_ms: int = 0
    files: list[bytearray] = field(default_factory=lambda: [bytearray()])
    next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    units: dict[tuple[str, int], list[tuple[int, int, int, int]]] = field(default_factory=dict)
    facts: list[tuple[Any, ...]] = field(default_factory=list)
    put_count: int = 0
    put_bytes: int = 0

    def refusal(self, sent: Sent) -> PutStatus:
        """In RocketMQ's order; OK when none."""
        properties_bytes = len(sent.encoded)
        if properties_bytes > PROPERTIES_BYTES_MAX:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        if len(sent.body) > BODY_BYTES_MAX or 91 + len(sent.topic) + len(sent.body) + properties_bytes > FILE_BYTES - 8:
            return PutStatus.MESSAGE_ILLEGAL
        try:
            size = len(self._encode(sent, self._stored_properties(sent), 0, 0))
        except MessageError:  # what the log adds is too much
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        return PutStatus.MESSAGE_ILLEGAL if size > RECORD_BYTES_MAX else OK

    def add(self, *together: Sent, is_lost: bool = False) -> list[tuple[int, int, int]]:
        """Records that lie in one file: (physical offset, size, queue offset) of each. `is_lost`: the disk refuses."""
        sizes = [len(self._encode(sent, self._stored_properties(sent), 0, 0)) for sent in together]
        if len(self.files[-1]) + sum(sizes) + 8 > FILE_BYTES:
            self.begin_file()
        return [] if is_lost else [self._add(sent) for sent in together]

    def begin_file(self) -> None:
        rest = FILE_BYTES - len(self.files[-1])
        self.files[-1] += struct.pack(">iI", rest, 0xCBD43194).ljust(rest, b"\0")
        self.files.append(bytearray())

    def _add(self, sent: Sent) -> tuple[int, int, int]:
        key = (sent.topic, sent.queue_id)
        is_queued = sent.sys_flag & SysFlag.TRANSACTION_MASK not in NO_QUEUE
        queue_offset = self.next_offsets.get(key, 0) if is_queued else 0
        properties = self._stored_properties(sent)
        offset = (len(self.files) - 1) * FILE_BYTES + len(self.files[-1])
        record = self._encode(sent, properties, queue_offset, offset)
        known = decode_properties(properties)
        code = tags_code(known.get("TAGS"))
        count = int(known["INNER_NUM"]) if sent.sys_flag & SysFlag.INNER_BATCH else 1
        self.files[-1] += record
        self.put_count += count
        self.put_bytes += len(record)
        if is_queued:
            self.next_offsets[key] = queue_offset + count
            self.units.setdefault(key, []).append((queue_offset, offset, len(record), code))
            for name in self._light_names(sent):
                light = self.next_offsets.get((name, 0), 0)
                self.next_offsets[name, 0] = light + 1
                self.units.setdefault((name, 0), []).append((light, offset, len(record), code))
        hashes = hashes_by_definition(sent.topic, known)
        fact = (key, offset, len(record), code, self.time_ms, queue_offset, hashes, sent.sys_flag, properties)
        self.facts.append(fact)
        return offset, len(record), queue_offset

    def _light_names(self, sent: Sent) -> list[str]:
        names = sent.properties.get("INNER_MULTI_DISPATCH", "") if self.with_light_queues else ""
        return names.split(",") if names and not sent.topic.startswith("%RETRY%") else []

    def _stored_properties(self, sent: Sent) -> bytes:
        """With the offsets that the log adds; then without WAIT, which RocketMQ drops when it writes them anew."""
        added = {}
        if sent.sys_flag & SysFlag.INNER_BATCH:
            added["INNER_BASE"] = str(self.next_offsets.get((sent.topic, sent.queue_id), 0))
        if names := self._light_names(sent):
            added["INNER_MULTI_QUEUE_OFFSET"] = ",".join(str(self.next_offsets.get((name, 0), 0)) for name in names)
        if not added:
            return sent.encoded
        return encode_properties({name: value for name, value in sent.properties.items() if name != "WAIT"} | added)

    def _encode(self, sent: Sent, properties: bytes, queue_offset: int, offset: int) -> bytes:
        return encode_record(
            sent.topic, sent.body, properties, queue_id=sent.queue_id, queue_offset=queue_offset,
            physical_offset=offset, born_host=sent.born_host, store_host=sent.store_host,
            born_time_ms=sent.born_time_ms, store_time_ms=self.time_ms, flag=sent.flag, sys_flag=sent.sys_flag,
            reconsume_times=sent.reconsume_times, prepared_transaction_offset=sent.prepared_transaction_offset,
            with_record_crc=self.with_crc,
        )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- generating

short_bodies = st.integers(0, 300).map(lambda size: bytes(index % 251 for index in range(size)))
bodies = short_bodies | st.sampled_from([5_000, BODY_BYTES_MAX - 1, BODY_BYTES_MAX, BODY_BYTES_MAX + 1]).map(bytes)
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "XTAGS", "INNER", "name"])
values = st.sampled_from(["v", "one two", "7F0000010B1A18B4AAC2000000000001", "é", "TAGS"])
short_properties = st.dictionaries(names, values, max_size=4)
long_properties = st.sampled_from(
    [PROPERTIES_BYTES_MAX + difference for difference in (-40, -21, -20, -19, -1, 0, 1, 5000)]
).map(lambda size: {"TAGS": "t", "filler": "f" * (size - len("TAGS.t.filler..  "))})
properties = st.one_of(short_properties, short_properties, short_properties, long_properties)
topics = st.sampled_from(["T", "T", "U", LONG_TOPIC])
queue_ids = st.integers(0, 1)
hosts = st.sampled_from([HOST, HOST, HOST, HOST_V6])


@dataclass(frozen=True)
class Step:
    """Some messages, the way that they take, and the time that passes before."""

    way: str
    sent: tuple[Sent, ...]
    passes_ms: int
    ends_beyond: int | None  # the body of the first is cut or filled to end here, from where its file must end
    is_lost: bool  # the disk refuses to write them, where it is asked


def sents(way: str) -> st.SearchStrategy[tuple[Sent, ...]]:
    if way == "inner":
        counts = st.integers(1, 40).map(lambda count: {"INNER_NUM": str(count), "WAIT": "true", "TAGS": "t"})
        flags = st.just(int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP))
        return st.tuples(st.builds(Sent, st.just(BATCH_TOPIC), bodies, counts, queue_ids, sys_flag=flags))
    if way in ("single", "light"):
        given_properties = properties
        if way == "light":
            lists = st.sampled_from(["%LMQ%a", "%LMQ%b,%LMQ%a"])
            given_properties = lists.map(lambda listed: {"INNER_MULTI_DISPATCH": listed, "TAGS": "t", "WAIT": "true"})
        kinds = st.sampled_from([0, 0, SysFlag.COMPRESSED, SysFlag.TRANSACTION_COMMIT, *NO_QUEUE]).map(int)
        return st.tuples(
            st.builds(
                Sent, topics, bodies, given_properties, queue_ids, flag=st.integers(-5, 5),
                sys_flag=kinds if way == "single" else st.just(0), born_host=hosts, store_host=hosts,
                reconsume_times=st.integers(0, 3), prepared_transaction_offset=st.integers(0, 9),
            )
        )  # fmt: skip
    if way == "batch":
        parts = st.lists(st.tuples(short_bodies | bodies, properties, st.integers(0, 3)), min_size=1, max_size=8)
        return st.builds(
            lambda parts, topic, queue_id, host: tuple(
                Sent(topic, body, known, queue_id, flag=flag, born_host=host) for body, known, flag in parts
            ),
            parts, topics, queue_ids, hosts,
        )  # fmt: skip
    many = st.lists(st.builds(Sent, topics, bodies, properties, st.just(1)), min_size=1, max_size=8)
    return many.map(tuple)


def steps(ways: Sequence[str]) -> st.SearchStrategy[list[Step]]:
    one = st.sampled_from(ways).flatmap(
        lambda way: st.builds(
            Step,
            st.just(way),
            sents(way),
            st.integers(0, 3),
            st.none() | st.sampled_from([-1, 0, 1]),
            st.booleans() if way != "put" else st.just(False),
        )
    )
    return st.lists(one, min_size=1, max_size=14)


# ------------------------------------------------------------------------------------------------------------- running


class Run:
    """A store, and its golden twin."""

    def __init__(self, path: Path, *, may_lose: bool = False, **given: Any) -> None:
        self.disk = Disk()
        self.clock = ManualClock()
        self.may_lose = may_lose
        self.config = StoreConfig(
            path, mapped_file_size_commit_log=FILE_BYTES, mapped_file_size_consume_queue=4_000, max_hash_slot_num=50,
            max_index_num=1000, max_message_size=BODY_BYTES_MAX, **given,
        )  # fmt: skip
        self.store = MessageStore(
            self.config, files=self.disk, clock=self.clock, drive=Drive.LOOP, batch_topics={BATCH_TOPIC}
        ).open()
        self.store._putter.lag_max = 1 << 30  # nothing is dispatched before it was looked at
        self.golden = Golden(
            with_crc=self.config.enabled_append_prop_crc, with_light_queues=self.config.with_light_queues
        )

    def take(self, step: Step) -> None:
        self.clock.advance(step.passes_ms)
        self.golden.time_ms = self.clock.now_ms()
        sent = [self._fitted(step.sent[0], step.ends_beyond), *step.sent[1:]]
        is_lost = self.disk.takes_no_records = step.is_lost and self.may_lose
        ways: dict[str, Callable[[list[Sent], bool], None]] = {
            "batch": self._batch, "many": self._many, "copies": self._copies, "put": self._put,
        }  # fmt: skip
        ways.get(step.way, self._single)(sent, is_lost)
        self.disk.takes_no_records = False
        assert self.store.appended_offset == (len(self.golden.files) - 1) * FILE_BYTES + len(self.golden.files[-1])
        assert {state.key: state.next_offset for state in self.store._log.states if state.next_offset} == {
            key: offset for key, offset in self.golden.next_offsets.items() if offset
        }

    def _fitted(self, sent: Sent, ends_beyond: int | None) -> Sent:
        """Its record ends so many bytes beyond the last place where one may end in this file."""
        if ends_beyond is None or self.golden.refusal(sent) is not OK:
            return sent
        size = len(self.golden._encode(sent, self.golden._stored_properties(sent), 0, 0)) - len(sent.body)
        body_bytes = FILE_BYTES - 8 + ends_beyond - len(self.golden.files[-1]) - size
        return replace(sent, body=bytes(body_bytes)) if 0 <= body_bytes <= BODY_BYTES_MAX else sent

    def _expect(self, sent: Sent, is_lost: bool) -> tuple[PutStatus, int, int, int]:
        status = self.golden.refusal(sent)
        if status is not OK:
            return status, -1, 0, -1
        added = self.golden.add(sent, is_lost=is_lost)
        return (OK, *added[0]) if added else (NO_FILE, -1, 0, -1)

    def _single(self, sent: list[Sent], is_lost: bool) -> None:
        for each in sent:
            expected = self._expect(each, is_lost)
            known = decode_properties(each.encoded)
            result = self.store.append(
                each.topic, each.queue_id, each.body, each.encoded, tags_code=tags_code(known.get("TAGS")),
                keys=known.get("KEYS"), unique_key=known.get("UNIQ_KEY"), flag=each.flag, sys_flag=each.sys_flag,
                born_time_ms=each.born_time_ms, born_host=each.born_host, store_host=each.store_host,
                reconsume_times=each.reconsume_times, prepared_transaction_offset=each.prepared_transaction_offset,
            )  # fmt: skip
            assert (result.status, result.physical_offset, result.size_bytes, result.queue_offset) == expected
            assert result.store_time_ms == (self.golden.time_ms if result.status is OK else 0)

    def _batch(self, sent: list[Sent], is_lost: bool) -> None:
        batch = encode_batch((each.flag, each.body, each.encoded[:PROPERTIES_BYTES_MAX]) for each in sent)
        sent = [replace(each, properties=decode_properties(each.encoded[:PROPERTIES_BYTES_MAX])) for each in sent]
        first = sent[0]
        result = self.store.append_batch(
            first.topic, first.queue_id, batch, sys_flag=first.sys_flag, born_time_ms=first.born_time_ms,
            born_host=first.born_host, store_host=first.store_host, reconsume_times=first.reconsume_times,
        )  # fmt: skip
        refusals = {self.golden.refusal(each) for each in sent} - {OK}
        refusals |= {PutStatus.MESSAGE_ILLEGAL} if len(batch) > BODY_BYTES_MAX else set()
        if refusals:
            assert result.status in refusals
            return
        added = self.golden.add(*sent, is_lost=is_lost)
        if is_lost:
            assert result.status is NO_FILE
            return
        assert (result.status, list(result.physical_offsets)) == (OK, [offset for offset, _, _ in added])
        assert (result.size_bytes, result.queue_offset) == (sum(size for _, size, _ in added), added[0][2])

    def _put(self, sent: list[Sent], is_lost: bool) -> None:
        for each in sent:
            message, stored = self._as_message(each)
            expected = self._expect(stored, is_lost)
            result = self.store.put(message, each.queue_id, born_time_ms=each.born_time_ms, born_host=each.born_host)
            assert (result.status, result.physical_offset, result.size_bytes, result.queue_offset) == expected

    def _many(self, sent: list[Sent], is_lost: bool) -> None:
        host = self.store._putter._store_host
        sent = [replace(each, born_time_ms=self.golden.time_ms, born_host=host) for each in sent]
        pairs = [self._as_message(each) for each in sent]
        if is_lost:
            self._lose_many(pairs)
            return
        expected = [self._expect(stored, is_lost) for _, stored in pairs]
        results = self.store.put_many([message for message, _ in pairs], sent[0].queue_id)
        assert [(r.status, r.physical_offset, r.size_bytes, r.queue_offset) for r in results] == expected

    def _lose_many(self, pairs: list[tuple[Message, Sent]]) -> None:
        """All are refused; whether a new file began before is the store's business."""
        refused = [self.golden.refusal(stored) for _, stored in pairs]
        try:
            results = self.store.put_many([message for message, _ in pairs], pairs[0][1].queue_id)
        except StoreError:  # the first one for want of a file
            assert refused[0] is OK
        else:
            assert [r.status for r in results] == [NO_FILE if status is OK else status for status in refused]
        if self.store.appended_offset == len(self.golden.files) * FILE_BYTES:
            self.golden.begin_file()

    def _as_message(self, sent: Sent) -> tuple[Message, Sent]:
        message = Message(sent.topic, sent.body, flag=sent.flag)
        message.properties.update(sent.properties | {"UNIQ_KEY": "0A" * 16})
        return message, replace(sent, properties=dict(message.properties), store_host=self.store._putter._store_host)

    def _copies(self, sent: list[Sent], is_lost: bool) -> None:
        """As those do who deliver: what does not go as a copy goes by itself."""
        left = [each for each in sent if len(each.born_host) == 8]
        while left:
            copies = [self._copy(each) for each in left]
            written = self.store.append_copies(copies)
            assert not (written and is_lost)
            for each, copy in zip(left[:written], copies, strict=False):
                assert self.golden.refusal(each) is OK
                offset, _, queue_offset = self.golden.add(each, is_lost=is_lost)[0]
                assert struct.unpack_from(">qq20xq", copy.head_and_body, 20) == (
                    queue_offset, offset, self.golden.time_ms,
                )  # fmt: skip
            self._single(left[written : written + 1], is_lost)
            del left[: written + 1]

    def _copy(self, sent: Sent) -> Copy:
        """Of a record that lies elsewhere, in another queue, and was stored long ago."""
        old = replace(sent, topic="SCHEDULE_TOPIC_XXXX", properties={}, queue_id=5)
        record = encode_record(
            old.topic, old.body, b"", queue_id=5, queue_offset=99, physical_offset=1 << 40, born_host=old.born_host,
            store_host=old.store_host, born_time_ms=old.born_time_ms, store_time_ms=3, flag=old.flag,
            reconsume_times=old.reconsume_times,
        )  # fmt: skip
        known = decode_properties(sent.encoded)
        code = tags_code(known.get("TAGS"))
        head_and_body = bytearray(record[: 88 + len(sent.body)])
        indexed = known.get("KEYS"), known.get("UNIQ_KEY"), known.get("TAGS")
        return Copy(sent.topic, sent.queue_id, head_and_body, sent.encoded, code, *indexed, sent.sys_flag)

    def check(self) -> None:
        """All of it, and once more after a kill."""
        golden, store = self.golden, self.store
        hosts_v6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
        facts = [(state.key, *rest) for state, *rest in store._log.facts]
        assert [(*fact[:7], fact[7] & ~hosts_v6, fact[8]) for fact in facts] == golden.facts
        store.runtime_info()
        assert (store.stats.put_count, store.stats.put_bytes) == (golden.put_count, golden.put_bytes)
        store.flush()
        store.dispatch()
        self._check_queues(store)
        store.close()
        written = [path.read_bytes() for path in sorted((self.config.path / "commitlog").iterdir())]
        data = b"".join(golden.files)
        assert b"".join(written).rstrip(b"\0").ljust(len(data), b"\0") == data
        (self.config.path / "abort").touch()
        with MessageStore(self.config, files=self.disk, clock=self.clock, batch_topics={BATCH_TOPIC}) as again:
            self._check_queues(again)

    def _check_queues(self, store: MessageStore) -> None:
        for (topic, queue_id), units in self.golden.units.items():
            if topic == BATCH_TOPIC:
                assert store.max_offset(topic, queue_id) == self.golden.next_offsets[topic, queue_id]
                continue
            found = store.read_units(topic, queue_id, 0, 1 << 20)
            expected = [tuple(unit[1:]) for unit in units]
            assert [(*unit,) for unit in found] == expected, (topic, queue_id)
            assert [unit[0] for unit in units] == list(range(len(units)))


WAYS = ("single", "batch", "many", "put", "copies", "inner", "light")
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
STORES: dict[str, dict[str, Any]] = {
    "mapped": {},
    "pool": {"transient_store_pool_enable": True},
    "by call": {"flush_disk_type": "SYNC_FLUSH", "may_lose": True},
    "record checksums": {"enabled_append_prop_crc": True},
    "light queues": {"enable_lmq": True, "enable_multi_dispatch": True},
    "checksums by call": {"flush_disk_type": "SYNC_FLUSH", "may_lose": True, "enabled_append_prop_crc": True},
}


@pytest.mark.parametrize("kind", STORES)
@SETTINGS
@given(steps(WAYS))
def test_every_way_in_writes_what_the_rules_say(kind: str, taken: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory), **STORES[kind])
        try:
            for step in taken:
                run.take(step)
            run.check()
        finally:
            run.store.abandon()


def test_the_generated_steps_meet_the_edges() -> None:
    """Rolls in the middle, each refusal, lost writes: the suite says nothing if it never comes there."""
    met: set[str] = set()

    @settings(SETTINGS, max_examples=60)
    @given(steps(WAYS))
    def walk(taken: list[Step]) -> None:
        golden = Golden()
        for step in taken:
            kinds = [golden.refusal(sent) for sent in step.sent]
            met.update(kind.name for kind in kinds)
            for sent, kind in zip(step.sent, kinds, strict=True):
                if kind is OK:
                    golden.add(sent)
            met.update({"lost"} if step.is_lost else ())
        met.update("rolled" for _ in pairwise(golden.files))
        met.update("full to the last byte" for file in golden.files[:-1] if file[-8:-4] == struct.pack(">i", 8))

    walk()
    assert {"PUT_OK", "MESSAGE_ILLEGAL", "PROPERTIES_SIZE_EXCEEDED", "lost", "rolled"} <= met


@pytest.mark.parametrize("room", [-1, 0])
@pytest.mark.parametrize("way", ["inner", "light", "checksum"])
def test_properties_that_are_too_long_only_with_what_the_log_adds_are_refused_before_a_file_begins(
    way: str, room: int, tmp_path: Path
) -> None:
    added = {"inner": "INNER_BASE.0.", "light": "INNER_MULTI_QUEUE_OFFSET.0.", "checksum": "_" * 20}[way]
    own = {"inner": {"INNER_NUM": "1"}, "light": {"INNER_MULTI_DISPATCH": "%LMQ%a"}, "checksum": {}}[way]
    flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP if way == "inner" else 0
    given_settings = STORES[{"inner": "mapped", "light": "light queues", "checksum": "record checksums"}[way]]
    sent = Sent(BATCH_TOPIC if way == "inner" else "T", b"", own | {"filler": ""}, sys_flag=int(flags))
    filler = "f" * (PROPERTIES_BYTES_MAX - len(sent.encoded) - len(added) - room)
    run = Run(tmp_path, **given_settings)
    run.take(Step("single", (Sent("T", bytes(BODY_BYTES_MAX), {}),), 0, None, is_lost=False))
    run.take(Step("single", (replace(sent, properties=own | {"filler": filler}),), 0, None, is_lost=False))
    assert len(run.golden.facts) == (1 if room < 0 else 2)
    run.check()
