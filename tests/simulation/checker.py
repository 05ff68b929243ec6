"""What must be true of a history: safety at any time, liveness once the faults are over.

`ahead` may be asked while a trial runs: no stored offset of a group passes a message that the group has not been given.
`unsafe` holds what clients saw against itself, `unsafe_stores` against what the stores hold after a clean stop.
`unfinished` is what should have happened by now. All give sentences; none means that all is well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from contrailmq.broker.pop.records_found import ORIGIN_PROPERTY
from contrailmq.broker.transactions.transaction_check import CLOCK_SET
from contrailmq.message import RESERVED_PROPERTIES, Property
from simulation.history import DEALS, PASSING, POPPED, POPPERS, READERS, TOPICS, WORKERS, History, Kind, Place, Queue
from simulation.pop_checker import unsafe_pops
from simulation.stores import DEAD, HALVES, LEVELS, RETRY, TIMERS, Left, Record

TAGS: Final = Property.TAGS
TRIES_MAX: Final = 3  # of a send without a queue: the first, and `retry_times`
CLOCK_S: Final = 0.001  # brokers count in milliseconds
# What our broker notes in copies of its own; the message that a consumer gets does not have it.
MARKS: Final = {RETRY: ORIGIN_PROPERTY, DEAD: ORIGIN_PROPERTY, HALVES: CLOCK_SET}
LATE_MS: Final = 6_000  # of what waits: while the world rests, timers end every five seconds
RETRY_S: Final = 4.0  # what workers failed on waits so long at least: the first of its levels in cluster.SHORT_WAITS
RETRIES_MAX: Final = 2  # of a concurrent listener; the next failure makes a dead letter


# --- while it runs


def ahead(history: History, offsets: Mapping[tuple[str, Queue], int]) -> Iterator[str]:
    """Stored offsets that passed a message which the group has not been given.

    Every offset has a message. Of a group that asks for a tag, only acknowledged messages with that tag are known.
    """
    for (group, queue), offset in offsets.items():
        wanted = history.subscribed.get(group, {}).get(queue.topic, "not at all")
        if group == POPPERS:
            continue  # its offset is where the next pop reads: what it has passed comes again from the retry topic
        if wanted == "not at all" or history.flipped or queue.broker in history.forgetful_cuts:
            continue
        below: Iterable[int] = range(offset)
        if wanted is not None:
            known = history.by_queue.get(queue, {})
            below = [at for at, body in known.items() if at < offset and history.sent[body].properties[TAGS] == wanted]
        missing = set(below) - history.heard.get((group, queue), set())
        if missing:
            yield f"{group} is at {offset} of {queue} and was not given {sorted(missing)[:5]}"


# --- what clients saw


def unsafe(history: History) -> list[str]:
    """Of acknowledgements and deliveries alone."""
    return [*_of_places(history), *_of_deliveries(history), *_of_order(history), *_of_retries(history)]


def _of_places(history: History) -> Iterator[str]:
    held: dict[Place, bytes] = {}
    lines: dict[tuple[tuple[str, ...], Queue], int] = {}
    for body, acknowledged in history.acknowledged.items():
        place, sent = acknowledged.place, history.sent[body]
        if body in history.first_again and history.is_calm and place.offset:
            yield f"{_short(body)} is the first of {sent.topic}, which was deleted, and stands at {place}"
        if not sent.kind.has_place or place.queue.broker in history.forgetful_cuts or sent.topic in history.deleted:
            continue
        if held.setdefault(place, body) != body:
            yield f"{place} was acknowledged for {_short(held[place])} and for {_short(body)}"
        if sent.line:
            if place.offset <= lines.get((sent.line, place.queue), -1):
                yield f"{_short(body)} stands at {place}, and the one sent before it under {sent.line} behind it"
            lines[sent.line, place.queue] = place.offset


def _of_deliveries(history: History) -> Iterator[str]:
    held = {one.place: body for body, one in history.acknowledged.items() if history.sent[body].kind.has_place}
    for delivery in history.deliveries:
        sent, what = history.sent.get(delivery.body), _short(delivery.body)
        if sent is None:
            yield f"{what} was delivered to {delivery.group} and never sent"
            continue
        yield from _of_content(history, delivery.body, delivery.properties)
        if (delivery.topic, delivery.flag) != (sent.topic, sent.flag):
            told = f"of {delivery.topic} with the flag {delivery.flag}"
            yield f"{what} was delivered to {delivery.group} as one {told}, and sent to {sent.topic} with {sent.flag}"
        wanted = history.subscribed[delivery.group].get(sent.topic, "not at all")
        if wanted is not None and wanted != sent.properties[Property.TAGS]:
            yield f"{what} was delivered to {delivery.group}, which asks for {wanted} of {sent.topic}"
        if sent.kind is Kind.HALF and not history.decided.get(delivery.body):
            yield f"{what} was delivered and its transaction did not commit"
        if history.is_timely and delivery.at_s < sent.at_s + sent.delay_s - CLOCK_S:
            yield f"{what} was to wait {sent.delay_s:g} s and came after {delivery.at_s - sent.at_s:.3f} s"
        place = delivery.place
        if place is None or place.queue.broker in history.forgetful_cuts:
            continue
        if held.setdefault(place, delivery.body) != delivery.body:
            yield f"{place} held {_short(held[place])} and gave {what}"


def _of_order(history: History) -> Iterator[str]:
    """Orderly listeners and readers get a queue in its order, apart from what they are given again. An orderly
    listener that fails gets the same message again, before it is done with a later one."""
    newest: dict[tuple[str, Queue], int] = {}
    seen: dict[tuple[str, Queue], set[int]] = defaultdict(set)
    failed: dict[tuple[str, Queue], set[int]] = defaultdict(set)
    for delivery in history.deliveries:
        if delivery.group in (WORKERS, POPPERS) or delivery.place is None:
            continue
        queue, offset = delivery.place
        if queue.broker in history.forgetful_cuts:
            continue
        key = (delivery.group, queue)
        if offset > newest.get(key, -1):
            newest[key] = offset
        elif offset not in seen[key]:
            yield f"{delivery.group} got {offset} of {queue} for the first time after {newest[key]}"
        seen[key].add(offset)
        if not delivery.is_success:
            failed[key].add(offset)
            continue
        failed[key].discard(offset)
        if failed[key] and offset > min(failed[key]) and not history.flipped:
            yield f"{delivery.group} failed on {min(failed[key])} of {queue}, and was done with {offset} first"
    for (group, queue), offsets in history.heard.items():
        if not offsets or group != READERS or queue.broker in history.forgetful_cuts or history.flipped:
            continue
        missing = sorted(set(range(max(offsets))) - offsets)
        if missing:
            yield f"{group} got {max(offsets)} of {queue} and never {missing[:5]}"


def _of_retries(history: History) -> Iterator[str]:
    """What workers fail on comes again as the next attempt, and not at once."""
    failed_s: dict[tuple[bytes, int], float] = {}  # by attempt
    for delivery in history.deliveries:
        if delivery.group != WORKERS:
            continue
        body, attempt, what = delivery.body, delivery.attempt, _short(delivery.body)
        if not delivery.is_success:
            failed_s.setdefault((body, attempt), delivery.at_s)
        if not attempt:
            continue
        before_s = failed_s.get((body, attempt - 1))
        if before_s is None:
            yield f"{what} came as attempt {attempt}, and {WORKERS} had not failed on the one before"
        elif history.is_timely and delivery.at_s < before_s + RETRY_S - CLOCK_S:
            yield f"{what} failed at {before_s:.3f} s and came again at {delivery.at_s:.3f} s"


# --- what the stores hold


def unsafe_stores(history: History, stores: Iterable[Left]) -> list[str]:
    """Of what the stores hold after a clean stop."""
    found: list[str] = []
    everything: dict[Place, list[Record]] = defaultdict(list)
    copies: dict[bytes, list[Record]] = defaultdict(list)
    for left in stores:
        damaged = {offset for broker, offset in history.flipped if broker == left.broker}
        if not damaged:
            found += [sentence for _, sentence in left.findings]
        for record in left.records:
            if record.physical_offset in damaged:
                continue
            everything[record.place].append(record)
            found += _of_copy(history, record)
            if record.place.queue.topic in TOPICS or record.place.queue.topic.startswith(PASSING):
                copies[record.body].append(record)
                history.places[record.body].add(record.place)
                found += _of_record(history, record)
        found += ahead(history, left.offsets)
    found += _of_queues(history, everything)
    found += _of_acknowledged(history, everything, copies)
    found += _of_copies(history, copies, stores)
    found += _of_repeats(history, everything, copies)
    found += _of_suffixes(history, copies)
    found += _of_recalled(history, everything, copies)
    found += _of_lateness(history, everything, copies)
    history.pops.dead.update(_letters(POPPERS, stores))
    found += unsafe_pops(history, copies)
    return found


def unsafe_copy(history: History, slave: str, copy: Left, master: Left) -> list[str]:
    """Of what a slave holds after a clean stop: its master's records from where it begins, queues and index as a
    rebuild would make them, no messages of deleted topics, and offsets of groups that pass nothing that was not given
    to them."""
    found = [f"{slave}: {sentence}" for _, sentence in copy.findings]
    theirs = {(record.physical_offset, record.place): record for record in master.records}
    found += [
        f"{slave} holds {_short(record.body)} at {record.place}, {record.physical_offset} of its log"
        for record in copy.records
        if theirs.get((record.physical_offset, record.place)) != record
    ]
    found += [
        f"{slave} has {queue} up to {end}, its master up to {master.ends.get(queue, 0)}"
        for queue, end in copy.ends.items()
        if end > master.ends.get(queue, 0) and not (history.is_switched and queue.topic in history.deleted)
    ]
    found += [f"{slave}: {sentence}" for sentence in ahead(history, copy.offsets)]
    return found


def _of_copy(history: History, record: Record) -> Iterator[str]:
    """In whatever topic: neither a message that waits for its time nor a dead letter is changed."""
    topic, sent = record.place.queue.topic, history.sent.get(record.body)
    marks = {mark for name, mark in MARKS.items() if topic.startswith(name)}
    properties = {key: value for key, value in record.properties.items() if key not in marks}
    yield from _of_content(history, record.body, properties)
    if sent is not None and record.flag != sent.flag:
        yield f"{_short(record.body)} was sent with the flag {sent.flag} and has {record.flag} at {record.place}"


def _of_record(history: History, record: Record) -> Iterator[str]:
    sent, what = history.sent.get(record.body), _short(record.body)
    if sent is None:
        yield f"{record.place} holds {what}, which was never sent"
        return
    if sent.topic != record.place.queue.topic:
        yield f"{what} was sent to {sent.topic} and stands at {record.place}"
    if sent.kind is Kind.HALF and not history.decided.get(record.body):
        yield f"{what} stands at {record.place} and its transaction did not commit"


def _of_queues(history: History, everything: dict[Place, list[Record]]) -> Iterator[str]:
    """Offsets from 0 on, each once."""
    ends: Counter[Queue] = Counter()
    for place, records in everything.items():
        if place.queue.topic not in TOPICS:
            continue
        if len(records) > 1:
            yield f"{place} stands {len(records)} times in the log"
        ends[place.queue] = max(ends[place.queue], place.offset + 1)
    if history.flipped:
        return
    for queue, end in ends.items():
        gaps = [offset for offset in range(end) if Place(queue, offset) not in everything]
        if gaps:
            yield f"{queue} ends at {end} and lacks {gaps[:5]}"


def _of_acknowledged(
    history: History, everything: dict[Place, list[Record]], copies: dict[bytes, list[Record]]
) -> Iterator[str]:
    for body, acknowledged in history.acknowledged.items():
        if history.is_excused(body):
            continue
        sent, place, what = history.sent[body], acknowledged.place, _short(body)
        if sent.kind.has_place:
            told = body, acknowledged.physical_offset
            if not any((record.body, record.physical_offset) == told for record in everything.get(place, ())):
                stands = [f"{one.physical_offset}: {_short(one.body)}" for one in everything.get(place, ())]
                where = f"{place}, {acknowledged.physical_offset} of the log"
                yield f"{what} was acknowledged at {where}; there is {stands}"
        elif sent.kind is not Kind.HALF and body not in copies:
            yield f"{what}, {sent.kind.value}, was acknowledged and never came into {sent.topic}"
        elif body in copies and not history.may_escape:
            queues = [record.place.queue for record in copies[body]]
            if place.queue not in queues:
                yield f"{what}, {sent.kind.value}, was acknowledged for {place.queue} and came into {queues}"
    for body, is_committed in history.decided.items():
        is_known = body in history.acknowledged and not history.is_excused(body)
        if is_committed and is_known and body not in copies:
            yield f"{_short(body)} was committed and never came into {DEALS}"


def _of_copies(history: History, copies: dict[bytes, list[Record]], stores: Iterable[Left]) -> Iterator[str]:
    """A message stands in its topic once. A producer that heard no answer may have sent it again, and a broker that
    crashed may deliver again what waited for its time or its transaction."""
    for body, records in copies.items():
        sent = history.sent.get(body)
        if sent is None or (not sent.kind.has_place and not history.is_calm):
            continue
        if len(records) > (1 if history.is_calm else TRIES_MAX):
            yield f"{_short(body)} stands {len(records)} times: {[record.place for record in records]}"
    letters = _letters(WORKERS, stores)
    for body in history.exhausted - history.succeeded[WORKERS] - letters.keys():
        if body in history.acknowledged and not _may_be_missed(history, body, WORKERS):
            yield f"{_short(body)} failed on its last try and is no dead letter"
    failed = Counter(one.body for one in history.deliveries if one.group == WORKERS and not one.is_success)
    for body, count in letters.items():
        if history.is_calm and count > max(0, failed[body] - RETRIES_MAX):
            yield f"{_short(body)} is a dead letter {count} times, and failed {failed[body]} times"


def _of_repeats(
    history: History, everything: dict[Place, list[Record]], copies: dict[bytes, list[Record]]
) -> Iterator[str]:
    """A crash may deliver again what waited for its time or its transaction, a clean stop does not: such a message
    stands in its topic at most as often as it waited."""
    if not history.stops_cleanly or history.may_escape:
        return
    waited: Counter[bytes] = Counter()
    for place, records in everything.items():
        if place.queue.topic in (LEVELS, TIMERS, HALVES):
            waited.update(one.body for one in records if one.properties.get(Property.REAL_TOPIC) in TOPICS)
    for body, records in copies.items():
        sent = history.sent.get(body)
        if sent is not None and not sent.kind.has_place and len(records) > waited[body]:
            yield f"{_short(body)} waited {waited[body]} times and stands at {[record.place for record in records]}"


def _letters(group: str, stores: Iterable[Left]) -> Counter[bytes]:
    """How often each message is among the dead of a group."""
    topic = f"{DEAD}{group}"
    return Counter(one.body for left in stores for one in left.records if one.place.queue.topic == topic)


def _of_recalled(
    history: History, everything: dict[Place, list[Record]], copies: dict[bytes, list[Record]]
) -> Iterator[str]:
    """A timer whose recall was acknowledged is not delivered. Of one that waits twice, as its sender tried again, one
    is recalled. A power cut may take the mark under ASYNC_FLUSH, and who stands in for a master may not have it."""
    if history.may_escape:
        return
    waiting = Counter(one.body for place, found in everything.items() if place.queue.topic == TIMERS for one in found)
    for body, at_s in history.recalled.items():
        cuts = [cut for of_broker in history.forgetful_cuts.values() for cut in of_broker]
        if body in copies and waiting[body] == 1 and not any(cut.at_s >= at_s for cut in cuts):
            yield f"{_short(body)} was recalled and stands at {[record.place for record in copies[body]]}"


def _of_lateness(
    history: History, everything: dict[Place, list[Record]], copies: dict[bytes, list[Record]]
) -> Iterator[str]:
    """When nothing was done to the cluster, what waits for its time is stored in its topic soon after it."""
    if not history.is_calm:
        return
    waiting: dict[bytes, list[int]] = defaultdict(list)
    for place, records in everything.items():
        if place.queue.topic in (TIMERS, LEVELS):
            for record in records:
                waiting[record.body].append(record.store_time_ms)
    for body, sent in history.sent.items():
        if sent.kind in (Kind.LEVEL, Kind.TIMER) and body in copies and body in waiting:
            took_ms = max(copy.store_time_ms for copy in copies[body]) - min(waiting[body])
            if not 0 <= took_ms - round(1000 * sent.delay_s) <= LATE_MS:
                yield f"{_short(body)} was to wait {sent.delay_s:g} s and stood in its topic after {took_ms / 1000:g} s"


def _of_suffixes(history: History, copies: dict[bytes, list[Record]]) -> Iterator[str]:
    """ASYNC_FLUSH: of what was acknowledged before a power cut, only the end of the log may be missing."""
    for broker, cuts in history.forgetful_cuts.items():
        begin_s = -1.0
        for cut_s in (cut.at_s for cut in cuts):
            kept, lost = -1, []
            for body, one in history.acknowledged.items():
                is_of_it = one.place.queue.broker == broker and begin_s < one.at_s <= cut_s
                if not is_of_it or not history.sent[body].kind.has_place or history.sent[body].topic in history.deleted:
                    continue
                if body in copies:
                    kept = max(kept, one.physical_offset)
                else:
                    lost.append(one.physical_offset)
            if lost and min(lost) < kept:
                yield f"{broker} lost {min(lost)} of its log in the cut at {cut_s:g} s and kept {kept}"
            begin_s = cut_s


# --- liveness


def unfinished(history: History) -> list[str]:
    """What should have happened by now."""
    found, exhausted = [*_of_resets(history)], history.pops.exhausted.keys() | history.pops.dead
    for body, sent in history.sent.items():
        if body not in history.acknowledged or history.is_excused(body):
            continue
        if sent.kind is Kind.HALF and not history.decided.get(body):
            if body not in history.decided:
                found.append(f"{_short(body)} was stored as a half message and nobody asked what became of it")
            continue
        for group, topics in history.subscribed.items():
            wanted = topics.get(sent.topic, "not at all")
            if wanted is not None and wanted != sent.properties[Property.TAGS]:
                continue
            is_done = body in (history.pops.tried if group in POPPED else history.succeeded)[group]
            is_done |= body in history.exhausted if group == WORKERS else body in exhausted and group == POPPERS
            if not is_done and not _may_be_missed(history, body, group):
                found.append(f"{_short(body)}, {sent.kind.value}, was acknowledged and {group} never got it")
    return found


def _of_resets(history: History) -> Iterator[str]:
    """When nothing was done to the cluster, a group that was set back to the beginning of a topic is given all of it
    again. A crash may take a reset with it, as its consumers go on where they were."""
    if not history.is_calm or not history.moved_back:
        return
    newest_s: dict[tuple[str, bytes], float] = {(one.group, one.body): one.at_s for one in history.deliveries}
    for group, topic, at_s in history.moved_back:
        wanted = history.subscribed.get(group, {}).get(topic)
        for body, one in history.acknowledged.items():
            sent = history.sent[body]
            is_asked_for = sent.topic == topic and (wanted is None or sent.properties[Property.TAGS] == wanted)
            was_there = sent.kind.has_place and one.at_s < at_s
            if is_asked_for and was_there and newest_s.get((group, body), -1.0) < at_s:
                yield f"{group} was set back to the beginning of {topic} at {at_s:g} s and not given {_short(body)}"


def _may_be_missed(history: History, body: bytes, group: str) -> bool:
    """Under ASYNC_FLUSH a power cut takes the end of a log: with it the message, or its copy in the retry topic (which
    may be on another broker), or the messages that stood where it stands now and that the group has read."""
    if history.is_excused(body):
        return True
    failed_s = history.failed_s.get(body) if group == WORKERS else None
    if failed_s is not None and any(cut.at_s >= failed_s for cuts in history.forgetful_cuts.values() for cut in cuts):
        return True
    return group != POPPERS and history.is_passed_over(body, group)  # their offset follows what is on the disk


# --- leaves


def _of_content(history: History, body: bytes, got: Mapping[str, str]) -> Iterator[str]:
    """The properties that were sent and no others, beside RocketMQ's own; and the id that the producer was told."""
    if body not in history.sent:
        return
    sent = history.sent[body].properties
    changed = {key: value for key, value in sent.items() if got.get(key) != value}
    if changed:
        yield f"{_short(body)} was sent with {changed} and has {got}"
    added = {key: value for key, value in got.items() if key not in sent and key not in RESERVED_PROPERTIES}
    if added:
        yield f"{_short(body)} was sent without {added} and has {got}"
    known, found = history.ids.get(body), got.get(Property.UNIQUE_KEY)
    if known is not None and found != known:
        yield f"{_short(body)} was acknowledged as {known} and has {found}"


def _short(body: bytes) -> str:
    return repr(body[:24].decode(errors="replace")) + (f" of {len(body)} bytes" if len(body) > 24 else "")
