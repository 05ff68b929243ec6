"""What the checker says of POP, from histories made by hand."""

from __future__ import annotations

import pytest

from simulation.checker import unfinished
from simulation.history import (
    LINERS,
    ORDERED,
    PLAIN,
    POPPED,
    POPPERS,
    Acknowledged,
    Cut,
    History,
    Kind,
    Place,
    Popped,
    Queue,
    Sent,
)
from simulation.pop_checker import unsafe_pops

ONCE = {b"m": [None]}
LINE = Queue(ORDERED, "b0", 0)


@pytest.fixture
def history() -> History:
    tags = {"TAGS": "even"}
    history = History(sent={b"m": Sent(PLAIN, Kind.SINGLE, tags, 0.0)}, subscribed=POPPED)
    history.acknowledged[b"m"] = Acknowledged(Place(Queue(PLAIN, "b0", 0), 0), 0, 1.0)
    return history


def give(history: History, at_s: float, *, attempt: int = 0, until_s: float = 0.0) -> Popped:
    pop_time_ms = round(1000 * at_s)
    one = Popped(POPPERS, b"m", "b0", None, at_s - 0.1, at_s, pop_time_ms, attempt, until_s or at_s + 3.0)
    history.pops.deliveries.append(one)
    return one


def acknowledge(history: History, one: Popped, at_s: float, *, confirmed_s: float | None = None) -> None:
    history.pops.acknowledging(one, at_s)
    one.confirmed_s = confirmed_s


def said(history: History) -> list[str]:
    return list(unsafe_pops(history, ONCE))


def test_what_comes_again_after_its_time_and_is_acknowledged_then_is_all_right(history: History) -> None:
    assert unfinished(history) == ["'m', single, was acknowledged and poppers never got it"]
    give(history, 2.0)
    assert len(unfinished(history)) == 1
    acknowledge(history, give(history, 6.0, attempt=1), 6.2, confirmed_s=6.3)
    assert said(history) == unfinished(history) == []


def test_an_acknowledgement_that_was_confirmed_in_time_is_final(history: History) -> None:
    acknowledge(history, give(history, 2.0), 2.1, confirmed_s=2.2)
    give(history, 6.0, attempt=1)
    assert said(history) == ["'m' was acknowledged at 2.200 s, and poppers got it at 6.000 s"]
    history.forgetful_cuts["b0"].append(Cut(3.0))  # ASYNC_FLUSH: the acknowledgement may be gone
    assert said(history) == []


def test_a_message_is_invisible_while_somebody_has_it_and_each_delivery_counts(history: History) -> None:
    give(history, 2.0)
    give(history, 4.0)
    assert said(history) == [
        "'m' was to be invisible until 5.000 s, and was popped again at 4.000 s",
        "'m' came as attempt 0, and then as attempt 0",
    ]


def test_what_failed_on_its_last_attempt_is_a_dead_letter(history: History) -> None:
    for attempt in range(3):
        give(history, 2.0 + 4 * attempt, attempt=attempt)
    assert unfinished(history) == []
    assert said(history) == ["'m' failed on the last attempt of poppers and is no dead letter"]
    history.pops.dead.add(b"m")
    assert said(history) == []


def line(history: History, offset: int, asked_s: float, *, tried_s: float = 0.0, confirmed_s: float = 0.0) -> None:
    place, body = Place(LINE, offset), b"%d" % offset
    one = Popped(LINERS, body, "b0", place, asked_s, asked_s + 0.1, round(1000 * asked_s), 0, asked_s + 3.0)
    one.tried_s, one.confirmed_s = tried_s or None, confirmed_s or None
    history.pops.deliveries.append(one)


def test_a_fifo_queue_gives_nothing_new_before_all_that_came_earlier_was_acknowledged(history: History) -> None:
    line(history, 0, 1.0, tried_s=1.5)
    line(history, 1, 1.0)
    line(history, 1, 5.0, tried_s=5.5)
    line(history, 2, 6.0)
    assert said(history) == []
    line(history, 3, 6.1)
    assert said(history) == [f"liners got 3 of {LINE} at 6.200 s, before all up to 3 was acknowledged"]


def test_a_fifo_queue_that_gives_what_somebody_still_has_is_found(history: History) -> None:
    line(history, 0, 1.0)
    line(history, 0, 1.2)
    sentence = f"0 of {LINE} was to be invisible until 4.000 s, and liners got it again at 1.300 s"
    assert said(history) == [sentence]
    history.is_timely = False  # a clock that runs fast ends its time earlier
    assert said(history) == []


def test_a_fifo_queue_that_was_acknowledged_up_to_a_message_gives_it_no_more(history: History) -> None:
    line(history, 0, 1.0, tried_s=1.2, confirmed_s=1.3)
    line(history, 1, 2.0, tried_s=2.2)  # nobody heard that it was taken
    line(history, 1, 6.0, tried_s=6.2, confirmed_s=6.3)
    line(history, 0, 6.0)
    assert said(history) == [f"liners had acknowledged {LINE} up to 0, and got that again at 6.100 s"]
    history.keeps_journals = False  # a power cut takes a FIFO group back
    assert said(history) == []
