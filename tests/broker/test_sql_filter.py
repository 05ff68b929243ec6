"""SQL92 filters: the grammar, Java's conversions, three-valued logic, and bounds on hostile expressions."""

from __future__ import annotations

import pytest

from contrailmq.broker.filters import SqlError, SqlExpression, SqlFilter, TagFilter, parse_subscription
from contrailmq.broker.filters.sql_parser import DEPTH_MAX
from contrailmq.broker.filters.sql_tokens import EXPRESSION_CHARS_MAX
from contrailmq.message import encode_properties
from contrailmq.message.codec import encode_record

MESSAGE = {"a": "10", "b": "x'y", "t": "TRUE", "f": "5.5", "big": "9999999999", "name": "eu-west", "TAGS": "TagA"}

MATCHES = [
    "a = 10",
    "a=10L",
    "10 = a",
    "a <> 11",
    "a > 9 AND a >= 10 AND a < 11 AND a <= 10",
    "f = 5.5 and f > 5. and f > .5 and f < 5E10",
    "b = 'x''y'",
    "t = TRUE",
    "t = true",
    "big = 9999999999",
    "a BETWEEN 10 AND 12",
    "a NOT BETWEEN 11 AND 12",
    "a between -5 and +12",
    "a > -5",
    "name IN ('us', 'eu-west')",
    "name NOT IN ('us')",
    "name CONTAINS '-w'",
    "name STARTSWITH 'eu'",
    "name ENDSWITH 'west'",
    "name NOT CONTAINS 'zz'",
    "missing IS NULL",
    "a IS NOT NULL",
    "TAGS = 'TagA'",
    "NOT (a = 11)",
    "a = 11 OR a = 10",
    "missing = 1 OR a = 10",
    "a = 10 -- a comment",
    "/* block * / */ a = 10",
    "a = 10 OR a = f",  # short-circuit: the second part would not convert
    "TRUE",
    "a > f",  # two properties are tried as doubles
    "missing = other",  # both missing: Java says equal
    "((((a = 10))))",
]
MISSES = [
    "a = 11",
    "missing = 1",
    "missing <> 1",
    "NOT (missing = 1)",
    "missing > 1",
    "missing IN ('1')",
    "missing NOT IN ('1')",
    "missing NOT CONTAINS 'x'",
    "missing CONTAINS 'x'",
    "b > 10",  # not a number: the whole expression is a non-match
    "b > 10 OR a = 10",
    "f = 5",  # 5.5 is no integer
    "f > 5 OR TRUE",
    "big = 10",  # does not fit the 32 bits of the literal
    "name > a",
    "a",  # a bare property is a string, never true
    "NOT missing",
    "FALSE",
    "NULL",
    "a = 10 AND missing = 1",
    "-a = -10",  # the sign of a string is null
    "TRUE = t",  # Java fails to cast
    "a IS NULL",
]
REFUSED = {
    "": "empty",
    "   ": "empty",
    "a": None,
    "a = ": "expected a property",
    "a == 1": "expected a property",
    "a != 1": "write <>",
    "a > 'x'": "only numbers",
    "a > TRUE": "only numbers",
    "(a = 1) > 2": "only numbers",
    "a = NULL": "IS NULL",
    "a BETWEEN 5 AND 3": "must not be larger",
    "a IN (1, 2)": "a string in quotes",
    "a IN ()": "a string in quotes",
    "'x' IN ('x')": "needs a property",
    "a LIKE 'x%'": "complete before it",
    "a + 1 = 2": "complete before it",
    "'open": "closing quote",
    "/* open": "not closed",
    "(a = 1": "expected ')'",
    "a = 1)": "complete before it",
    "5": "boolean",
    "'x'": "boolean",
    "a = 1 AND 5": "boolean",
    "NOT 5": "boolean",
    "a CONTAINS ''": "not empty",
    "a IS 5": "expected NULL",
    "a = 99999999999999999999": "64-bit",
    "a = 1E999": "double",
    "TRUE = 5": "cannot be compared",
    "a = \x00": "not part",
}


@pytest.mark.parametrize("expression", MATCHES)
def test_expression_matches(expression: str) -> None:
    assert SqlExpression(expression).matches(MESSAGE)


@pytest.mark.parametrize("expression", MISSES)
def test_expression_does_not_match(expression: str) -> None:
    assert not SqlExpression(expression).matches(MESSAGE)


