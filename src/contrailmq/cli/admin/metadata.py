"""Topics, groups, key-values and settings of a cluster as one YAML file, and what differs between two of them.

The file is meant to live in git, so it has no order of its own, no times, and only what people decide: what brokers
create for themselves (system, retry and dead-letter topics) is left out. An entry without `brokers` is for every broker
of the cluster, so one file fits clusters of different sizes; where brokers differ, a name has several entries. A field
that an entry leaves out has RocketMQ's default.

`desired` and `present` below are the same type, `State`, keyed by broker: a difference is then a comparison of tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from contrailmq.client.admin.admin_topics import ORDER_TOPICS
from contrailmq.client.errors import did_you_mean
from contrailmq.message import DLQ_PREFIX, RETRY_PREFIX, ContrailError, is_system_group
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from contrailmq.wire.bodies import TopicConfig

if TYPE_CHECKING:
    from contrailmq import Admin

FORMAT: Final = 1
# Of the hundreds that a broker has, those that operators set for a whole cluster and brokers change while they run.
SETTINGS: Final = (
    "autoCreateSubscriptionGroup", "autoCreateTopicEnable", "brokerPermission", "defaultTopicQueueNums", "deleteWhen",
    "diskMaxUsedSpaceRatio", "enablePropertyFilter", "fileReservedTime", "inSyncReplicas", "maxMessageSize",
    "slaveReadEnable", "timerMaxDelaySec", "traceOn", "transactionCheckInterval", "transactionCheckMax",
    "transactionTimeOut",
)  # fmt: skip
Scalar = str | int | float | bool


class TopicEntry(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, frozen=True):
    name: str
    brokers: tuple[str, ...] = ()
    read_queues: int
    write_queues: int
    permission: int = 6
    order: bool = False
    filter: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: dict[str, str] = {}


class GroupEntry(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, frozen=True):
    name: str
    brokers: tuple[str, ...] = ()
    retries: int = 16
    retry_queues: int = 1
    consume: bool = True
    orderly: bool = False
    broadcast: bool = True
    from_min: bool = True
    timeout_minutes: int = 15
    notify_members: bool = True
    sys_flag: int = 0
    retry_policy: dict[str, object] | None = None  # RocketMQ's own
    attributes: dict[str, str] = {}


class Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    format: int = FORMAT
    topics: list[TopicEntry] = []
    groups: list[GroupEntry] = []
    kv: dict[str, dict[str, str]] = {}
    settings: dict[str, dict[str, Scalar]] = {}  # by broker


@dataclass(slots=True)
class State:
    """What a cluster has, or should have. Entries here name no brokers: they are under them."""

    brokers: list[str]
    topics: dict[tuple[str, str], TopicEntry] = field(default_factory=dict)  # by topic and broker
    groups: dict[tuple[str, str], GroupEntry] = field(default_factory=dict)  # by group and broker
    kv: dict[tuple[str, str], str] = field(default_factory=dict)  # by namespace and key
    settings: dict[tuple[str, str], str] = field(default_factory=dict)  # by broker and key


E = TypeVar("E", TopicEntry, GroupEntry)


def state_of(admin: Admin, namespaces: Iterable[str] = ()) -> State:
    """What the cluster has now. NameServers do not list their namespaces: that of order topics is always asked for.

    Raises ContrailError while a master is away: a file without what it has would look whole.
    """
    masters = admin.masters()
    if away := sorted(set(admin.cluster().broker_addr_table) - set(masters)):
        raise ContrailError(
            f"the master of {', '.join(away)} is away, and its topics and groups with it: start it first"
        )
    state = State(sorted(masters))
    system = set(admin.system_topics())
    for broker, topics in admin.topic_configs().items():
        for name, config in topics.items():
            if name not in system and not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                state.topics[name, broker] = _topic_entry(config)
    for broker, groups in admin.group_configs().items():
        for name, group in groups.items():
            if broker in masters and not is_system_group(name):
                state.groups[name, broker] = _group_entry(group)
    for namespace in sorted({ORDER_TOPICS, *namespaces}):
        for key, text in admin.list_kv(namespace).items():
            state.kv[namespace, key] = text
    for broker, address in masters.items():
        said = admin.broker_config(address)
        state.settings.update(((broker, key), said[key]) for key in SETTINGS if key in said)
    return state


def document_of(state: State) -> Document:
    """As few entries as say the same."""
    derived = _order_keys(state)
    document = Document(topics=_entries(state.topics, state.brokers), groups=_entries(state.groups, state.brokers))
    for (namespace, key), text in sorted(state.kv.items()):
        if derived.get((namespace, key)) != text:
            document.kv.setdefault(namespace, {})[key] = text
    for (broker, key), text in sorted(state.settings.items()):
        document.settings.setdefault(broker, {})[key] = _scalar(text)
    return document


def desired_state(document: Document, brokers: list[str]) -> State:
    """What the document wants of a cluster with these brokers. Raises ContrailError where it contradicts itself."""
    state = State(brokers)
    _spread("topic", document.topics, state.topics, brokers)
    _spread("group", document.groups, state.groups, brokers)
    state.kv = {(space, key): text for space, texts in document.kv.items() for key, text in texts.items()}
    state.kv = _order_keys(state) | state.kv
    for broker, values in document.settings.items():
        _require_broker(broker, "settings", brokers)
        state.settings.update(((broker, key), _text(value)) for key, value in values.items())
    return state


def read_document(data: bytes, where: str) -> Document:
    import msgspec.yaml

    try:
        document = msgspec.yaml.decode(data, type=Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        reason = " ".join(str(exc).split())
        raise ContrailError(f"{where} is no file of `contrailmq admin export`: {reason}") from exc
    if document.format != FORMAT:
        raise ContrailError(f"{where} has format {document.format}, this version reads format {FORMAT}")
    return document


def written(document: Document) -> str:
    import msgspec.yaml

    return msgspec.yaml.encode(document).decode()


# --- between tables and entries


def _entries(table: Mapping[tuple[str, str], E], brokers: list[str]) -> list[E]:
    """Entries that are equal on several brokers become one."""
    kinds: dict[str, list[tuple[E, list[str]]]] = {}
    for (name, broker), entry in sorted(table.items(), key=lambda item: item[0]):
        known = kinds.setdefault(name, [])
        same = next((on for other, on in known if other == entry), None)
        if same is None:
            known.append((entry, [broker]))
        else:
            same.append(broker)
    return [
        msgspec.structs.replace(entry, brokers=() if on == brokers else tuple(on))
        for name in sorted(kinds)
        for entry, on in kinds[name]
    ]


def _spread(what: str, entries: Iterable[E], table: dict[tuple[str, str], E], brokers: list[str]) -> None:
    for entry in entries:
        for broker in entry.brokers or brokers:
            _require_broker(broker, f"{what} {entry.name}", brokers)
            if (entry.name, broker) in table:
                raise ContrailError(f"the file has {what} {entry.name} twice for broker {broker}: keep one of the two")
            table[entry.name, broker] = msgspec.structs.replace(entry, brokers=())


def _require_broker(broker: str, what: str, brokers: list[str]) -> None:
    if broker not in brokers:
        hint = did_you_mean(broker, brokers) or f": it has {', '.join(brokers)}"
        raise ContrailError(f"{what}: no broker {broker} is registered at the NameServer{hint}")


def _order_keys(state: State) -> dict[tuple[str, str], str]:
    """What the NameServers hold because of order topics: it follows from the topics."""
    queues: dict[str, list[str]] = {}
    for (name, broker), entry in sorted(state.topics.items()):
        if entry.order:
            queues.setdefault(name, []).append(f"{broker}:{entry.write_queues}")
    return {(ORDER_TOPICS, name): ";".join(parts) for name, parts in queues.items()}


def _topic_entry(config: TopicConfig) -> TopicEntry:
    return TopicEntry(
        name=config.topic_name,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permission=config.perm,
        order=config.order,
        # msgspec leaves out a default by identity, and what came over the wire is another string.
        filter=sys.intern(str(config.topic_filter_type)),
        sys_flag=config.topic_sys_flag,
        attributes=dict(sorted(config.attributes.items())),
    )


def topic_config(entry: TopicEntry) -> TopicConfig:
    return TopicConfig(
        topic_name=entry.name,
        read_queue_nums=entry.read_queues,
        write_queue_nums=entry.write_queues,
        perm=entry.permission,
        order=entry.order,
        topic_filter_type=entry.filter,
        topic_sys_flag=entry.sys_flag,
        attributes=entry.attributes,
    )


_OWN_POLICY: Final = {"type": "CUSTOMIZED"}
_GROUP_FIELDS: Final = {
    "retries": "retry_max_times",
    "retry_queues": "retry_queue_nums",
    "consume": "consume_enable",
    "orderly": "consume_message_orderly",
    "broadcast": "consume_broadcast_enable",
    "from_min": "consume_from_min_enable",
    "timeout_minutes": "consume_timeout_minute",
    "notify_members": "notify_consumer_ids_changed_enable",
    "sys_flag": "group_sys_flag",
    "retry_policy": "group_retry_policy",
    "attributes": "attributes",
}


def _group_entry(config: SubscriptionGroupConfig) -> GroupEntry:
    values = {ours: getattr(config, theirs) for ours, theirs in _GROUP_FIELDS.items()}
    if values["retry_policy"] in ({}, _OWN_POLICY):
        values["retry_policy"] = None
    return GroupEntry(name=config.group_name, **values)


def group_config(entry: GroupEntry, present: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
    """With what the entry does not say as the broker has it."""
    config = present or SubscriptionGroupConfig(group_name=entry.name)
    changes = {theirs: getattr(entry, ours) for ours, theirs in _GROUP_FIELDS.items() if ours != "attributes"}
    changes |= {"group_retry_policy": entry.retry_policy or _OWN_POLICY}
    return msgspec.structs.replace(config, **changes, attributes=_attribute_changes(entry, config))


def _attribute_changes(entry: GroupEntry, present: SubscriptionGroupConfig) -> dict[str, str]:
    """As brokers take them: `+name` sets, `-name` removes; nothing said, nothing changed."""
    wanted = {f"+{name}": text for name, text in entry.attributes.items() if present.attributes.get(name) != text}
    return wanted | {f"-{name}": "" for name in present.attributes if name not in entry.attributes}


def _scalar(text: str) -> Scalar:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isascii() and text.isdigit() and str(int(text)) == text else text


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
