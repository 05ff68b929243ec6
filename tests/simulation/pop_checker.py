"""What POP consumers saw, and what must be true of it (docs/pop.md).

`poppers` take messages of all queues and acknowledge each by itself; `liners` are a FIFO group. Each delivery
(`history.Popped`) is kept with the moment at which its pop was asked for, and the one until which the message is to be
invisible to others. Both are on the safe side: the broker counts from when it served the pop, and answers take time.

Checked of both groups: an acknowledgement that was confirmed in time is final. Of poppers: a message is invisible while
somebody has it, each delivery counts as an attempt, and what fails to the last is a dead letter. Of liners: a
message is invisible as well, and nothing new comes before everything that came earlier was acknowledged. That each
message arrives is `checker.unfinished`.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from simulation.history import LINERS, POP_TRIES_MAX, POPPERS, History, Popped, Queue


def unsafe_pops(history: History, copies: Mapping[bytes, Sequence[object]]) -> Iterator[str]:
    """`copies` says how often a message stands in its topic: of one that was stored twice nothing is known here."""
    pops = history.pops
    by_body: dict[bytes, list[Popped]] = defaultdict(list)
    for one in pops.deliveries:
        if one.group == POPPERS:
            by_body[one.body].append(one)
    for body, given in by_body.items():
        if len(copies.get(body, ())) == 1 and not _may_repeat(history, body):
            yield from _of_one(history, given)
    for body in pops.exhausted.keys() - pops.tried[POPPERS] - pops.dead:
        if body in history.acknowledged and not history.is_excused(body) and not _may_repeat(history, body):
            yield f"{_short(body)} failed on the last attempt of {POPPERS} and is no dead letter"
    failed = {body for body, given in by_body.items() if any(one.tried_s is None for one in given)}
    for body in pops.dead:
        if history.is_calm and body not in failed:
            yield f"{_short(body)} is a dead letter of {POPPERS} and never failed"
    yield from _of_lines(history)


def _may_repeat(history: History, body: bytes) -> bool:
    """Under ASYNC_FLUSH a power cut takes the end of a log: acknowledgements and checkpoints like messages."""
    sent_s = history.sent[body].at_s if body in history.sent else 0.0
    return any(cut.at_s >= sent_s for cuts in history.forgetful_cuts.values() for cut in cuts)


def _of_one(history: History, given: list[Popped]) -> Iterator[str]:
    what, done = _short(given[0].body), [one for one in given if one.confirmed_s is not None]
    for one in given:
        late = [before for before in done if before.confirmed_s is not None and before.confirmed_s < one.asked_s]
        if late and history.is_timely:
            yield f"{what} was acknowledged at {late[0].confirmed_s:.3f} s, and {POPPERS} got it at {one.at_s:.3f} s"
    ordered = sorted(given, key=lambda one: one.pop_time_ms)
    for before, after in itertools.pairwise(ordered):
        if not history.is_timely:
            break
        if after.at_s < before.until_s:
            yield f"{what} was to be invisible until {before.until_s:.3f} s, and was popped again at {after.at_s:.3f} s"
        if after.attempt <= before.attempt:
            yield f"{what} came as attempt {before.attempt}, and then as attempt {after.attempt}"
        if after.attempt > POP_TRIES_MAX:
            yield f"{what} came as attempt {after.attempt}, and {POPPERS} have {POP_TRIES_MAX}"


def _of_lines(history: History) -> Iterator[str]:
    """FIFO."""
    queues: dict[Queue, list[tuple[int, Popped]]] = defaultdict(list)
    for one in history.pops.deliveries:
        if one.group == LINERS and one.place is not None and one.place.queue.broker not in history.forgetful_cuts:
            queues[one.place.queue].append((one.place.offset, one))
    for queue, given in queues.items():
        yield from _of_held(history, queue, given)
        tried_s = _since([(offset, one.tried_s) for offset, one in given])
        confirmed_s = _since([(offset, one.confirmed_s) for offset, one in given])
        batches: dict[tuple[float, int], int] = {}  # (asked, by the broker's clock) -> first offset
        for offset, one in given:
            batch = one.asked_s, one.pop_time_ms
            batches[batch] = first = min(offset, batches.get(batch, offset))
            if one.at_s < tried_s[first] and not history.flipped:
                yield f"{LINERS} got {offset} of {queue} at {one.at_s:.3f} s, before all up to {first} was acknowledged"
            if history.keeps_journals and confirmed_s[offset + 1] < one.asked_s:
                yield f"{LINERS} had acknowledged {queue} up to {offset}, and got that again at {one.at_s:.3f} s"


def _of_held(history: History, queue: Queue, given: list[tuple[int, Popped]]) -> Iterator[str]:
    """A message of a FIFO queue is invisible to others while somebody has it."""
    if not (history.keeps_journals and history.is_timely):
        return
    newest: dict[int, Popped] = {}
    for offset, one in sorted(given, key=lambda pair: pair[1].pop_time_ms):
        before = newest.get(offset)
        if before is not None and before.tried_s is None and one.at_s < before.until_s:
            until = f"was to be invisible until {before.until_s:.3f} s"
            yield f"{offset} of {queue} {until}, and {LINERS} got it again at {one.at_s:.3f} s"
        newest[offset] = one


def _since(moments: list[tuple[int, float | None]]) -> list[float]:
    """[n] is since when the first n offsets of a queue have had such a moment; endless where one never had."""
    first: dict[int, float] = {}
    for offset, at_s in moments:
        first[offset] = min(first.get(offset, math.inf), math.inf if at_s is None else at_s)
    found = [0.0]
    for offset in range(max(first, default=-1) + 1):
        found.append(max(found[-1], first.get(offset, math.inf)))
    return found


def _short(body: bytes) -> str:
    return repr(body[:24].decode(errors="replace")) + (f" of {len(body)} bytes" if len(body) > 24 else "")
