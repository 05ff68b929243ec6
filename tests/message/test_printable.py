"""Text of others on a terminal: nothing in it may act, and everything that is only text stays as it is."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrailmq.message import printable, printable_json, printable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢字 🙂", "plain ü 漢字 🙂"),
        ("\x1b[2J\x1b]0;owned\x07", "\\x1b[2J\\x1b]0;owned\\x07"),
        ("one\r\ntwo\tthree", "one\\r\\ntwo\\tthree"),
        ("\x9b31m", "\\x9b31m"),
        ("\x7f", "\\x7f"),
        ("abc\u202edef", "abc\\u202edef"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
        (b"\xff\x1b[0m", "\\xff\\x1b[0m"),
        ("grüße".encode(), "grüße"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text: str | bytes, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_nothing_that_acts_is_left(text: str) -> None:
    shown = printable(text)
    assert not [char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    assert shown.encode().decode() == shown


def test_lines_stay_where_they_are_wanted() -> None:
    assert printable_lines("Traceback:\n\tx\x1b[31m\n") == "Traceback:\n\tx\\x1b[31m\n"


@given(st.dictionaries(st.text(), st.text()))
def test_json_means_the_same_and_is_safe(value: dict[str, str]) -> None:
    document = json.dumps(value, ensure_ascii=False, indent=2)
    shown = printable_json(document)
    assert json.loads(shown) == value
    assert not [char for char in shown if unicodedata.category(char) in ("Cc", "Cs") and char != "\n"]
