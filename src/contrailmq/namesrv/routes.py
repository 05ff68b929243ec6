"""The tables of a NameServer. Pure: time is a parameter, connections are opaque tokens, nothing is sent from here.

    queues    broker name -> topic -> QueueData              brokers   broker name -> BrokerData
    clusters  cluster -> broker names                        mappings  topic -> broker name -> TopicQueueMapping
    live      (cluster, address) -> when it last spoke, its timeout, its data version, its connection
    filters   (cluster, address) -> filter servers (obsolete; kept and shown, never used)

A broker is known by its address. Only the master of a group registers topics; with acting master its smallest id may,
without write permission. Topics that a registration leaves out stay (by default), since incremental ones name only
one. Beyond ENTRIES_MAX topics or BROKERS_MAX addresses anything new is refused. A registration enters whole, on the
owner's loop. `generation` moves with every change that a route can show, so encoded routes may be cached.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from contrailmq.message import ContrailError
from contrailmq.wire.bodies import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicQueueMapping,
    TopicRouteData,
)

__all__ = [
    "BrokerKey",
    "LiveBroker",
    "MinBrokerIdChange",
    "Outcome",
    "Registration",
    "RouteTables",
    "TablesFullError",
    "queue_data",
]

MASTER_ID: Final = 0
PERM_READ: Final = 4
PERM_WRITE: Final = 2
BROKER_TIMEOUT_MS: Final = 120_000
ENTRIES_MAX: Final = 5_000_000  # topics of all brokers together: 100 brokers with 50,000 each take 1.2 GB
BROKERS_MAX: Final = 20_000  # addresses, and as many names
_UNIT: Final = 1  # bits of topicSysFlag
_UNIT_SUB: Final = 2
_SYNC_BROKER_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


class TablesFullError(ContrailError):
    """What should be entered is beyond the bounds; nothing was. The text has the numbers."""


class BrokerKey(NamedTuple):
    cluster: str
    address: str


@dataclass(slots=True)
class LiveBroker:
    broker_name: str
    broker_id: int
    last_seen_ms: int
    timeout_ms: int
    data_version: DataVersion
    connection: object
    ha_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One REGISTER_BROKER request, decoded."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    body: RegisterBrokerBody  # without the topics, which are in `queues`
    queues: Mapping[str, QueueData]
    connection: object
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None  # None: a broker too old to know the word
    zone_name: str | None = None


@dataclass(frozen=True, slots=True)
class MinBrokerIdChange:
    """The smallest live id of a group changed; `targets` are the connections to tell."""

    broker_name: str
    min_broker_id: int | None
    min_broker_address: str | None
    offline_address: str | None
    ha_address: str | None
    targets: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a registration led to. `refusal` is None when it was taken."""

    refusal: str | None = None
    master_address: str | None = None
    master_ha_address: str | None = None
    change: MinBrokerIdChange | None = None


