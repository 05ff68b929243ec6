"""Topics of a broker: how many queues, which permissions, and how unknown ones are created.

A `Topic` is frozen and carries what the hot path asks for, computed once. `TopicTable` owns the dictionary, its data
version and the JSON form of `topics.json`; registration and persistence listen for changes.

Auto-creation follows the reference: the request names a template (TBW102 as a rule), which must exist and have the
INHERIT bit; the new topic gets the smaller of the queues asked for and the template's, and its permissions without
INHERIT.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from contrailmq.broker.state import config_files
from contrailmq.broker.state.client_bound import ClientBound
from contrailmq.broker.state.config_files import DataVersion, Json
from contrailmq.message import RETRY_PREFIX, ContrailError, SysFlag, SystemTopic, is_system_topic

log = logging.getLogger("contrailmq.broker")

INHERIT: Final = 1
WRITE: Final = 2
READ: Final = 4
PERM_MAX: Final = 7

UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2

QUEUES_MAX: Final = 65_536  # per topic; beyond it a mistyped number would fill the queue directory
SINGLE_TAG: Final = "SINGLE_TAG"
MULTI_TAG: Final = "MULTI_TAG"

# Producers may read these but the broker alone writes them.
NOT_FOR_SENDING: Final = frozenset(
    (
        SystemTopic.SCHEDULE,
        SystemTopic.HALF,
        SystemTopic.OP_HALF,
        SystemTopic.CHECK_MAX_TIME,
        SystemTopic.TIMER,  # with properties that say where to: any topic, without its checks
        SystemTopic.SELF_TEST,
        SystemTopic.OFFSET_MOVED,
    )
)


class TopicError(ContrailError):
    """The topic cannot be created or changed as asked; the text says which value and what is allowed."""


class Topic:
    """One topic's configuration. Frozen: a change makes a new one."""

    __slots__ = (
        "_entry",
        "attributes",
        "filter_type",
        "is_by_priority",
        "is_inherited",
        "is_lite",
        "is_plain",
        "is_readable",
        "is_writable",
        "name",
        "order",
        "perm",
        "queue_limit",
        "read_queues",
        "set_flags",
        "sys_flag",
        "takes_inner_batches",
        "write_queues",
    )

    def __init__(
        self,
        name: str,
        *,
        read_queues: int = 16,
        write_queues: int = 16,
        perm: int = READ | WRITE,
        filter_type: str = SINGLE_TAG,
        sys_flag: int = 0,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.read_queues = read_queues
        self.write_queues = write_queues
        self.perm = perm
        self.filter_type = filter_type
        self.sys_flag = sys_flag
        self.order = order
        self.attributes: Mapping[str, str] = dict(attributes or {})
        self.is_readable = bool(perm & READ)
        self.is_writable = bool(perm & WRITE)
        self.is_inherited = bool(perm & INHERIT)
        self.queue_limit = max(read_queues, write_queues)
        # For the send path: no special rule applies; and which bits of a sender's sysFlag the topic decides.
        self.is_lite = self.attributes.get("message.type") == "LITE"
        self.is_plain = (
            self.is_writable and name not in NOT_FOR_SENDING and not name.startswith(RETRY_PREFIX) and not self.is_lite
        )
        self.is_by_priority = self.attributes.get("message.type") == "PRIORITY"
        self.takes_inner_batches = self.attributes.get("queue.type") == "BatchCQ"
        self.set_flags = SysFlag.MULTI_TAGS if filter_type == MULTI_TAG else 0
        self._entry = ""

    def replaced(self, *, perm: int | None = None, order: bool | None = None) -> Topic:
        return Topic(
            self.name,
            read_queues=self.read_queues,
            write_queues=self.write_queues,
            perm=self.perm if perm is None else perm,
            filter_type=self.filter_type,
            sys_flag=self.sys_flag,
            order=self.order if order is None else order,
            attributes=self.attributes,
        )

    @property
    def text(self) -> str:
        """What it has, for the log."""
        said = f"{self.read_queues} queues to read, {self.write_queues} to write, perm {self.perm}"
        if self.order:
            said += ", ordered"
        return said + "".join(f", {key}={value}" for key, value in sorted(self.attributes.items()))

    def to_json(self) -> Json:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @property
    def entry(self) -> str:
        """Its text in topics.json, made once: who makes the 6,001st topic waits for the file with all of them."""
        if not self._entry:
            self._entry = config_files.pretty_entry(self.name, self.to_json())
        return self._entry

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Topic:
        """Read a TopicConfig of a file or of an admin's body; 4.x has no attributes."""
        attributes = data.get("attributes")
        filter_type = data.get("topicFilterType", SINGLE_TAG)
        name = data.get("topicName")
        if not isinstance(name, str) or not name:
            raise TopicError(f"topicName={name!r} of a topic: a text is needed")
        return cls(
            name,
            read_queues=_number(data, "readQueueNums", 16),
            write_queues=_number(data, "writeQueueNums", 16),
            perm=_number(data, "perm", READ | WRITE),
            filter_type=str(filter_type),
            sys_flag=_number(data, "topicSysFlag", 0),
            order=bool(data.get("order", False)),
            attributes={str(k): str(v) for k, v in attributes.items()} if isinstance(attributes, dict) else {},
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topic) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, read={self.read_queues}, write={self.write_queues}, perm={self.perm})"


