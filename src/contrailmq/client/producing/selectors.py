"""Ready-made queue selectors for `producer.send(message, selector=..., arg=...)`.

A selector is any function `(queues, message, arg) -> queue`. The list has a stable order, but its length changes when a
broker leaves: strict order over such a change needs an order topic (see the NameServer's ORDER_TOPIC_CONFIG).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from contrailmq.client.errors import ClientConfigError
from contrailmq.message import Message, MessageQueue, java_hash

Selector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]


def by_hash(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
    """Equal arguments, equal queue: Java's hash of the text, so that Java producers agree on strings and integers."""
    return queues[abs(_java_remainder(_argument_hash(arg), len(queues)))]


def by_random(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
    return random.choice(queues)


def by_machine_room(rooms: Sequence[str]) -> Selector:
    """Only queues of brokers named `room@name` in the given rooms, chosen by the hash of the argument."""
    wanted = frozenset(rooms)

    def select(queues: Sequence[MessageQueue], message: Message, arg: object) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in wanted]
        if not near:
            raise ClientConfigError(f"no queue of topic {message.topic!r} is in the rooms {sorted(wanted)}")
        return by_hash(near, message, arg)

    return select


def _argument_hash(arg: object) -> int:
    """Java's hashCode for the types that have an equal there; str() of everything else."""
    if isinstance(arg, bool):
        return 1231 if arg else 1237
    if isinstance(arg, int) and -(2**31) <= arg < 2**31:
        return arg  # Integer.hashCode; a Java long of the same small non-negative value hashes to it too
    if isinstance(arg, int) and -(2**63) <= arg < 2**63:
        folded = ((arg & (2**64 - 1)) ^ ((arg & (2**64 - 1)) >> 32)) & 0xFFFFFFFF
        return folded - 2**32 if folded >= 2**31 else folded
    return java_hash(str(arg))


def _java_remainder(value: int, modulus: int) -> int:
    """Java's `%` takes the sign of the dividend."""
    return value % modulus if value >= 0 else -(-value % modulus)
