"""What a consumer wants of a topic, and the filter that the store applies for it.

A TAG expression becomes a set of tag hashes, matched against the 20-byte queue unit without touching the log. The
hashes are computed here from the tags: what clients send is wrong for tags beyond ASCII in some languages. An SQL92
expression is compiled once and matched against the properties inside the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from contrailmq.broker.filters.sql_compile import SqlExpression
from contrailmq.broker.filters.sql_tokens import SqlError
from contrailmq.message import decode_properties, tags_code
from contrailmq.message.record import view_record

TAG: Final = "TAG"
SQL92: Final = "SQL92"
ALL: Final = "*"
TAGS_MAX: Final = 4096  # a subscription of this many tags is a mistake, not a wish
PARTS_MAX: Final = 8  # comparisons of an expression that is matched on the loop: 4 us each, 25 ms for 800 messages
TAGS_CHARS_MAX: Final = 128 * 1024  # 32 for each of them


class TagFilter:
    """Passes queue units whose tag hash is wanted; the client compares the real tag."""

    __slots__ = ("_codes",)

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes

    def match_unit(self, tags_code: int, ext: object = None) -> bool:
        return tags_code in self._codes

    def match_record(self, record: memoryview) -> bool:
        return True

    def match_properties(self, properties: bytes) -> bool:
        return True


class SqlFilter:
    """Passes records whose properties satisfy a compiled expression."""

    __slots__ = ("expression",)

    def __init__(self, expression: SqlExpression) -> None:
        self.expression = expression

    def match_unit(self, tags_code: int, ext: object = None) -> bool:
        return True

    def match_record(self, record: memoryview) -> bool:
        return self.expression.matches(decode_properties(view_record(record).properties))

    def match_properties(self, properties: bytes) -> bool:
        return self.expression.matches(decode_properties(properties))


SubscriptionFilter = TagFilter | SqlFilter


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of one group, parsed. `filter` is None when everything is wanted.

    `error` says why an expression cannot be used; nothing is delivered for such a subscription.
    """

    topic: str
    expression: str
    expression_type: str
    version: int
    tags: tuple[str, ...]
    codes: tuple[int, ...]
    filter: SubscriptionFilter | None
    error: str = ""

    @property
    def is_heavy(self) -> bool:
        """Whether matching the 800 messages that one pull may look at would hold up everybody else."""
        return isinstance(self.filter, SqlFilter) and self.filter.expression.parts > PARTS_MAX


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None = None, *, version: int = 0
) -> Subscription:
    """Parse and compile. Raises SqlError, whose text a client may be shown, when the expression is of no use."""
    kind = expression_type or TAG
    text = expression or ALL
    if kind == SQL92:
        return Subscription(topic, text, kind, version, (), (), SqlFilter(SqlExpression(text)))
    if kind != TAG:
        raise SqlError(f"expression type {kind!r} of topic {topic} is not known: use TAG or SQL92")
    if len(text) > TAGS_CHARS_MAX:
        raise SqlError(f"tag expression of topic {topic} has {len(text)} characters, the limit is {TAGS_CHARS_MAX}")
    if text == ALL:
        return Subscription(topic, ALL, TAG, version, (), (), None)
    tags = tuple(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip())))
    if not tags:
        raise SqlError(f"tag expression {text!r} of topic {topic} names no tag")
    if len(tags) > TAGS_MAX:
        raise SqlError(f"tag expression of topic {topic} names {len(tags)} tags, the limit is {TAGS_MAX}")
    codes = tuple(tags_code(tag) for tag in tags)
    return Subscription(topic, text, TAG, version, tags, codes, TagFilter(frozenset(codes)))


def unusable_subscription(
    topic: str, expression: str, expression_type: str, *, version: int, error: str
) -> Subscription:
    """A subscription whose expression was refused: kept, so that its consumers learn why they get nothing."""
    return Subscription(topic, expression, expression_type, version, (), (), None, error)
