"""What the other tests wait with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from waiting_for import until, until_async

Waiting = Callable[..., None]


def until_in_a_loop(*args: object, **more: object) -> None:
    asyncio.run(until_async(*args, **more))


@pytest.fixture(params=[until, until_in_a_loop], ids=["thread", "loop"])
def wait(request: pytest.FixtureRequest) -> Waiting:
    return request.param


def test_it_ends_with_the_look_that_finds_the_fact_and_never_without_a_look(wait: Waiting) -> None:
    looks = iter([False, [], 0, "so"])
    wait(lambda: next(looks), "the fourth look")
    assert list(looks) == []
    wait(lambda: True, "at once", limit_s=-1.0)


def test_the_failure_says_what_within_how_long_and_what_there_was_instead(wait: Waiting) -> None:
    with pytest.raises(AssertionError, match=r"^not within 0.05 s: five messages; last seen: \[3\]"):
        wait(lambda: False, "five messages", seen=lambda: [3], limit_s=0.05)


def test_a_fact_without_a_name_is_told_by_its_text(wait: Waiting) -> None:
    def is_copied() -> bool:
        return False

    with pytest.raises(AssertionError, match="^not within 0 s: is_copied"):
        wait(is_copied, limit_s=0.0)
    with pytest.raises(AssertionError, match=r"^not within 0 s: .*lambda: len\(\[\]\) > 0"):
        wait(lambda: len([]) > 0, limit_s=0.0)
