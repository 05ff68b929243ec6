"""Topic and group names: RocketMQ's rules, system topics, retry and dead-letter topics."""

from __future__ import annotations

import re
from typing import Final

from contrailmq.message.errors import MessageError

TOPIC_BYTES_MAX: Final = 127  # record V1 stores the length as a signed byte
LONG_TOPIC_BYTES_MAX: Final = 255  # %RETRY% and %DLQ% topics: group names may have 255 - 7 characters
GROUP_BYTES_MAX: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
_NAME = re.compile(r"[%|a-zA-Z0-9_+-]+\Z")  # '+' is only in pop retry topics, and RocketMQ's table allows it


class SystemTopic:
    """Topics that a broker keeps for itself."""

    AUTO_CREATE: Final = "TBW102"
    SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
    HALF: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
    OP_HALF: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    CHECK_MAX_TIME: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
    TRACE: Final = "RMQ_SYS_TRACE_TOPIC"
    SELF_TEST: Final = "SELF_TEST_TOPIC"
    BENCHMARK: Final = "BenchmarkTest"
    OFFSET_MOVED: Final = "OFFSET_MOVED_EVENT"
    TIMER: Final = "rmq_sys_wheel_timer"
    CHECKPOINT: Final = "CHECKPOINT_TOPIC"
    PREFIX: Final = "rmq_sys_"


# Groups that a broker has from the start, and the one of ours that remembers which dead letters were sent back.
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
RESEND_GROUP: Final = "contrailmq_dlq_resend"

_SYSTEM_TOPICS: Final = frozenset(
    value for name, value in vars(SystemTopic).items() if name.isupper() and name != "PREFIX"
)


def is_system_topic(topic: str) -> bool:
    """Whether the name is one of RocketMQ's fixed system topics; cluster and broker names are a broker's to add."""
    return topic in _SYSTEM_TOPICS or topic.startswith(SystemTopic.PREFIX)


def is_system_group(group: str) -> bool:
    """Whether the group serves brokers or tools, not somebody's consumers."""
    return group in SYSTEM_GROUPS or group == RESEND_GROUP or group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def pop_retry_topic(group: str, topic: str) -> str:
    """Where messages of a topic wait that a group popped and did not acknowledge."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(group: str, topic: str) -> str:
    """The same where enableRetryTopicV2 is on: no two pairs of group and topic have the same one."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def pop_origin_topic(topic: str, group: str) -> str:
    """The topic that messages of a pop retry topic were sent to; any other topic is its own."""
    for separator in "+_":
        if topic.startswith(f"{RETRY_PREFIX}{group}{separator}"):
            return topic[len(RETRY_PREFIX) + len(group) + 1 :]
    return topic


def pop_retry_mark(topic: str) -> str:
    """Which kind of topic this is, as POP's strings say it."""
    if not topic.startswith(RETRY_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def check_topic(topic: str) -> None:
    """Raise `MessageError` unless the name is a legal topic."""
    if not isinstance(topic, str):
        raise _not_text(topic, field="topic", limit=TOPIC_BYTES_MAX)
    limit = LONG_TOPIC_BYTES_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_BYTES_MAX
    _check_name(topic, field="topic", limit=limit)


def names_directory(topic: str) -> bool:
    """Whether a store can keep this topic's queues under its name: a topic may come from anyone, a path may not."""
    return (
        topic not in ("", ".", "..")
        and "/" not in topic
        and "\0" not in topic
        and (topic.isascii() or not any("\ud800" <= character <= "\udfff" for character in topic))
    )


def check_group(group: str) -> None:
    """Raise `MessageError` unless the name is a legal producer or consumer group."""
    if not isinstance(group, str):
        raise _not_text(group, field="group", limit=GROUP_BYTES_MAX)
    _check_name(group, field="group", limit=GROUP_BYTES_MAX)


def _not_text(name: object, *, field: str, limit: int) -> MessageError:
    return MessageError(
        f"the {field} name is {name!r}, of type {type(name).__name__}: give text of 1 to {limit} characters",
        field=field,
    )


def _check_name(name: str, *, field: str, limit: int) -> None:
    if not name or name.isspace():
        raise MessageError(f"the {field} name is blank: give one of 1 to {limit} characters", field=field, size=0)
    if not _NAME.match(name):
        bad = sorted(set(re.sub(r"[%|a-zA-Z0-9_+-]", "", name)))
        raise MessageError(
            f"{field} {name[:64]!r} has forbidden characters {''.join(bad)[:32]!r}: use letters, digits, % | _ -",
            field=field,
        )
    if len(name) > limit:
        raise MessageError(
            f"{field} {name[:64]!r}... has {len(name)} characters, the limit is {limit}: shorten it",
            field=field,
            size=len(name),
            limit=limit,
        )