class BatchTopics:
    """The topics of a table whose queues are batch queues; for the store, which asks by name."""

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics

    def __contains__(self, name: object) -> bool:
        topic = self._topics.get(name) if isinstance(name, str) else None
        return topic is not None and topic.takes_inner_batches


def saved_batch_topics(path: Path) -> frozenset[str]:
    """Of a topics.json, those whose queues are batch queues: the store must know them before it mends its queues.

    Most tables have none, and are read once, when the store is open.
    """
    files = (path, path.with_name(path.name + ".bak"))
    if not any(file.exists() and b"BatchCQ" in file.read_bytes() for file in files):
        return frozenset()
    table = TopicTable(now_ms=lambda: 0)
    table.load(path)
    return frozenset(topic.name for topic in table if topic.takes_inner_batches)


class TopicTable:
    """Every topic of one broker. Owner: the loop."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._topics: dict[str, Topic] = {}
        self._own_names: set[str] = set()
        self.client_bound = ClientBound("topic", "clientTopicsMax")
        self.auto_create = True  # whether TBW102 may be a template, wherever it comes from
        self._listeners: list[Callable[[Topic | None], None]] = []
        self.version = DataVersion(timestamp=now_ms())
        self.get = self._topics.get  # the hot path asks the dictionary itself

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def names(self) -> list[str]:
        return list(self._topics)

    def listen(self, changed: Callable[[Topic | None], None]) -> None:
        """Call `changed(topic)` after each creation or change, `changed(None)` after a deletion."""
        self._listeners.append(changed)

    def is_system(self, name: str) -> bool:
        return name in self._own_names or is_system_topic(name)

    def system_names(self) -> list[str]:
        return sorted(name for name in self._topics if self.is_system(name))

    def add_system_topics(self, topics: Iterable[Topic]) -> None:
        """Topics that always exist; a version loaded from the file keeps its own queues. No listener is called."""
        for topic in topics:
            self._own_names.add(topic.name)
            self._topics.setdefault(topic.name, topic)

    def put(self, topic: Topic) -> None:
        """Create or replace, then tell the listeners; an unchanged topic changes nothing."""
        known = self._topics.get(topic.name)
        if known == topic:
            return
        self._topics[topic.name] = topic
        if known is None:
            log.info("topic %s is new: %s", topic.name, topic.text)
        else:
            log.info("topic %s changed: it had %s, it has %s", topic.name, known.text, topic.text)
        self._changed(topic)

    def delete(self, name: str) -> bool:
        known = self._topics.pop(name, None)
        if known is None:
            return False
        log.info("topic %s was deleted: it had %s", name, known.text)
        self._changed(None)
        return True

    def create_for_send(self, name: str, *, template: str, queues_wanted: int, is_unit: bool = False) -> Topic | None:
        """The topic made from a template on a first send, or None when the template does not allow it.

        ClientBoundError when there are too many.
        """
        known = self._topics.get(name)
        if known is not None:
            return known
        model = self._topics.get(template)
        if model is not None and model.is_inherited and (self.auto_create or template != SystemTopic.AUTO_CREATE):
            queues = max(min(queues_wanted, model.write_queues), 0)
            topic = Topic(
                name,
                read_queues=queues,
                write_queues=queues,
                perm=model.perm & ~INHERIT,
                filter_type=model.filter_type,
                sys_flag=UNIT if is_unit else 0,
            )
        elif name.startswith(RETRY_PREFIX):
            topic = Topic(name, read_queues=1, write_queues=1, sys_flag=UNIT_SUBSCRIPTION if is_unit else 0)
        else:
            return None
        self.client_bound.check(name, len(self._topics))
        self.put(topic)
        return topic

    def create_for_group(self, name: str, *, queues: int, perm: int = READ | WRITE, is_unit: bool = False) -> Topic:
        """A %RETRY% or %DLQ% topic, made when its group needs it."""
        known = self._topics.get(name)
        if known is None:
            known = Topic(
                name,
                read_queues=queues,
                write_queues=queues,
                perm=perm,
                sys_flag=UNIT_SUBSCRIPTION if is_unit else 0,
            )
            self.put(known)
        return known

    def set_order_topics(self, names: Iterable[str]) -> None:
        """Mark topics that a NameServer lists as ordered; RocketMQ never unmarks by this way."""
        for name in names:
            topic = self._topics.get(name)
            if topic is not None and not topic.order:
                self.put(topic.replaced(order=True))

    # --- files and peers

    def to_json(self) -> Json:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], Json]:
        """What makes the JSON form of the table as it is now, in any thread and whatever changes later."""
        version, topics = self.version.to_json(), list(self._topics.values())
        return lambda: {
            "dataVersion": version,
            "topicConfigTable": {topic.name: topic.to_json() for topic in topics},
        }

    def text_snapshot(self) -> Callable[[], str]:
        """The same as the text of topics.json."""
        version, topics = self.version.to_json(), list(self._topics.values())
        return lambda: config_files.pretty_with_entries(
            {"dataVersion": version, "topicConfigTable": {}}, "topicConfigTable", [topic.entry for topic in topics]
        )

    def load(self, path: Path) -> None:
        config_files.load(path, self.read)

    def read(self, data: Json) -> None:
        """Replace the table by what a file or a master says."""
        topics = [Topic.from_json(entry) for entry in config_files.entries(data, "topicConfigTable").values()]
        self.version.read(data.get("dataVersion"))
        self._topics.clear()
        self._topics.update((topic.name, topic) for topic in topics)

    def take_over(self, other: TopicTable) -> None:
        """A slave's table becomes its master's. No listener is called."""
        self._topics.clear()
        self._topics.update(other._topics)
        self.version = other.version

    def _changed(self, topic: Topic | None) -> None:
        self.version.advance(self._now_ms())
        for listener in self._listeners:
            listener(topic)


def check_topic_values(topic: Topic) -> None:
    """Refuse numbers that no client can use; raises TopicError naming the value."""
    for field, value in (("readQueueNums", topic.read_queues), ("writeQueueNums", topic.write_queues)):
        if not 0 <= value <= QUEUES_MAX:
            raise TopicError(f"{field}={value} of topic {topic.name}: 0 to {QUEUES_MAX} are allowed")
    if not 0 <= topic.perm <= PERM_MAX:
        raise TopicError(
            f"perm={topic.perm} of topic {topic.name}: 0 to {PERM_MAX} are allowed (1 inherit, 2 write, 4 read)"
        )
    if topic.filter_type not in (SINGLE_TAG, MULTI_TAG):
        raise TopicError(f"topicFilterType={topic.filter_type!r} of topic {topic.name}: use SINGLE_TAG or MULTI_TAG")


def system_topics(
    *,
    cluster: str,
    broker: str,
    default_queues: int,
    auto_create: bool,
    is_trace_enabled: bool,
    trace_topic: str,
    is_cluster_topic_enabled: bool = True,
    is_broker_topic_enabled: bool = True,
    revive_queues: int = 8,
) -> list[Topic]:
    """What every broker has from the start; cluster and broker have a topic also where nobody may use it."""
    own_perm = READ | WRITE | INHERIT
    topics = [
        Topic(SystemTopic.SELF_TEST, read_queues=1, write_queues=1),
        Topic(SystemTopic.BENCHMARK, read_queues=1024, write_queues=1024),
        Topic(cluster, read_queues=16, write_queues=16, perm=own_perm if is_cluster_topic_enabled else INHERIT),
        Topic(broker, read_queues=1, write_queues=1, perm=own_perm if is_broker_topic_enabled else INHERIT),
        Topic(SystemTopic.OFFSET_MOVED, read_queues=1, write_queues=1),
        Topic(SystemTopic.SCHEDULE, read_queues=18, write_queues=18),
        Topic(f"{cluster}_REPLY_TOPIC", read_queues=1, write_queues=1),
        Topic(f"rmq_sys_REVIVE_LOG_{cluster}", read_queues=revive_queues, write_queues=revive_queues),
        Topic(f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", read_queues=1, write_queues=1, perm=INHERIT),
        Topic(SystemTopic.HALF, read_queues=1, write_queues=1),
        Topic(SystemTopic.OP_HALF, read_queues=1, write_queues=1),
        Topic(SystemTopic.TIMER, read_queues=1, write_queues=1),
    ]
    if auto_create:
        topics.append(
            Topic(SystemTopic.AUTO_CREATE, read_queues=default_queues, write_queues=default_queues, perm=own_perm)
        )
    if is_trace_enabled:
        topics.append(Topic(trace_topic, read_queues=1, write_queues=1))
    return topics


def _number(data: Mapping[str, object], key: str, default: int) -> int:
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TopicError(f"{key}={value!r} of a topic: a whole number is needed")
    try:
        return int(value)
    except ValueError:
        raise TopicError(f"{key}={value!r} of a topic: a whole number is needed") from None
