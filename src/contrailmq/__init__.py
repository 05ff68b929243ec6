"""ContrailMQ: RocketMQ for people who live in Python and Spark.

The public names are imported when they are first used: `import contrailmq` alone, which a server, a tool or a Spark
executor does for one module of it, loads no client.
"""

from typing import TYPE_CHECKING, Final

from contrailmq import _compiled as _compiled  # before all others: it decides which of them are compiled
from contrailmq._lazy import lazy_names
from contrailmq._version import __version__

if TYPE_CHECKING:
    from contrailmq.client.blocking.sync import (
        LitePullConsumer,
        Producer,
        PushConsumer,
        SimpleConsumer,
        TransactionProducer,
    )
    from contrailmq.client.blocking.sync_admin import Admin
    from contrailmq.client.consuming.subscription import SqlFilter
    from contrailmq.client.results import (
        ConsumeFromWhere,
        ConsumeResult,
        MessageModel,
        SendResult,
        SendStatus,
        TransactionState,
    )
    from contrailmq.idempotence import idempotent
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
    "SimpleConsumer",
    "SqlFilter",
    "StoredMessage",
    "TransactionProducer",
    "TransactionState",
    "__version__",
    "idempotent",
]

# No public name may be the name of a module in this package: importing that module would put it in the name's place.
_HOMES: Final = {
    "Admin": "contrailmq.client.blocking.sync_admin",
    "ConsumeFromWhere": "contrailmq.client.results",
    "ConsumeResult": "contrailmq.client.results",
    "LitePullConsumer": "contrailmq.client.blocking.sync",
    "Message": "contrailmq.message",
    "MessageModel": "contrailmq.client.results",
    "MessageQueue": "contrailmq.message",
    "Producer": "contrailmq.client.blocking.sync",
    "PushConsumer": "contrailmq.client.blocking.sync",
    "SendResult": "contrailmq.client.results",
    "SendStatus": "contrailmq.client.results",
    "SimpleConsumer": "contrailmq.client.blocking.sync",
    "SqlFilter": "contrailmq.client.consuming.subscription",
    "StoredMessage": "contrailmq.message",
    "TransactionProducer": "contrailmq.client.blocking.sync",
    "TransactionState": "contrailmq.client.results",
    "idempotent": "contrailmq.idempotence",
}

__getattr__, __dir__ = lazy_names(globals(), _HOMES)
