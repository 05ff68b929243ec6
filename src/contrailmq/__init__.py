"""ContrailMQ: RocketMQ for people who live in Python and Spark."""

from contrailmq._version import __version__
from contrailmq.client.results import (
    ConsumeFromWhere,
    ConsumeResult,
    MessageModel,
    SendResult,
    SendStatus,
    TransactionState,
)
from contrailmq.client.subscription import SqlFilter
from contrailmq.client.sync import LitePullConsumer, Producer, PushConsumer, TransactionProducer
from contrailmq.client.sync_admin import Admin
from contrailmq.idempotent import idempotent
from contrailmq.message import Message, MessageQueue, StoredMessage

if not __debug__:
    # Invariants of the store and the wire are asserts: without them a broken invariant would be written to disk.
    raise RuntimeError("contrailmq needs asserts: start Python without -O and without PYTHONOPTIMIZE")

__all__ = [
    "Admin",
    "ConsumeFromWhere",
    "ConsumeResult",
    "LitePullConsumer",
    "Message",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "PushConsumer",
    "SendResult",
    "SendStatus",
    "SqlFilter",
    "StoredMessage",
    "TransactionProducer",
    "TransactionState",
    "__version__",
    "idempotent",
]
