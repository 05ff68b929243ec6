"""What append notes of a record is what `queues/derivation.py` makes of its bytes, whichever way it came in.

Dispatch of what was just put asks the notes ("facts"), so that it need not read the log; dispatch after a start,
recovery, verify and rebuild ask the derivation. The same generated records go through both: once each note is held
against the record that it is of, and once the queues and the index of a store that dispatched from its notes against
those of a store that has nothing but the same log.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from java_hashes import java_string_hash
from test_every_way_in import BATCH_TOPIC, FILE_BYTES, NO_QUEUE, SETTINGS, STORES, WAYS, Run, Sent, Step, steps

from contrailmq.message import SysFlag, SystemTopic
from contrailmq.message.record import RecordView, view_record
from contrailmq.store import Drive, ManualClock, MessageStore
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.queues.derivation import Derivation, Derived, Due
from contrailmq.store.queues.queue_state import DispatchFact
from contrailmq.store.queues.read_facts import FactReader

DELAYS = ["", "1", "3", "99", "0", "-1", "soon", "9" * 30]
KINDS = ["mapped", "record checksums", "light queues", "by call"]


@st.composite
def waiting_too(draw: st.DrawFn) -> list[Step]:
    """The steps of every way in; some records that come alone or as copies wait for a delay level."""
    taken: list[Step] = draw(steps(WAYS))
    return [replace(step, sent=tuple(_waiting(draw, step, sent) for sent in step.sent)) for step in taken]


def _waiting(draw: st.DrawFn, step: Step, sent: Sent) -> Sent:
    if step.way not in ("single", "copies") or not draw(st.booleans()):
        return sent
    delay = {"XDELAY": "2", "DELAY": draw(st.sampled_from(DELAYS))}
    return replace(sent, topic=SystemTopic.SCHEDULE, properties=sent.properties | delay)


def derivation_of(run: Run) -> Derivation:
    levels = DelayLevels(run.config.message_delay_level)
    return Derivation(levels, lambda topic: topic == BATCH_TOPIC, with_light_queues=run.config.with_light_queues)


def notes(run: Run) -> Iterator[tuple[DispatchFact, RecordView, Derived]]:
    derivation = derivation_of(run)
    for fact in run.store._log.facts:
        record = run.store.read_record(fact[1], fact[2])
        assert record is not None
        view = view_record(bytes(record))
        yield fact, view, derivation.derive(view)


def check_note(fact: DispatchFact, view: RecordView, derived: Derived) -> None:
    state, offset, size, code, time_ms, queue_offset, hashes, sys_flag, properties = fact
    assert (state.topic, state.queue_id) == (view.topic_name, view.queue_id)
    assert (offset, size, time_ms) == (view.physical_offset, view.size_bytes, view.store_time_ms)
    assert queue_offset == view.queue_offset
    assert not (sys_flag ^ view.sys_flag) & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    kind = sys_flag & SysFlag.TRANSACTION_MASK  # what append took no queue offset for has no unit
    assert (derived.due is Due.NOTHING) == (kind in NO_QUEUE)
    assert (derived.batch is not None) == (derived.due is Due.BATCH_UNIT) == (state.topic == BATCH_TOPIC)
    assert (derived.keys is None) == (kind == SysFlag.TRANSACTION_ROLLBACK)  # of a half message the index knows
    if derived.due is Due.UNIT and state.topic != SystemTopic.SCHEDULE:  # there dispatch asks the derivation itself
        assert code == derived.tags_code
    if derived.batch is not None:
        assert code == derived.batch.tags_code
        assert (derived.batch.base_offset, derived.batch.physical_offset) == (queue_offset, offset)
    if derived.keys is not None:
        unique_key, keys, tags = derived.keys
        texts = [f"{state.topic}#{key}" for key in (unique_key or "", *(keys or "").split(" ")) if key]
        texts += [f"{state.topic}#T#{tags}"] if tags else []
        assert hashes == [java_string_hash(text) for text in texts]
    assert view.properties.startswith(properties)  # a checksum of the record may follow


def found_in(store: MessageStore, keys: set[tuple[str, str]]) -> tuple[object, object]:
    """Every unit of every queue, and what the index says of these keys."""
    units = {
        key: [(*unit,) for unit in store.read_units(*key, begin, 1 << 20)] if key[0] != BATCH_TOPIC else [(begin, end)]
        for key, (begin, end) in store.queues().items()
    }
    index = {key: [message.physical_offset for message in store.query(*key, 1000)] for key in keys}
    return {key: found for key, found in units.items() if found}, index


def keys_of(run: Run) -> set[tuple[str, str]]:
    return {
        (view.topic_name, word)
        for _, view, derived in notes(run)
        if derived.keys is not None
        for word in ((derived.keys.unique_key or "") + " " + (derived.keys.keys or "")).split(" ")
        if word
    }


@pytest.mark.parametrize("kind", KINDS)
@settings(SETTINGS, max_examples=SETTINGS.max_examples * 2)
@given(waiting_too())
def test_what_append_notes_is_what_the_record_derives(kind: str, taken: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory), **STORES[kind])
        try:
            for step in taken:
                run.take(step)
            run.store.flush()
            for fact, view, derived in notes(run):
                check_note(fact, view, derived)
        finally:
            run.store.abandon()


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(waiting_too())
def test_dispatch_from_notes_leaves_what_dispatch_from_the_log_leaves(kind: str, taken: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory) / "noted", **STORES[kind])
        try:
            for step in taken:
                run.take(step)
            run.store.flush()
            keys = keys_of(run)
            run.store.dispatch()
            noted = found_in(run.store, keys)
        finally:
            run.store.abandon()
        bare = Path(directory) / "bare"
        shutil.copytree(run.config.path / "commitlog", bare / "commitlog")
        config = replace(run.config, path=bare)
        with MessageStore(config, clock=ManualClock(), drive=Drive.LOOP, batch_topics={BATCH_TOPIC}) as store:
            store.dispatch()
            assert found_in(store, keys) == noted


def slave_of(run: Run, path: Path) -> MessageStore:
    config = replace(run.config, path=path, broker_role="SLAVE")
    return MessageStore(config, clock=ManualClock(), drive=Drive.LOOP, batch_topics={BATCH_TOPIC})


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(waiting_too(), st.data())
def test_dispatch_of_a_masters_bytes_leaves_what_dispatch_from_notes_leaves(
    kind: str, taken: list[Step], data: st.DataObject
) -> None:
    """They come in pieces, and dispatch runs a little after some of them. It has no notes, and reads what it finds."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory) / "noted", **STORES[kind])
        try:
            for step in taken:
                run.take(step)
            run.store.flush()
            keys = keys_of(run)
            end = run.store.appended_offset
            run.store.dispatch()
            noted = found_in(run.store, keys)
            with slave_of(run, Path(directory) / "slave") as slave:
                while slave.replica.received_end < end:
                    begin = slave.replica.received_end
                    size = data.draw(st.integers(1, FILE_BYTES))
                    block = run.store.read_log(begin, min(size, FILE_BYTES - begin % FILE_BYTES, end - begin))
                    assert block
                    slave.replica.append(begin, block)
                    if data.draw(st.booleans()):
                        slave.flush()
                        slave.dispatch(data.draw(st.integers(1, 2 * FILE_BYTES)))
                slave.flush()
                while slave.dispatch(1):
                    pass
                assert slave.dispatched_offset == slave.replica.end == end
                assert found_in(slave, keys) == noted
        finally:
            run.store.abandon()


@pytest.mark.parametrize("kind", KINDS)
@settings(SETTINGS, max_examples=SETTINGS.max_examples * 2)
@given(waiting_too())
def test_facts_that_are_read_are_what_the_record_derives(kind: str, taken: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory), **STORES[kind])
        try:
            for step in taken:
                run.take(step)
            run.store.flush()
            records = [(bytes(view.buffer), view, derived) for _, view, derived in notes(run)]
            run.store.dispatch()
            for record, view, derived in records:
                queues = ConsumeQueueTable(
                    Path(directory) / "none", file_bytes=400, files=run.disk, batch_topics={BATCH_TOPIC}
                )
                reader = FactReader(queues, derivation_of(run), is_indexed=True)
                assert reader.read(record, view.physical_offset, 9) == [], "a new queue is not for the quick way"
                queues.find_or_create(view.topic_name, view.queue_id).start_at(view.queue_offset)
                facts = reader.read(record, view.physical_offset, 9)
                is_plain = len(view.topic) < 128 and not view.sys_flag & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
                assert bool(facts) == (is_plain and derived.due is Due.UNIT)
                for fact in facts:
                    check_note(fact, view, derived)
                    assert fact[3] == derived.tags_code
        finally:
            run.store.abandon()
