"""SQL92 message filters: from the tree to one closure, made once for each subscription.

A property is always a string. Compared with a constant it is converted to the constant's Java type: an integer in int
range is parsed as a 32-bit integer, a larger one as 64 bits, a float as a double, TRUE and FALSE as a boolean. A
conversion that fails makes the *whole* expression a non-match, also inside OR: `NotConvertible` reaches `matches`.
Everything else is three-valued: True, False and None, and a final None is a non-match.

Two edge cases of RocketMQ are kept because clients can see them: when only the right side of `=` is missing the result
is false and not null, and when both are missing it is true (ComparisonExpression of Java).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from contrailmq.broker.filters.sql_parser import (
    All,
    Any,
    Compare,
    Constant,
    InList,
    IsNull,
    Name,
    Negate,
    Node,
    Not,
    TextMatch,
    parse,
)

Properties = Mapping[str, str]
Value = str | int | float | bool | None
Evaluate = Callable[[Properties], Value]
Truth = Callable[[Properties], bool | None]

_INTEGER: Final = re.compile(r"[+-]?\d+", re.ASCII)
# Java's Double.valueOf: surrounding blanks, a trailing f or d, NaN and Infinity; hexadecimal floats are left out.
_DOUBLE: Final = re.compile(
    r"[\x00-\x20]*(?P<number>[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?[\x00-\x20]*"
)
_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1

_ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}
_TEXTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda value, text: text in value,
    "STARTSWITH": lambda value, text: value.startswith(text),
    "ENDSWITH": lambda value, text: value.endswith(text),
}


class NotConvertible(ValueError):
    """A property's text is not of the type that it is compared with."""


class SqlExpression:
    """A compiled filter expression over the properties of a message."""

    __slots__ = ("_truth", "parts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        tree = parse(text)
        self._truth = _truth(tree)
        self.parts = _parts(tree)  # comparisons and the like, each some microseconds for a message

    def matches(self, properties: Properties) -> bool:
        try:
            return self._truth(properties) is True
        except NotConvertible:
            return False


def _parts(node: Node) -> int:
    match node:
        case Constant() | Name():
            return 0
        case All(parts=parts) | Any(parts=parts):
            return sum(map(_parts, parts))
        case Negate(operand=operand) | Not(operand=operand):
            return _parts(operand)
        case IsNull(operand=operand):
            return 1 + _parts(operand)
        case Compare(left=left, right=right):
            return 1 + _parts(left) + _parts(right)
        case InList() | TextMatch():
            return 1


def _value(node: Node) -> Evaluate:
    match node:
        case Constant(value=value):
            return lambda properties: value
        case Name(name=name):
            return lambda properties: properties.get(name)
        case Negate(operand=operand):
            return _negation(_value(operand))
        case _:
            return _truth(node)


def _truth(node: Node) -> Truth:
    match node:
        case Constant(value=value):
            constant = value if isinstance(value, bool) else None
            return lambda properties: constant
        case Name(name=name):
            # A property is a string, and Java's cast makes false of everything that is not a Boolean.
            return lambda properties: None if properties.get(name) is None else False
        case Compare():
            return _comparison(node)
        case IsNull(operand=operand, negated=negated):
            value_of = _value(operand)
            return lambda properties: (value_of(properties) is None) is not negated
        case InList(name=name, values=values, negated=negated):
            return lambda properties: None if (v := properties.get(name)) is None else (v in values) is not negated
        case TextMatch():
            return _text_match(node)
        case Not(operand=operand):
            inner = _truth(operand)
            return lambda properties: None if (v := inner(properties)) is None else not v
        case All(parts=parts):
            return _chain([_truth(part) for part in parts], decisive=False)
        case Any(parts=parts):
            return _chain([_truth(part) for part in parts], decisive=True)
        case Negate():
            raise AssertionError("the parser lets no number stand for a boolean")


def _chain(parts: list[Truth], *, decisive: bool) -> Truth:
    """AND (decided by False) or OR (decided by True) of SQL; the first decisive part ends the evaluation."""

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = not decisive
        for part in parts:
            value = part(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _text_match(node: TextMatch) -> Truth:
    test, name, text, negated = _TEXTS[node.operator], node.name, node.text, node.negated

    def evaluate(properties: Properties) -> bool:
        value = properties.get(name)
        return value is not None and test(value, text) is not negated

    return evaluate


def _negation(operand: Evaluate) -> Evaluate:
    def evaluate(properties: Properties) -> Value:
        value = operand(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return -value

    return evaluate


def _comparison(node: Compare) -> Truth:
    left, right = _value(node.left), _value(node.right)
    if node.operator == "=":
        return lambda properties: _equals(left(properties), right(properties))
    if node.operator == "<>":
        return lambda properties: None if (v := _equals(left(properties), right(properties))) is None else not v
    return _ordering(_ORDERS[node.operator], left, right)


def _ordering(holds: Callable[[int], bool], left: Evaluate, right: Evaluate) -> Truth:
    def evaluate(properties: Properties) -> bool | None:
        a = left(properties)
        if a is None:
            return None
        b = right(properties)
        if b is None:
            return None
        if isinstance(a, str) and isinstance(b, str):
            return holds(_order(_to_double(a), _to_double(b)))
        return holds(_order(a, b))

    return evaluate


def _equals(a: Value, b: Value) -> bool | None:
    if a is None:
        return True if b is None else None
    if b is None:
        return False
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    return _order(a, b) == 0


def _order(a: str | int | float | bool, b: str | int | float | bool) -> int:
    """-1, 0 or 1, after converting the two to one type as Java does; -1 when there is none."""
    if isinstance(a, bool) or isinstance(b, bool):
        if isinstance(a, bool) and isinstance(b, str):
            raise NotConvertible("Java casts the boolean to a string here and fails")
        if isinstance(a, str):
            a = a.lower() == "true"
        if not (isinstance(a, bool) and isinstance(b, bool)):
            return -1
        return (a > b) - (a < b)
    if isinstance(a, str):
        assert not isinstance(b, str)
        a = _to_number(a, like=b)
    elif isinstance(b, str):
        b = _to_number(b, like=a)
    if isinstance(a, int) and isinstance(b, int):
        return (a > b) - (a < b)
    return _order_doubles(float(a), float(b))


def _order_doubles(a: float, b: float) -> int:
    """Double.compareTo: NaN equals itself and is larger than everything else."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) - math.isnan(b)
    return (a > b) - (a < b)


def _to_number(text: str, *, like: int | float) -> int | float:
    if isinstance(like, float):
        return _to_double(text)
    digits = text.lstrip("+-0")  # Python refuses to convert thousands of digits, leading zeros too
    if not _INTEGER.fullmatch(text) or len(digits) > 19:
        raise NotConvertible(text)
    number = int(digits or "0") * (-1 if text[0] == "-" else 1)
    low, high = (_INT_MIN, _INT_MAX) if _INT_MIN <= like <= _INT_MAX else (_LONG_MIN, _LONG_MAX)
    if not low <= number <= high:
        raise NotConvertible(text)
    return number


def _to_double(text: str) -> float:
    found = _DOUBLE.fullmatch(text)
    if found is None:
        raise NotConvertible(text)
    return float(found.group("number"))
