"""What a consumer wants of a topic: tags or an SQL92 expression, and the form that brokers get."""

from __future__ import annotations

from dataclasses import dataclass, field

from contrailmq.client.errors import ClientConfigError
from contrailmq.message import java_hash
from contrailmq.wire.bodies import SubscriptionData

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A filter over message properties: `SqlFilter("region = 'eu' AND amount > 10")`.

    The broker needs `enablePropertyFilter`; it checks the expression when the consumer starts.
    """

    expression: str

    def __post_init__(self) -> None:
        if not self.expression.strip():
            raise ClientConfigError("an SQL filter needs an expression; to get every message subscribe with '*'")


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a consumer, as sent in heartbeats. A newer `version` replaces an older one at the broker."""

    topic: str
    expression: str = ALL
    expression_type: str = TAG
    version: int = 0
    tags: frozenset[str] = field(default_factory=frozenset)

    @property
    def tag_codes(self) -> list[int]:
        return sorted(java_hash(tag) for tag in self.tags)

    def wants(self, tags: str | None) -> bool:
        """The exact check that brokers leave to clients: they compare 32-bit hashes only."""
        return not self.tags or tags in self.tags

    def as_body(self) -> SubscriptionData:
        return SubscriptionData(
            code_set=self.tag_codes,
            expression_type=self.expression_type,
            sub_string=self.expression,
            sub_version=self.version,
            tags_set=sorted(self.tags),
            topic=self.topic,
        )


def make_subscription(topic: str, wanted: str | SqlFilter | None, *, version: int) -> Subscription:
    """From what a user writes: `"*"`, `"paid || shipped"`, None, or an `SqlFilter`."""
    if isinstance(wanted, SqlFilter):
        _check_text(topic, wanted.expression)
        return Subscription(topic, wanted.expression, SQL92, version)
    text = (wanted or ALL).strip() or ALL
    _check_text(topic, text)
    if text == ALL:
        return Subscription(topic, ALL, TAG, version)
    tags = frozenset(part for piece in text.split("||") if (part := piece.strip()))
    if not tags:
        raise ClientConfigError(f"subscription {text!r} to topic {topic!r} names no tag: write 'A || B' or '*'")
    return Subscription(topic, text, TAG, version, tags)


def _check_text(topic: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise ClientConfigError(
            f"the subscription to topic {topic!r} holds {text[exc.start]!r}, half of a character, which UTF-8 "
            "cannot encode: repair the text first"
        ) from exc
