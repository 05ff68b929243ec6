"""Properties: a flat map of text to text that travels with every message.

    properties := (name 0x01 value 0x02)*          UTF-8, at most 32,767 bytes; the last 0x02 may be missing

Names in upper case are RocketMQ's own (`Property`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from contrailmq.message.errors import MessageError

PROPERTIES_BYTES_MAX: Final = 32_767  # the record stores the length as a signed 16-bit number


class Property:
    """Names of RocketMQ's own properties. Users may not set the reserved ones themselves."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE_ID: Final = "REAL_QID"
    TRANSACTION_PREPARED: Final = "TRAN_MSG"
    PRODUCER_GROUP: Final = "PGROUP"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    BUYER_ID: Final = "BUYER_ID"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG: Final = "TRANSFER_FLAG"
    CORRECTION_FLAG: Final = "CORRECTION_FLAG"
    MQ2_FLAG: Final = "MQ2_FLAG"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MESSAGE_REGION: Final = "MSG_REGION"
    TRACE_SWITCH: Final = "TRACE_ON"
    UNIQUE_KEY: Final = "UNIQ_KEY"
    EXTEND_UNIQUE_INFO: Final = "EXTEND_UNIQ_INFO"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIME: Final = "CONSUME_START_TIME"
    INNER_NUM: Final = "INNER_NUM"
    INNER_BASE: Final = "INNER_BASE"
    DUPLICATE_INFO: Final = "DUP_INFO"
    CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_ID: Final = "__transactionId__"
    TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
    INSTANCE_ID: Final = "INSTANCE_ID"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    ARRIVE_TIME: Final = "ARRIVE_TIME"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    CLUSTER: Final = "CLUSTER"
    MESSAGE_TYPE: Final = "MSG_TYPE"
    POP_CHECKPOINT: Final = "POP_CK"
    POP_CHECKPOINT_OFFSET: Final = "POP_CK_OFFSET"
    FIRST_POP_TIME: Final = "1ST_POP_TIME"
    ORIGIN_GROUP: Final = "ORIGIN_GROUP"
    SHARDING_KEY: Final = "__SHARDINGKEY"
    LITE_TOPIC: Final = "__LITE_TOPIC"
    PRIORITY: Final = "_SYS_MSG_PRIORITY_"
    FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
    REDIRECT: Final = "REDIRECT"
    INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
    TRACE_CONTEXT: Final = "TRACE_CONTEXT"
    TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
    TIMER_OUT_MS: Final = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
    TIMER_DELETE_UNIQUE_KEY: Final = "TIMER_DEL_UNIQKEY"
    TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
    BORN_HOST: Final = "__BORNHOST"
    BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
    DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
    CRC32: Final = "__CRC32#"


RESERVED_PROPERTIES: Final = frozenset(value for name, value in vars(Property).items() if name.isupper())


_NUMBER_DIGITS: Final = 19
_NUMBER_MAX: Final = 2**63 - 1


def natural_number(text: str) -> int | None:
    """A number as properties hold it, in ASCII digits; None if it is not a number.

    The sender chooses the text, and `int` raises for more than 4,300 digits: one that does not fit 64 bits counts as
    the largest that does.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    return min(int(digits or "0"), _NUMBER_MAX) if len(digits) <= _NUMBER_DIGITS else _NUMBER_MAX


_PAIR: Final = "\x01".join


def encode_properties(properties: Mapping[str, str], unique_key: str = "") -> bytes:
    """The property string with its trailing separator, in the map's order (RocketMQ 5.2+ and Go write it so).

    With `unique_key`, which the map must not hold then, as its last one.

    Raises `MessageError` for a name or value that holds a separator: such a property would come back as others.
    """
    last = f"UNIQ_KEY\x01{unique_key}\x02" if unique_key else ""
    try:  # joining also refuses a value that is not text, which formatting would accept
        text = "\x02".join([*map(_PAIR, properties.items()), last])
    except TypeError:
        raise _not_text(properties) from None
    # One count finds a stray separator anywhere; only then is it worth finding out where.
    count = len(properties) + 1 if unique_key else len(properties)
    if text.count("\x02") != count or text.count("\x01") != count:
        for name, value in properties.items():
            if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
                raise MessageError(
                    f"property {name[:64]!r} holds a separator (U+0001 or U+0002): encode the value first",
                    field=f"properties[{name[:64]}]",
                )
    try:
        data = text.encode()
    except UnicodeEncodeError as exc:
        raise MessageError(
            f"the properties hold {text[exc.start]!r}, half of a character, which UTF-8 cannot encode: repair it first",
            field="properties",
        ) from exc
    if len(data) > PROPERTIES_BYTES_MAX:
        raise MessageError(
            f"the properties take {len(data)} bytes, the limit is {PROPERTIES_BYTES_MAX}: move data into the body",
            field="properties",
            size=len(data),
            limit=PROPERTIES_BYTES_MAX,
        )
    return data


def _not_text(properties: Mapping[str, str]) -> MessageError:
    name, value = next(pair for pair in properties.items() if not all(isinstance(part, str) for part in pair))
    return MessageError(
        f"property {name!r} is {value!r}: names and values are text", field=f"properties[{str(name)[:64]}]"
    )


def decode_properties(data: bytes | str | memoryview) -> dict[str, str]:
    """The map behind a property string: tolerant as Java's MessageDecoder.string2messageProperties.

    A piece needs three characters, a name and a value; anything less is dropped. Of two equal names the last wins.
    """
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    properties: dict[str, str] = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


_NO_WAIT: Final = f"{Property.WAIT}\x01false"


def wants_durable(properties: Mapping[str, str]) -> bool:
    """Whether a sender waits until the message is on the disk (SYNC_FLUSH): yes, unless WAIT is exactly `false`.

    Java (Message.isWaitStoreMsgOK) takes every value but `true` for a no. Here a value that is neither costs nobody
    the promise of a disk.
    """
    return properties.get(Property.WAIT) != "false"


def text_wants_durable(text: str) -> bool:
    """The same of a property string. It is decoded only where it may say no: the others take 0.05 us."""
    return _NO_WAIT not in text or wants_durable(decode_properties(text))
