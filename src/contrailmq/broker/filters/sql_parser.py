"""SQL92 message filters: a recursive descent from tokens to a small tree. Its depth is capped, because walks recurse.

    or         := and (OR and)*                    and     := equality (AND equality)*
    equality   := comparison (("=" | "<>") comparison | IS [NOT] NULL)*
    comparison := unary ((">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary
                         | [NOT] IN "(" string ("," string)* ")"
                         | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string)*
    unary      := ("+" | "-" | NOT) unary | primary          primary := literal | identifier | "(" or ")"

NOT binds tighter than a comparison, as in RocketMQ: `NOT a = 1` means `(NOT a) = 1`. What RocketMQ refuses to compile
is refused here too, so a consumer learns of a mistake when it subscribes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contrailmq.broker.filters.sql_tokens import SqlError, Token, TokenKind, shortened, tokenize

DEPTH_MAX: Final = 64  # parentheses, signs, NOT and chained comparisons
LONG_MAX: Final = 2**63 - 1
LONG_DIGITS_MAX: Final = 19


@dataclass(frozen=True, slots=True)
class Constant:
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Name:
    """A message property."""

    name: str


@dataclass(frozen=True, slots=True)
class Negate:
    operand: Node


@dataclass(frozen=True, slots=True)
class Compare:
    operator: str  # = <> > >= < <=
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Node
    negated: bool


@dataclass(frozen=True, slots=True)
class InList:
    name: str
    values: frozenset[str]
    negated: bool


@dataclass(frozen=True, slots=True)
class TextMatch:
    operator: str  # CONTAINS STARTSWITH ENDSWITH
    name: str
    text: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Not:
    operand: Node


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Any:
    parts: tuple[Node, ...]


Node = Constant | Name | Negate | Compare | IsNull | InList | TextMatch | Not | All | Any
_BOOLEAN_NODES: Final = (Compare, IsNull, InList, TextMatch, Not, All, Any)
_ORDER: Final = frozenset((">", ">=", "<", "<="))
_TEXT: Final = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))


def parse(expression: str) -> Node:
    """The tree of a boolean expression, or SqlError."""
    tokens = tokenize(expression)
    if tokens[0].kind is TokenKind.END:
        raise SqlError("the filter expression is empty")
    parser = _Parser(tokens)
    node = parser.disjunction()
    parser.expect_end()
    return _as_boolean(node, "the expression")


def _is_boolean(node: Node) -> bool:
    return isinstance(node, _BOOLEAN_NODES) or (
        isinstance(node, Constant) and (node.value is None or isinstance(node.value, bool))
    )


def _as_boolean(node: Node, what: str) -> Node:
    """A bare property may stand for a boolean; a number or a string may not."""
    if isinstance(node, Name) or _is_boolean(node):
        return node
    raise SqlError(f"{what} does not give a boolean: {_show(node)}")


def _show(node: Node) -> str:
    match node:
        case Constant(value=value):
            return shortened(repr(value))
        case Name(name=name):
            return shortened(name)
        case _:
            return type(node).__name__


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def expect_end(self) -> None:
        token = self._tokens[self._at]
        if token.kind is not TokenKind.END:
            raise SqlError(
                f"unexpected {shortened(token.text)!r} at {token.position}: the expression was complete before it"
            )

    def disjunction(self) -> Node:
        return self._chain("OR", self._conjunction, Any)

    def _conjunction(self) -> Node:
        return self._chain("AND", self._equality, All)

    def _chain(self, keyword: str, part: Callable[[], Node], join: Callable[[tuple[Node, ...]], Node]) -> Node:
        """One flat node for `x OR y OR z`, so that a long chain needs no deep recursion."""
        parts = [part()]
        while self._take_keyword(keyword):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return join(tuple(_as_boolean(node, f"an operand of {keyword}") for node in parts))

    def _equality(self) -> Node:
        depth = self._depth
        left = self._comparison()
        while True:
            if operator := self._take_operator("=", "<>"):
                self._enter()
                right = self._comparison()
                left = _equal(operator, left, right)
            elif self._take_keyword("IS"):
                self._enter()
                negated = self._take_keyword("NOT")
                self._need_keyword("NULL")
                left = IsNull(left, negated)
            else:
                self._depth = depth
                return left

    def _comparison(self) -> Node:
        depth = self._depth
        left = self._unary()
        while True:
            if operator := self._take_operator(*_ORDER):
                self._enter()
                left = _ordered(operator, left, self._unary())
                continue
            token = self._tokens[self._at]
            after = self._tokens[self._at + 1] if token.text == "NOT" and token.kind is TokenKind.KEYWORD else token
            if after.kind is not TokenKind.KEYWORD or after.text not in _TEXT | {"BETWEEN", "IN"}:
                self._depth = depth
                return left
            self._enter()
            negated = after is not token
            self._at += 2 if negated else 1
            left = self._predicate(after, left, negated)

    def _predicate(self, keyword: Token, left: Node, negated: bool) -> Node:
        if keyword.text == "BETWEEN":
            low = self._unary()
            self._need_keyword("AND")
            return _between(left, low, self._unary(), negated)
        if not isinstance(left, Name):
            raise SqlError(f"{keyword.text} at {keyword.position} needs a property on its left, got {_show(left)}")
        if keyword.text == "IN":
            return InList(left.name, self._string_list(), negated)
        text = self._need_string(keyword.text)
        if not text:
            raise SqlError(f"{keyword.text} at {keyword.position} needs a text that is not empty")
        return TextMatch(keyword.text, left.name, text, negated)

    def _unary(self) -> Node:
        depth = self._depth
        self._enter()
        node: Node
        if self._take_operator("+"):
            node = self._unary()
        elif self._take_operator("-"):
            node = Negate(self._unary())
        elif self._take_keyword("NOT"):
            node = Not(_as_boolean(self._unary(), "the operand of NOT"))
        else:
            node = self._primary()
        self._depth = depth
        return node

    def _primary(self) -> Node:
        token = self._tokens[self._at]
        self._at += 1
        match token.kind, token.text:
            case TokenKind.STRING, text:
                return Constant(text)
            case TokenKind.INTEGER, text:
                return Constant(_integer(text))
            case TokenKind.FLOAT, text:
                return Constant(_float(text))
            case TokenKind.IDENTIFIER, name:
                return Name(name)
            case TokenKind.KEYWORD, ("TRUE" | "FALSE") as text:
                return Constant(text == "TRUE")
            case TokenKind.KEYWORD, "NULL":
                return Constant(None)
            case TokenKind.OPERATOR, "(":
                node = self.disjunction()
                if not self._take_operator(")"):
                    raise self._unexpected("')'")
                return node
        self._at -= 1
        raise self._unexpected("a property, a literal or '('")

    def _string_list(self) -> frozenset[str]:
        if not self._take_operator("("):
            raise self._unexpected("'(' after IN")
        values = [self._need_string("IN")]
        while self._take_operator(","):
            values.append(self._need_string("IN"))
        if not self._take_operator(")"):
            raise self._unexpected("')' or ',' in the list of IN")
        return frozenset(values)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SqlError(f"filter expression is nested deeper than {DEPTH_MAX}")

    def _take_operator(self, *operators: str) -> str:
        token = self._tokens[self._at]
        if token.kind is TokenKind.OPERATOR and token.text in operators:
            self._at += 1
            return token.text
        return ""

    def _take_keyword(self, keyword: str) -> bool:
        token = self._tokens[self._at]
        if token.kind is TokenKind.KEYWORD and token.text == keyword:
            self._at += 1
            return True
        return False

    def _need_keyword(self, keyword: str) -> None:
        if not self._take_keyword(keyword):
            raise self._unexpected(keyword)

    def _need_string(self, keyword: str) -> str:
        token = self._tokens[self._at]
        if token.kind is not TokenKind.STRING:
            raise self._unexpected(f"a string in quotes after {keyword}")
        self._at += 1
        return token.text

    def _unexpected(self, wanted: str) -> SqlError:
        token = self._tokens[self._at]
        shown = shortened(token.text) or token.kind.value
        return SqlError(f"expected {wanted} at {token.position}, found {shown!r}")


def _integer(text: str) -> int:
    digits = text.rstrip("lL").lstrip("0") or "0"
    # The length comes first: Python refuses to convert thousands of digits.
    if len(digits) > LONG_DIGITS_MAX or int(digits) > LONG_MAX:
        raise SqlError(f"{shortened(text)} is larger than a 64-bit integer")
    return int(digits)


def _float(text: str) -> float:
    value = float(text)
    if value == float("inf"):
        raise SqlError(f"{shortened(text)} is larger than a double")
    return value


def _equal(operator: str, left: Node, right: Node) -> Node:
    for side in (left, right):
        if isinstance(side, Constant) and side.value is None:
            raise SqlError(f"NULL cannot be compared with {operator}: write IS NULL or IS NOT NULL")
    if (
        isinstance(left, Constant)
        and isinstance(right, Constant)
        and isinstance(left.value, bool)
        and not isinstance(right.value, bool)
    ):
        raise SqlError(f"{_show(left)} cannot be compared with {_show(right)}")
    return Compare(operator, left, right)


def _ordered(operator: str, left: Node, right: Node) -> Node:
    for side in (left, right):
        if _is_boolean(side) or (isinstance(side, Constant) and isinstance(side.value, str)):
            raise SqlError(f"{_show(side)} cannot be compared with {operator}: only numbers have an order")
    return Compare(operator, left, right)


def _between(value: Node, low: Node, high: Node, negated: bool) -> Node:
    if isinstance(low, Constant) and isinstance(high, Constant):
        numbers = (low.value, high.value)
        if not negated and all(isinstance(n, int | float) for n in numbers) and numbers[0] > numbers[1]:  # type: ignore[operator]
            raise SqlError(f"BETWEEN {numbers[0]} AND {numbers[1]}: the first must not be larger than the second")
    if negated:
        return Any((_ordered("<", value, low), _ordered(">", value, high)))
    return All((_ordered(">=", value, low), _ordered("<=", value, high)))
