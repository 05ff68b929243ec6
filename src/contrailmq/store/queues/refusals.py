"""Why the log refuses a message: the rules that depend on the message and its topic, in RocketMQ's order.

A refusal is a value, a status with its reason; the reason names the number, the limit and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from contrailmq.message import (
    LONG_TOPIC_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    TOPIC_BYTES_MAX,
    Property,
    SysFlag,
    decode_properties,
    names_directory,
)
from contrailmq.store.base.status import AppendResult, PutStatus
from contrailmq.store.queues.batch_queue_table import INNER_MARK, inner_count
from contrailmq.store.queues.light_queues import LIGHT_PREFIX, light_names, light_units, names_light_queue

QUEUE_ID_MAX: Final = 2**31 - 1  # a record has 32 bits for it, with a sign


def topic_refusal(topic: str, topic_bytes: int, queue_id: int) -> AppendResult | None:
    """The rules that depend on the queue alone (checked once, kept in the QueueState)."""
    limit = LONG_TOPIC_BYTES_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_BYTES_MAX
    if topic and not names_directory(topic):
        return AppendResult(
            PutStatus.MESSAGE_ILLEGAL,
            reason=f"topic {topic[:64]!r} cannot name a directory, and its queues need one: "
            "use letters, digits, % | _ -",
        )
    if 0 < topic_bytes <= limit and 0 <= queue_id <= QUEUE_ID_MAX:
        return None
    return AppendResult(
        PutStatus.MESSAGE_ILLEGAL,
        reason=f"topic of {topic_bytes} bytes (1 to {limit} are allowed) with queue id {queue_id} "
        f"(0 to {QUEUE_ID_MAX} are allowed)",
    )


def code_refusal(tags_code: int) -> AppendResult | None:
    if -(2**63) <= tags_code < 2**63:
        return None
    reason = f"the tags code {tags_code} does not fit into 64 bits: give the hash of the tag"
    return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=reason)


def too_large(what: str, size: int, limit: int) -> str:
    return (
        f"{what} of {size} bytes does not fit, the limit is {limit} "
        "(maxMessageSize + 65536, and mappedFileSizeCommitLog - 8): split it or raise the limits"
    )


def page_cache_busy(held_ms: int, limit_ms: int) -> AppendResult:
    return AppendResult(
        PutStatus.OS_PAGE_CACHE_BUSY,
        reason=f"another put has been writing for {held_ms} ms, the limit is {limit_ms} ms "
        "(osPageCacheBusyTimeOutMills): the disk is slow",
    )


def light_refusal(names: Sequence[str], *, would_be: int, limit: int) -> AppendResult | None:
    """Why a message does not go to these light queues, of which there would be so many then."""
    for name in names:
        if not names_light_queue(name):
            return AppendResult(
                PutStatus.MESSAGE_ILLEGAL,
                reason=f"{name[:64]!r} in INNER_MULTI_DISPATCH is not a light queue: begin it with {LIGHT_PREFIX}, use "
                f"letters, digits, % | _ -, at most {LONG_TOPIC_BYTES_MAX} bytes",
            )
    if len(set(names)) < len(names):
        return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason="INNER_MULTI_DISPATCH names a light queue twice")
    if would_be > limit:
        return AppendResult(
            PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
            reason=f"there would be {would_be} light queues, the limit is {limit} (maxLmqConsumeQueueNum)",
        )
    return None


def inner_refusal(properties: bytes, sys_flag: int, *, is_batch_topic: bool) -> AppendResult | None:
    """Why an inner batch (HookUtils.checkInnerBatch), or what looks like one, is not stored."""
    is_inner = bool(sys_flag & SysFlag.INNER_BATCH)
    if not is_inner and INNER_MARK not in properties:
        return None
    known = decode_properties(properties)
    reason = ""
    if is_inner and not is_batch_topic:
        reason = "inner batches need a topic with queue.type=BatchCQ: send an ordinary batch, or set the attribute"
    elif is_inner and not inner_count(known):
        reason = f"INNER_NUM is {known.get(Property.INNER_NUM, 'missing')!r}: an inner batch holds 1 to 32767 messages"
    elif not is_inner and Property.INNER_NUM in known:
        reason = "INNER_NUM is set but sysFlag says that it is not an inner batch (0x80): leave the property out"
    return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=reason) if reason else None


def light_part_refusal(number: int, topic: str, properties: bytes, *, with_light_queues: bool) -> AppendResult | None:
    """Why a part of a batch cannot name light queues: nobody gives it offsets there."""
    known = decode_properties(properties)
    names = light_names(topic, known)
    if not names or not (with_light_queues or light_units(topic, known)):
        return None
    return AppendResult(
        PutStatus.MESSAGE_ILLEGAL,
        reason=f"part {number} of the batch names light queues (INNER_MULTI_DISPATCH={','.join(names)[:64]!r}), and "
        "only a message by itself gets offsets there: send it alone",
    )


def batch_refusal(count: int, sys_flag: int, *, is_delayed: bool) -> AppendResult | None:
    """Why parts that are stored one by one are not a batch.

    Apache stores parts under the bit of inner batches as they come. Then INNER_NUM and INNER_BASE of any of them would
    be a sender's, and a queue that believes them skips acknowledged messages.
    """
    if sys_flag & SysFlag.INNER_BATCH:
        reason = (
            f"sysFlag {sys_flag:#x} says inner batch (0x80) and the batch came in parts: leave the bit to the broker"
        )
    elif not count or sys_flag & SysFlag.TRANSACTION_MASK or is_delayed:
        reason = "a batch holds at least one message, no transaction and no delay: send those one by one"
    else:
        return None
    return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=reason)


def message_refusal(
    body_bytes: int, properties_bytes: int, size: int, *, body_bytes_max: int, size_max: int
) -> AppendResult | None:
    """The first rule that the message itself breaks."""
    if properties_bytes > PROPERTIES_BYTES_MAX:
        return AppendResult(
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            reason=f"the properties take {properties_bytes} bytes, the limit is {PROPERTIES_BYTES_MAX}: "
            "move data into the body",
        )
    if body_bytes > body_bytes_max:
        return AppendResult(
            PutStatus.MESSAGE_ILLEGAL,
            reason=f"the body has {body_bytes} bytes, the limit is {body_bytes_max} (maxMessageSize): "
            "split the message or raise the limit",
        )
    if size > size_max:
        return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=too_large("a record", size, size_max))
    return None
