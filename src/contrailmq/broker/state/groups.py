"""Subscription groups: what a consumer group may do, how often it retries, and where.

`GroupTable` owns the dictionary, its data version and the JSON form of `subscriptionGroup.json`. Unknown groups are
created with RocketMQ's defaults when they first appear, unless the broker forbids it. The forbidden table says
which topics a group may not read (code 353).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from contrailmq.broker.state import config_files
from contrailmq.broker.state.client_bound import ClientBound
from contrailmq.broker.state.config_files import DataVersion, Json
from contrailmq.broker.state.topics import QUEUES_MAX
from contrailmq.message import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, ContrailError, MessageError, check_group

log = logging.getLogger("contrailmq.broker")

_SUBSCRIPTION_FORBIDDEN_BIT: Final = 0  # PermName/GroupForbidden: bit 0 of a topic's mask forbids reading


class GroupError(ContrailError):
    """The group cannot be created or changed as asked."""


class Group:
    """SubscriptionGroupConfig. Frozen: a change makes a new one. Names on the wire: see _KEYS."""

    __slots__ = (
        "attributes", "broker_id", "consume_broadcast_enable", "consume_enable", "consume_from_min_enable",
        "consume_message_orderly", "consume_timeout_minutes", "name", "notify_ids_changed", "retry_max_times",
        "retry_policy", "retry_queues", "subscriptions", "sys_flag", "which_broker_when_slow",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        consume_enable: bool = True,
        consume_from_min_enable: bool = True,
        consume_broadcast_enable: bool = True,
        consume_message_orderly: bool = False,
        retry_queues: int = 1,
        retry_max_times: int = 16,
        broker_id: int = 0,
        which_broker_when_slow: int = 1,
        notify_ids_changed: bool = True,
        sys_flag: int = 0,
        consume_timeout_minutes: int = 15,
        attributes: Mapping[str, str] | None = None,
        retry_policy: Mapping[str, object] | None = None,
        subscriptions: tuple[Mapping[str, object], ...] | None = None,
    ) -> None:
        self.name = name
        self.consume_enable = consume_enable
        self.consume_from_min_enable = consume_from_min_enable
        self.consume_broadcast_enable = consume_broadcast_enable
        self.consume_message_orderly = consume_message_orderly
        self.retry_queues = retry_queues
        self.retry_max_times = retry_max_times
        self.broker_id = broker_id
        self.which_broker_when_slow = which_broker_when_slow
        self.notify_ids_changed = notify_ids_changed
        self.sys_flag = sys_flag
        self.consume_timeout_minutes = consume_timeout_minutes
        self.attributes: Mapping[str, str] = attributes if attributes is not None else {}
        self.retry_policy = retry_policy if retry_policy is not None else {"type": "CUSTOMIZED"}
        self.subscriptions = subscriptions

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self.to_json() == other.to_json()

    def __repr__(self) -> str:
        return f"<Group {self.to_json()}>"

    @property
    def priority_factor(self) -> int:
        """Of 100 pops of a topic with priorities, how many read the highest first."""
        text = self.attributes.get("priority.factor", "")
        return int(text) if text.isascii() and text.isdigit() else 100  # as the reference reads a file of another's

    def with_attributes(self, attributes: Mapping[str, str]) -> Group:
        return Group.from_json({**self.to_json(), "attributes": dict(attributes)})

    def to_json(self) -> Json:
        data: Json = {key: getattr(self, name) for key, (name, _) in _KEYS.items()}
        data["attributes"] = dict(self.attributes)
        data["groupRetryPolicy"] = dict(self.retry_policy)
        if self.subscriptions is not None:
            data["subscriptionDataSet"] = [dict(entry) for entry in self.subscriptions]
        return dict(sorted(data.items()))

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Group:
        values: dict[str, object] = {}
        for key, (name, kind) in _KEYS.items():
            value = data.get(key)
            if value is not None:
                values[name] = _typed(key, value, kind)
        if not values.get("name"):
            raise GroupError("groupName of the subscription group is missing")
        if isinstance(attributes := data.get("attributes"), dict):
            values["attributes"] = {str(k): str(v) for k, v in attributes.items()}
        if isinstance(policy := data.get("groupRetryPolicy"), dict):
            values["retry_policy"] = policy
        if isinstance(subscriptions := data.get("subscriptionDataSet"), list):
            values["subscriptions"] = tuple([entry for entry in subscriptions if isinstance(entry, dict)])
        return Group(**values)  # type: ignore[arg-type]


_KEYS: Final[Mapping[str, tuple[str, type]]] = {
    "brokerId": ("broker_id", int),
    "consumeBroadcastEnable": ("consume_broadcast_enable", bool),
    "consumeEnable": ("consume_enable", bool),
    "consumeFromMinEnable": ("consume_from_min_enable", bool),
    "consumeMessageOrderly": ("consume_message_orderly", bool),
    "consumeTimeoutMinute": ("consume_timeout_minutes", int),
    "groupName": ("name", str),
    "groupSysFlag": ("sys_flag", int),
    "notifyConsumerIdsChangedEnable": ("notify_ids_changed", bool),
    "retryMaxTimes": ("retry_max_times", int),
    "retryQueueNums": ("retry_queues", int),
    "whichBrokerWhenConsumeSlowly": ("which_broker_when_slow", int),
}

# Java's numbers; a retry topic has as many queues as its group says, and no topic has more than QUEUES_MAX.
_RANGES: Final = (
    ("brokerId", -(2**63), 2**63 - 1),
    ("consumeTimeoutMinute", -(2**31), 2**31 - 1),
    ("groupSysFlag", -(2**31), 2**31 - 1),
    ("retryMaxTimes", -(2**31), 2**31 - 1),
    ("retryQueueNums", 0, QUEUES_MAX),
    ("whichBrokerWhenConsumeSlowly", -(2**63), 2**63 - 1),
)


class GroupTable:
    """Every subscription group of one broker. Owner: the loop."""

    def __init__(self, *, now_ms: Callable[[], int], auto_create: bool = True) -> None:
        self._now_ms = now_ms
        self.auto_create = auto_create
        self.client_bound = ClientBound("group", "clientGroupsMax")
        self._groups: dict[str, Group] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._listeners: list[Callable[[str], None]] = []
        self.version = DataVersion(timestamp=now_ms())
        self.add_defaults(SYSTEM_GROUPS)

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def get(self, name: str) -> Group | None:
        return self._groups.get(name)

    def names(self) -> list[str]:
        return list(self._groups)

    def listen(self, changed: Callable[[str], None]) -> None:
        """Call `changed(name)` after each creation, change or deletion."""
        self._listeners.append(changed)

    def add_defaults(self, names: Iterable[str]) -> None:
        for name in names:
            self._groups.setdefault(name, Group(name))

    def find_or_create(self, name: str) -> Group | None:
        """The group, made with defaults when that is allowed; None when it is unknown or its name is not legal.

        ClientBoundError when there are too many.
        """
        known = self._groups.get(name)
        if known is not None:
            return known
        if not self.auto_create and not name.startswith(SYSTEM_GROUP_PREFIX):
            return None
        try:
            check_group(name)
        except MessageError:
            return None
        self.client_bound.check(name, len(self._groups))
        group = Group(name)
        self.put(group)
        return group

    def put(self, group: Group) -> None:
        known = self._groups.get(group.name)
        if known != group:
            self._groups[group.name] = group
            if known is None:
                log.info("group %s is new", group.name)
            else:
                log.info("group %s changed: %s", group.name, _changes(known, group))
            self._changed(group.name)

    def delete(self, name: str) -> bool:
        if self._groups.pop(name, None) is None:
            return False
        log.info("group %s was deleted", name)
        self._forbidden.pop(name, None)
        self._changed(name)
        return True

    def is_forbidden(self, group: str, topic: str) -> bool:
        table = self._forbidden.get(group)
        return table is not None and bool(table.get(topic, 0) >> _SUBSCRIPTION_FORBIDDEN_BIT & 1)

    def set_readable(self, group: str, topic: str, *, is_readable: bool) -> None:
        table = self._forbidden.setdefault(group, {})
        if is_readable:
            table.pop(topic, None)
        else:
            table[topic] = 1 << _SUBSCRIPTION_FORBIDDEN_BIT
        log.info("group %s may %s topic %s", group, "read" if is_readable else "no longer read", topic)
        if not table:
            del self._forbidden[group]
        self._changed(group)

    def to_json(self) -> Json:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], Json]:
        """What makes the JSON form of the table as it is now, in any thread and whatever changes later."""
        version, groups = self.version.to_json(), list(self._groups.values())
        forbidden = self.forbidden()
        return lambda: {
            "dataVersion": version,
            "forbiddenTable": forbidden,
            "subscriptionGroupTable": {group.name: group.to_json() for group in groups},
        }

    def forbidden(self) -> dict[str, dict[str, int]]:
        """A copy of group -> topic -> bits."""
        return {group: dict(table) for group, table in self._forbidden.items()}

    def load(self, path: Path) -> bool:
        """False when there is no file."""
        return config_files.load(path, self._read) is not None

    def _read(self, data: Json) -> GroupTable:
        self.read(data)
        return self

    def read(self, data: Json) -> None:
        """Replace the table by what a file or a master says; the reference's own groups stay."""
        groups = [Group.from_json(entry) for entry in config_files.entries(data, "subscriptionGroupTable").values()]
        forbidden = {
            group: {topic: _mask(bits) for topic, bits in masks.items()}
            for group, masks in config_files.entries(data, "forbiddenTable").items()
        }
        self.version.read(data.get("dataVersion"))
        self._groups = {group.name: group for group in groups}
        self.add_defaults(SYSTEM_GROUPS)
        self._forbidden = forbidden

    def take_over(self, other: GroupTable) -> None:
        """A slave's table becomes its master's. No listener is called."""
        self._groups, self._forbidden, self.version = other._groups, other._forbidden, other.version

    def _changed(self, name: str) -> None:
        self.version.advance(self._now_ms())
        for listener in self._listeners:
            listener(name)


def check_group_values(group: Group) -> None:
    """Refuse numbers that no client can use; raises GroupError naming the value."""
    for key, low, high in _RANGES:
        value: int = getattr(group, _KEYS[key][0])
        if not low <= value <= high:
            raise GroupError(f"{key}={value} of subscription group {group.name}: {low} to {high} are allowed")


def _changes(before: Group, after: Group) -> str:
    """Which settings differ, for the log."""
    old, new = before.to_json(), after.to_json()
    return ", ".join(f"{key} was {old.get(key)}, is {new[key]}" for key in new if old.get(key) != new[key])


def _mask(bits: object) -> int:
    if not isinstance(bits, int):
        raise GroupError(f"{bits!r} in forbiddenTable: a whole number is needed")
    return bits


def _typed(key: str, value: object, kind: type) -> object:
    if kind is bool:
        if not isinstance(value, bool):
            raise GroupError(f"{key}={value!r} of a subscription group: true or false is needed")
        return value
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise GroupError(f"{key}={value!r} of a subscription group: a whole number is needed")
        return value
    if not isinstance(value, str):
        raise GroupError(f"{key}={value!r} of a subscription group: a text is needed")
    return value
