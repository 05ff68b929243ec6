"""Which messages a subscription gets: tag hashes and SQL92 over properties."""

from contrailmq.broker.filters.sql_compile import SqlExpression
from contrailmq.broker.filters.sql_tokens import SqlError
from contrailmq.broker.filters.subscription import (
    ALL,
    SQL92,
    TAG,
    SqlFilter,
    Subscription,
    SubscriptionFilter,
    TagFilter,
    parse_subscription,
    unusable_subscription,
)

__all__ = [
    "ALL",
    "SQL92",
    "TAG",
    "SqlError",
    "SqlExpression",
    "SqlFilter",
    "Subscription",
    "SubscriptionFilter",
    "TagFilter",
    "parse_subscription",
    "unusable_subscription",
]