@pytest.mark.parametrize(("expression", "hint"), [(e, h) for e, h in REFUSED.items() if h])
def test_a_mistake_is_refused_when_compiling_and_named(expression: str, hint: str) -> None:
    with pytest.raises(SqlError, match="(?s).*" + hint.replace("(", r"\(").replace(")", r"\)")):
        SqlExpression(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 10_000 + "a=1" + ")" * 10_000,
        "NOT " * 3000 + "a",
        "-" * 4000 + "1 = a",
        "a" + "=1" * 4000,
        "a = 1" + " " * EXPRESSION_CHARS_MAX,
        "a IN (" + ",".join(["'x'"] * 3000) + ")",
    ],
    ids=["parentheses", "not", "signs", "equals", "length", "tokens"],
)
def test_hostile_expressions_are_refused_without_recursion_errors(expression: str) -> None:
    with pytest.raises(SqlError):
        SqlExpression(expression)


LONG = "9" * 10_000  # more digits than Python converts


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (f"a = {LONG}", "larger than a 64-bit integer"),
        (f"a = -{LONG}", "larger than a 64-bit integer"),
        (f"a = {LONG}L", "larger than a 64-bit integer"),
        (f"a = {LONG}.5", "larger than a double"),
        ("a = 1E99999", "larger than a double"),
        (f"a = 1E{LONG}", "larger than a double"),
        (f"a = 1 {LONG}", "unexpected"),
        (f"'{LONG}' > a", "only numbers have an order"),
        (f"{'b' * 10_000} = 1 {'c' * 5_000}", "unexpected"),
        (f"a IN ({LONG})", "a string in quotes"),
    ],
    ids=lambda text: text[:20],
)
def test_a_literal_of_any_length_gets_an_error_of_a_line(expression: str, said: str) -> None:
    with pytest.raises(SqlError, match=said) as caught:
        SqlExpression(expression)
    assert len(str(caught.value)) < 300


def test_a_small_number_with_ten_thousand_zeros_before_it_is_that_number() -> None:
    zeros = "0" * 10_000
    assert SqlExpression(f"a = {zeros}10").matches(MESSAGE)
    assert SqlExpression(f"a = {zeros}").matches({"a": "0"})
    assert SqlExpression("a = 10").matches({"a": f"+{zeros}10"})
    assert SqlExpression("a = -10").matches({"a": f"-{zeros}10"})
    assert not SqlExpression("a = 10").matches({"a": LONG})


def test_a_long_flat_chain_needs_no_depth() -> None:
    chain = " OR ".join(f"a = {n}" for n in range(500))
    assert SqlExpression(chain).matches(MESSAGE)
    assert SqlExpression("(" * (DEPTH_MAX - 4) + "a = 10" + ")" * (DEPTH_MAX - 4)).matches(MESSAGE)


def test_integers_follow_java() -> None:
    expression = SqlExpression("a = 7")
    assert expression.matches({"a": "+7"})
    assert expression.matches({"a": "0" * 40 + "7"})
    assert not expression.matches({"a": " 7"})
    assert not expression.matches({"a": "7L"})
    assert SqlExpression("a = 7.0").matches({"a": " 7d "})
    assert SqlExpression("a > 7.0").matches({"a": "NaN"})


@pytest.mark.parametrize("text", [None, "", "*"])
def test_everything_is_wanted_without_an_expression(text: str | None) -> None:
    subscription = parse_subscription("T", text)
    assert subscription.filter is None
    assert subscription.expression == "*"


def test_tags_become_hashes_whatever_the_client_sent() -> None:
    subscription = parse_subscription("T", "TagA || TagB ||  || TagA", "TAG", version=3)
    assert subscription.tags == ("TagA", "TagB")
    assert subscription.codes == (2598919, 2598920)
    assert isinstance(subscription.filter, TagFilter)
    assert subscription.filter.match_unit(2598919)
    assert not subscription.filter.match_unit(0)
    assert subscription.version == 3


def test_a_tag_expression_without_tags_is_refused() -> None:
    with pytest.raises(SqlError, match="names no tag"):
        parse_subscription("T", " || ")
    with pytest.raises(SqlError, match="TAG or SQL92"):
        parse_subscription("T", "x", "REGEX")


@pytest.mark.parametrize("hosts", [("1.2.3.4", "1.2.3.5"), ("::1", "1.2.3.4"), ("1.2.3.4", "::1"), ("::1", "::2")])
@pytest.mark.parametrize("topic", ["T", "T" * 200])
def test_the_filter_finds_the_properties_inside_a_record(hosts: tuple[str, str], topic: str) -> None:
    from contrailmq.message import encode_host

    record = encode_record(
        topic,
        b"body",
        encode_properties({"a": "1", "region": "eu"}),
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_host=encode_host(hosts[0], 1),
        store_host=encode_host(hosts[1], 2),
        born_time_ms=0,
        store_time_ms=0,
    )
    wanted = parse_subscription(topic, "region = 'eu'", "SQL92").filter
    other = parse_subscription(topic, "region = 'us'", "SQL92").filter
    assert isinstance(wanted, SqlFilter)
    assert isinstance(other, SqlFilter)
    assert wanted.match_record(memoryview(record))
    assert not other.match_record(memoryview(record))
