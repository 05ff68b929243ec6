"""The properties of a half message as text: what a prepared message gets, and what it loses when it is committed.

    prepared := ... TRAN_MSG=true ...
    half     := prepared, what a broker adds to every message, __transactionId__, REAL_TOPIC, REAL_QID
    visible  := half without REAL_TOPIC and REAL_QID

Nearly every prepared message becomes a half message by an addition at the end of its property string, and a visible one
by its removal; nothing is decoded. A message with properties of an earlier life in it is changed as a map instead
(transactions/halves.py).
"""

from __future__ import annotations

from typing import Final

from contrailmq.message import Property
from contrailmq.message.property_text import without

_PREPARED: Final = f"{Property.TRANSACTION_PREPARED}\x01true\x02"
_REAL: Final = "REAL_"  # with which the names of the real place begin
_REAL_NAMES: Final = (Property.REAL_TOPIC.encode(), Property.REAL_QUEUE_ID.encode())
_TRANSACTION_ID: Final = f"{Property.TRANSACTION_ID}\x01".encode()
_REAL_TOPIC: Final = f"{Property.REAL_TOPIC}\x01".encode()
_REAL_QUEUE_ID: Final = f"\x02{Property.REAL_QUEUE_ID}\x01".encode()


def rest_of_prepared(text: str) -> str | None:
    """What a prepared message says besides being one; None when it is not one, or has what a half message gets."""
    start = text.find(_PREPARED)
    if start < 0 or (start and text[start - 1] != "\x02") or _REAL in text or Property.TRANSACTION_ID in text:
        return None
    return text[:start] + text[start + len(_PREPARED) :]


def half_addition(topic: str, queue_id: int, unique_key: str) -> bytes:
    """What the property string of a prepared message for this queue gets at its end."""
    return b"%b%b\x02%b" % (_TRANSACTION_ID, unique_key.encode(), real_place(topic, queue_id))


def real_place(topic: str, queue_id: int) -> bytes:
    """The properties that say where a half message is meant to go."""
    return b"%b%b%b%d\x02" % (_REAL_TOPIC, topic.encode(), _REAL_QUEUE_ID, queue_id)


def visible_properties(half: bytes, topic: str, queue_id: int) -> bytes:
    """Those of the message that a half message for this queue becomes."""
    properties = half.removesuffix(real_place(topic, queue_id))
    return without(half, _REAL_NAMES) if len(properties) == len(half) else properties