@dataclass(slots=True)
class RouteTables:
    """See the module. One owner: the NameServer's loop."""

    delete_unmentioned_topics: bool = False
    support_acting_master: bool = False
    queues: dict[str, dict[str, QueueData]] = field(default_factory=dict)
    brokers: dict[str, BrokerData] = field(default_factory=dict)
    clusters: dict[str, list[str]] = field(default_factory=dict)
    live: dict[BrokerKey, LiveBroker] = field(default_factory=dict)
    mappings: dict[str, dict[str, TopicQueueMapping]] = field(default_factory=dict)
    filters: dict[BrokerKey, list[str]] = field(default_factory=dict)
    generation: int = 0

    # -------------------------------------------------------------------------------------------------- registering

    def register(self, registration: Registration, now_ms: int) -> Outcome:
        """Take a broker in, or refresh it. The rules are those of RouteInfoManager.registerBroker.

        TablesFullError when that would hold too much.
        """
        known = self.brokers.get(registration.broker_name)
        addresses = known.broker_addrs if known is not None else {}
        old_address = addresses.get(registration.broker_id)
        if old_address is not None and old_address != registration.address:
            rival = self.live.get(BrokerKey(registration.cluster, old_address))
            version = registration.body.topic_config_serialize_wrapper.data_version
            if rival is not None and rival.data_version.state_version > version.state_version:
                self.live.pop(BrokerKey(registration.cluster, registration.address), None)
                return Outcome()
        if old_address is None and len(registration.queues) == 1:
            return Outcome(refusal="register broker failed: a broker that is new here must send all its topics first")
        self._check_room(registration)
        change = self._enter(registration)
        self._take_topics(registration, is_first=old_address is None)
        self._mark_live(registration, now_ms)
        master_address = master_ha_address = None
        if registration.broker_id != MASTER_ID:
            master_address = self.brokers[registration.broker_name].broker_addrs.get(MASTER_ID)
            master = self.live.get(BrokerKey(registration.cluster, master_address)) if master_address else None
            master_address, master_ha_address = (master_address, master.ha_address) if master else (None, None)
        return Outcome(None, master_address, master_ha_address, change)

    def _check_room(self, registration: Registration) -> None:
        key = BrokerKey(registration.cluster, registration.address)
        is_new = key not in self.live or registration.broker_name not in self.brokers
        if is_new and max(len(self.live), len(self.brokers)) >= BROKERS_MAX:
            raise TablesFullError(
                f"broker {registration.broker_name[:80]} at {key.address[:80]} is one too many: {len(self.live)} "
                f"addresses of {len(self.brokers)} names are registered, the limit is {BROKERS_MAX}"
            )
        self._check_entries(registration.broker_name, registration.queues)
        mappings = registration.body.topic_config_serialize_wrapper.topic_queue_mapping_info_map or {}
        if len(self.mappings) + len(mappings) > ENTRIES_MAX and mappings.keys() - self.mappings.keys():
            raise TablesFullError(f"{len(self.mappings)} topics have mappings, the limit is {ENTRIES_MAX}")

    def _check_entries(self, broker_name: str, queues: Mapping[str, QueueData]) -> None:
        held = sum(map(len, self.queues.values()))
        if held + len(queues) <= ENTRIES_MAX:
            return  # the exact answer is not needed
        added = len(queues.keys() - self.queues.get(broker_name, {}).keys())
        if added and held + added > ENTRIES_MAX:
            raise TablesFullError(
                f"broker {broker_name[:80]} brings {added} new topics to the {held} of all brokers, the limit is "
                f"{ENTRIES_MAX}: delete topics, or have another NameServer for other clusters"
            )

    def _enter(self, registration: Registration) -> MinBrokerIdChange | None:
        """Put the address into its group and the group into its cluster."""
        name, address = registration.broker_name, registration.address
        names = self.clusters.setdefault(registration.cluster, [])
        if name not in names:
            names.append(name)
        data = self.brokers.get(name)
        if data is None:
            data = self.brokers[name] = BrokerData(broker_name=name, cluster=registration.cluster)
        shown_before = (data.enable_acting_master, data.zone_name, dict(data.broker_addrs))
        data.enable_acting_master = bool(registration.enable_acting_master)
        data.zone_name = registration.zone_name
        min_id_before = min(data.broker_addrs, default=None)
        for stale_id in [bid for bid, known in data.broker_addrs.items() if known == address]:
            if stale_id != registration.broker_id:
                del data.broker_addrs[stale_id]
        if data.broker_addrs.get(registration.broker_id) != address:
            data.broker_addrs[registration.broker_id] = address
            data.broker_addrs = dict(sorted(data.broker_addrs.items()))
        if shown_before != (data.enable_acting_master, data.zone_name, data.broker_addrs):
            self.generation += 1
        if min_id_before is not None and registration.broker_id < min_id_before:
            return self._min_id_change(data, ha_address=registration.ha_address)
        return None

    def _take_topics(self, registration: Registration, *, is_first: bool) -> None:
        data = self.brokers[registration.broker_name]
        is_master = registration.broker_id == MASTER_ID
        is_prime_slave = (
            registration.enable_acting_master is not None
            and not is_master
            and registration.broker_id == min(data.broker_addrs)
        )
        if not is_master and not is_prime_slave:
            return
        wrapper = registration.body.topic_config_serialize_wrapper
        name = registration.broker_name
        live = self.live.get(BrokerKey(registration.cluster, registration.address))
        is_changed = is_first or live is None or live.data_version != wrapper.data_version
        mappings = wrapper.topic_queue_mapping_info_map or {}
        if self.delete_unmentioned_topics and not mappings:
            self._drop_unmentioned(name, registration.queues)
        if is_changed:
            self._put_queues(name, registration.queues)
            for topic, mapping in mappings.items():
                self.mappings.setdefault(topic, {})[mapping.bname or name] = mapping
                self.generation += 1
        else:
            known = self.queues.get(name, {})
            if not registration.queues.keys() <= known.keys():  # mostly it is, every 30 s, and that takes no memory
                new = registration.queues.keys() - known.keys()
                self._put_queues(name, {topic: registration.queues[topic] for topic in new})

    def _put_queues(self, broker_name: str, queues: Mapping[str, QueueData]) -> None:
        if queues:
            self.queues.setdefault(broker_name, {}).update(queues)
            self.generation += 1

    def _drop_unmentioned(self, broker_name: str, mentioned: Mapping[str, QueueData]) -> None:
        known = self.queues.get(broker_name, {})
        for topic in known.keys() - mentioned.keys():
            self._drop_queues(topic, broker_name)

    def _mark_live(self, registration: Registration, now_ms: int) -> None:
        key = BrokerKey(registration.cluster, registration.address)
        self.live[key] = LiveBroker(
            registration.broker_name,
            registration.broker_id,
            now_ms,
            registration.timeout_ms or BROKER_TIMEOUT_MS,
            registration.body.topic_config_serialize_wrapper.data_version,
            registration.connection,
            registration.ha_address,
        )
        servers = registration.body.filter_server_list
        if servers != self.filters.get(key, []):
            self.generation += 1
        if servers:
            self.filters[key] = servers
        else:
            self.filters.pop(key, None)

    def heartbeat(self, cluster: str, address: str, now_ms: int) -> bool:
        """A sign of life between registrations; False when the broker is not known."""
        live = self.live.get(BrokerKey(cluster, address))
        if live is not None:
            live.last_seen_ms = now_ms
        return live is not None

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        live = self.live.get(BrokerKey(cluster, address))
        return live.data_version if live is not None else None

    # --------------------------------------------------------------------------------------------------- forgetting

    def unregister(self, keys: Iterable[BrokerKey], *, names: Mapping[BrokerKey, str]) -> list[MinBrokerIdChange]:
        """Remove addresses; a group without addresses goes with its queues. `names` gives each address's group."""
        changes = []
        for key in keys:
            live = self.live.pop(key, None)
            self.filters.pop(key, None)
            data = self.brokers.get(names[key])
            if data is None:
                continue
            min_id_before = min(data.broker_addrs, default=None)
            data.broker_addrs = {bid: address for bid, address in data.broker_addrs.items() if address != key.address}
            self.generation += 1
            if not data.broker_addrs:
                self._drop_group(data)
            elif min_id_before not in data.broker_addrs:
                if data.enable_acting_master:
                    self._set_permission(data.broker_name, lambda perm: perm & ~PERM_WRITE)
                ha_address = live.ha_address if live is not None else None
                changes.append(self._min_id_change(data, offline_address=key.address, ha_address=ha_address))
        return changes

    def _drop_group(self, data: BrokerData) -> None:
        name = data.broker_name
        del self.brokers[name]
        for cluster in [cluster for cluster, members in self.clusters.items() if name in members]:
            self.clusters[cluster].remove(name)
            if not self.clusters[cluster]:
                del self.clusters[cluster]
        self.queues.pop(name, None)
        self.generation += 1
        for topic in [topic for topic, parts in self.mappings.items() if name in parts]:
            del self.mappings[topic][name]
            if not self.mappings[topic]:
                del self.mappings[topic]

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self.queues.get(broker_name, {})
        if queues.pop(topic, None) is not None:
            self.generation += 1
            if not queues:
                del self.queues[broker_name]

    def expire(self, now_ms: int) -> tuple[list[object], list[MinBrokerIdChange]]:
        """Remove the brokers that were silent for their timeout; their connections should be closed."""
        silent = {key: live for key, live in self.live.items() if live.last_seen_ms + live.timeout_ms < now_ms}
        changes = self.unregister(silent, names={key: live.broker_name for key, live in silent.items()})
        return [live.connection for live in silent.values()], changes

    def connection_closed(self, connection: object) -> list[MinBrokerIdChange]:
        """Remove every broker that had registered on this connection."""
        gone = {key: live for key, live in self.live.items() if live.connection is connection}
        return self.unregister(gone, names={key: live.broker_name for key, live in gone.items()})

    def _min_id_change(
        self, data: BrokerData, *, offline_address: str | None = None, ha_address: str | None = None
    ) -> MinBrokerIdChange:
        min_id = min(data.broker_addrs)
        is_for_all = offline_address is not None or len(data.broker_addrs) == 1
        addresses = [addr for bid, addr in data.broker_addrs.items() if is_for_all or bid != min_id]
        cluster = data.cluster or ""
        living = [self.live[key] for addr in addresses if (key := BrokerKey(cluster, addr)) in self.live]
        return MinBrokerIdChange(
            data.broker_name,
            min_id,
            data.broker_addrs[min_id],
            offline_address,
            ha_address,
            tuple(live.connection for live in living),
        )

    # --------------------------------------------------------------------------------------------- changes by tools

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take the broker out of sending; returns the number of topics."""
        return self._set_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        # Java sets read and write and thereby loses INHERIT (RouteInfoManager.operateWritePerm); so do we.
        return self._set_permission(broker_name, lambda _perm: PERM_READ | PERM_WRITE)

    def _set_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        queues = self.queues.get(broker_name, {})
        for data in queues.values():
            data.perm = change(data.perm)
        self.generation += 1
        return len(queues)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, or only its queues on the brokers of one cluster."""
        for name in list(self.clusters.get(cluster, [])) if cluster else list(self.queues):
            self._drop_queues(topic, name)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add queues of a topic on brokers that are known; others are left out. TablesFullError as in `register`."""
        for data in queues:
            if data.broker_name in self.brokers:
                self._check_entries(data.broker_name, {topic: data})
                self._put_queues(data.broker_name, {topic: data})

    # ------------------------------------------------------------------------------------------------------ reading

    def route(self, topic: str) -> TopicRouteData | None:
        """Queues and brokers of a topic; None when no broker serves it."""
        queues = self.queues_of(topic)
        if not queues:
            return None
        route = TopicRouteData(queue_datas=list(queues.values()))
        for name in queues:
            data = self.brokers.get(name)
            if data is None:
                continue
            route.broker_datas.append(self._shown(topic, data, queues[name]))
            for address in data.broker_addrs.values():
                servers = self.filters.get(BrokerKey(data.cluster or "", address))
                if servers:
                    route.filter_server_table[address] = servers
        if not route.broker_datas:
            return None
        route.topic_queue_mapping_by_broker = self.mappings.get(topic)
        return route

    def queues_of(self, topic: str) -> dict[str, QueueData]:
        """Broker name -> queues there."""
        return {name: table[topic] for name, table in self.queues.items() if topic in table}

    @property
    def topics(self) -> list[str]:
        return _names_in(list(self.queues.values()))

    def _shown(self, topic: str, data: BrokerData, queues: QueueData) -> BrokerData:
        """With acting master, a group that lost its master shows its smallest id as 0, for reading."""
        is_acting = (
            self.support_acting_master
            and data.enable_acting_master
            and MASTER_ID not in data.broker_addrs
            and not queues.perm & PERM_WRITE
            and not topic.startswith(_SYNC_BROKER_MEMBER_PREFIX)
        )
        if not is_acting:
            return data
        min_id = min(data.broker_addrs)
        shown = {MASTER_ID if bid == min_id else bid: address for bid, address in data.broker_addrs.items()}
        return BrokerData(
            broker_addrs=dict(sorted(shown.items())),
            broker_name=data.broker_name,
            cluster=data.cluster,
            enable_acting_master=data.enable_acting_master,
            zone_name=data.zone_name,
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(broker_addr_table=self.brokers, cluster_addr_table=self.clusters)

    def member_group(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        data = self.brokers.get(broker_name)
        addresses = dict(data.broker_addrs) if data is not None else {}
        return BrokerMemberGroup(broker_addrs=addresses, broker_name=broker_name, cluster=cluster)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        return _names_in([self.queues.get(name, {}) for name in self.clusters.get(cluster, ())])

    def system_topics(self) -> tuple[list[str], str | None]:
        """Every cluster and broker name is a topic too; and any broker's address, where the rest can be asked."""
        names = [name for cluster, members in self.clusters.items() for name in (cluster, *members)]
        addresses = (address for data in self.brokers.values() for address in data.broker_addrs.values())
        return list(dict.fromkeys(names)), next(addresses, None)

    def unit_topics(self) -> list[str]:
        return self._topics_by_flag(_UNIT, wanted=_UNIT)

    def unit_sub_topics(self) -> list[str]:
        return self._topics_by_flag(_UNIT_SUB, wanted=_UNIT_SUB)

    def unit_sub_ununit_topics(self) -> list[str]:
        return self._topics_by_flag(_UNIT | _UNIT_SUB, wanted=_UNIT_SUB)

    def _topics_by_flag(self, mask: int, *, wanted: int) -> list[str]:
        """What the first broker of a topic says counts. Only the plain loop runs over every topic, at 0.2 us each."""
        found: list[str] = []
        earlier: list[dict[str, QueueData]] = []
        for queues in self.queues.values():
            matching = [topic for topic, data in queues.items() if data.topic_sys_flag & mask == wanted]
            found += [topic for topic in matching if not any(topic in table for table in earlier)]
            earlier.append(queues)
        return found


def _names_in(tables: list[dict[str, QueueData]]) -> list[str]:
    """Each once, in the order of the first table that has it."""
    return list(tables[0]) if len(tables) == 1 else list(dict.fromkeys(itertools.chain.from_iterable(tables)))


def queue_data(registrant: str, config: TopicConfig, *, must_not_write: bool) -> QueueData:
    """What a topic of a broker is in a route. A slave that acts as master must not be written to."""
    return QueueData(
        broker_name=registrant,
        perm=config.perm & ~PERM_WRITE if must_not_write else config.perm,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )
