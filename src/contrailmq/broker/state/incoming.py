"""A message on its way into the log, and the seam where other parts change it.

`send.py` makes an `IncomingMessage` of every request that needs more than the fast path, and runs the broker's
rewrites over it: delay levels and the timer redirect it to their own topics, transactions make a half message of it. A
rewrite changes the message in place and returns None, or refuses it with a `Refusal`. A message that comes back for a
retry, and a half message that commits, take the same way: either may ask for a delay. What a delay level or the timer
delivers does not: its property string still has DELAY in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from contrailmq.message import Property, StoredMessage, SysFlag, encode_properties, tags_code
from contrailmq.wire.codes import ResponseCode

_HOST_FLAGS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class Refusal(NamedTuple):
    """Why a message is not taken: a response code and a text that names cause, number and remedy."""

    code: ResponseCode
    remark: str


class IncomingMessage:
    """Mutable; owned by the caller that is about to put it."""

    __slots__ = (
        "answer_fields",
        "answer_queue_id",
        "body",
        "born_host",
        "born_time_ms",
        "flag",
        "prepared_transaction_offset",
        "producer_group",
        "properties",
        "queue_id",
        "reconsume_times",
        "store_host",
        "sys_flag",
        "tags_code",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
        *,
        born_host: bytes,
        store_host: bytes,
        born_time_ms: int,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        producer_group: str = "",
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.body = body
        self.properties = properties
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_time_ms = born_time_ms
        self.born_host = born_host
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.producer_group = producer_group
        self.tags_code: int | None = None  # None: the hash of TAGS; a delayed message's slot holds its delivery time
        self.answer_queue_id = queue_id  # what the answer says, also when the message goes to a system queue
        self.answer_fields: dict[str, str] = {}  # more ext fields for the answer (recallHandle)

    @classmethod
    def copy_of(cls, stored: StoredMessage, *, topic: str, queue_id: int, store_host: bytes) -> IncomingMessage:
        """A stored message to be put again elsewhere: body as on disk, same born data, flags and properties."""
        return cls(
            topic,
            queue_id,
            stored.stored_body,
            dict(stored.properties),
            born_host=stored.born_host_bytes,
            store_host=store_host,
            born_time_ms=stored.born_time_ms,
            flag=stored.flag,
            sys_flag=stored.sys_flag & ~_HOST_FLAGS,  # the store sets them again from the hosts
            reconsume_times=stored.reconsume_times,
        )

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(Property.UNIQUE_KEY)

    def effective_tags_code(self) -> int:
        return tags_code(self.properties.get(Property.TAGS)) if self.tags_code is None else self.tags_code

    def encoded_properties(self) -> bytes:
        """MessageError when they are too long or hold a separator."""
        return encode_properties(self.properties)


Rewrite = Callable[[IncomingMessage], Refusal | None]
