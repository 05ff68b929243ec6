"""Counting slaves that have the log: never one of them twice, as far as a master can know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrailmq.store.replication.acknowledged import NOWHERE, Acknowledged


def counting(**slaves: int) -> Acknowledged:
    return Acknowledged(lambda host: slaves.get(host, 0))


def test_nobody_has_anything_at_first() -> None:
    acknowledged = counting(a=1)
    assert acknowledged.furthest == NOWHERE
    assert acknowledged.reached_by(1) == NOWHERE
    assert acknowledged.count(0) == 0


def test_the_kth_best_slave_says_what_k_of_them_have() -> None:
    acknowledged = counting(a=1, b=1, c=1)
    for connection, (host, offset) in enumerate([("a", 300), ("b", 100), ("c", 200)]):
        acknowledged.note(connection, host, offset)
    assert [acknowledged.reached_by(count) for count in (1, 2, 3, 4)] == [300, 200, 100, NOWHERE]
    assert [acknowledged.count(offset) for offset in (0, 100, 101, 200, 300, 301)] == [3, 3, 2, 2, 1, 0]


def test_two_connections_of_one_slave_count_once() -> None:
    """Java counts each socket (ha.md 2.2)."""
    acknowledged = counting(a=1)
    acknowledged.note("old", "a", 70)
    acknowledged.note("new", "a", 90)
    assert acknowledged.count(70) == 1
    assert acknowledged.furthest == 90


def test_two_slaves_on_one_host_count_as_two() -> None:
    acknowledged = counting(a=2)
    acknowledged.note("one", "a", 70)
    acknowledged.note("two", "a", 90)
    assert acknowledged.reached_by(2) == 70


def test_a_stranger_counts_for_nothing() -> None:
    acknowledged = counting(a=1)
    acknowledged.note("backup", "z", 10**9)
    assert acknowledged.furthest == NOWHERE


def test_the_newest_report_counts_also_when_it_is_lower() -> None:
    acknowledged = counting(a=1)
    acknowledged.note(1, "a", 90)
    acknowledged.note(1, "a", 40)
    assert acknowledged.furthest == 40


def test_a_connection_that_is_over_counts_no_more() -> None:
    acknowledged = counting(a=1, b=1)
    acknowledged.note(1, "a", 90)
    acknowledged.note(2, "b", 80)
    acknowledged.drop(1)
    acknowledged.drop("never there")
    assert acknowledged.furthest == 80
    assert acknowledged.reached_by(2) == NOWHERE


def test_a_slave_that_registers_later_counts_from_then_on() -> None:
    members = {"a": 1}
    acknowledged = Acknowledged(lambda host: members.get(host, 0))
    acknowledged.note(1, "a", 50)
    acknowledged.note(2, "a", 60)
    assert acknowledged.count(1) == 1
    members["a"] = 2
    acknowledged.recount()
    assert acknowledged.count(1) == 2


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3)),
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abcde"), st.integers(0, 50)), max_size=40),
    st.integers(0, 51),
)
def test_no_more_are_counted_than_there_are_slaves_and_reports(
    slaves: dict[str, int], reports: list[tuple[int, str, int]], offset: int
) -> None:
    acknowledged = counting(**slaves)
    newest: dict[int, tuple[str, int]] = {}
    for connection, host, reached in reports:
        acknowledged.note(connection, host, reached)
        newest[connection] = (host, reached)
    fit = [host for host, reached in newest.values() if reached >= offset]
    assert acknowledged.count(offset) == sum(min(fit.count(host), count) for host, count in slaves.items())
    for count in range(1, 8):
        assert (acknowledged.reached_by(count) >= offset) == (acknowledged.count(offset) >= count)
