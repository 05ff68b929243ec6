"""What the processors of one broker share: settings, store, tables, and the small steps between them.

`BrokerNode` has no sockets and no tasks of its own. The loop comes in as `call_soon`, time as the store's clock, so a
test drives a whole broker by calling handlers, and then the functions that `call_soon` was given.

Dispatch is coalesced: the first append of a wakeup asks the loop for one call of `dispatch_now`, which moves
everything that was appended since into the queues and then wakes held pulls. A handler that reads queues calls
`dispatch_now` first, so a sender whose message was acknowledged can also see it.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from contrailmq.broker.config import BrokerConfig
from contrailmq.broker.handlers import Refused
from contrailmq.broker.hooks import Hooks
from contrailmq.broker.state import config_files
from contrailmq.broker.state.acknowledging import Acknowledging
from contrailmq.broker.state.config_files import EmptyFileError, TableSaveError
from contrailmq.broker.state.connections import ClientTable
from contrailmq.broker.state.deleted_topics import DELETED_FILE, DeletedTopics
from contrailmq.broker.state.duty import Duty
from contrailmq.broker.state.groups import Group, GroupTable
from contrailmq.broker.state.incoming import IncomingMessage, Rewrite
from contrailmq.broker.state.keeping import GROUPS_FILE, TOPICS_FILE, Keeping
from contrailmq.broker.state.latencies import RequestLatencies
from contrailmq.broker.state.log_first import LogFirst
from contrailmq.broker.state.long_polling import HeldPulls
from contrailmq.broker.state.offset_journal import OffsetJournal
from contrailmq.broker.state.offsets import OFFSETS_FILE, OffsetTable
from contrailmq.broker.state.order_locks import OrderLocks
from contrailmq.broker.state.parked import ParkedAnswers
from contrailmq.broker.state.persistence import Snapshot
from contrailmq.broker.state.replicas import Replicas
from contrailmq.broker.state.statistics import Statistics, kind_of
from contrailmq.broker.state.topics import BatchTopics, Topic, TopicTable, system_topics
from contrailmq.message import Property, encode_host
from contrailmq.store import (
    LIGHT_PREFIX,
    AppendResult,
    Arrival,
    Clock,
    Durations,
    Elsewhere,
    MessageStore,
    is_cut,
    positions_set_back,
)
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.properties import format_properties

log = logging.getLogger("contrailmq.broker")


class BrokerNode:
    """Owner of every table. Everything here runs on the loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        address: tuple[str, int],
    ) -> None:
        self.config = config
        self.store = store
        self.clock = clock
        self.now_ms = clock.now_ms
        self.monotonic_ms = clock.monotonic_ms  # for waits and lives: a stepped clock ends none
        self.call_soon = call_soon
        self.started_ms = clock.now_ms()
        self.started_monotonic_ms = clock.monotonic_ms()
        self.is_accepting = True  # False while stopping
        self.has_master = False  # of a slave: the NameServers know a live one
        self.is_log_cut = False  # before this start: positions beyond the end are of messages that are gone
        self.are_positions_unsaved = False  # after they were set back for that
        self.duty = Duty.FOLLOW if store.config.is_slave else Duty.DELIVER  # of the services that act by time
        self.elsewhere: Elsewhere | None = None  # where they deliver with Duty.ESCAPE
        self.topics = TopicTable(now_ms=clock.now_ms)
        self.groups = GroupTable(now_ms=clock.now_ms, auto_create=config.auto_create_subscription_group)
        self.offsets = OffsetTable(now_ms=clock.now_ms)
        self.offset_journal = OffsetJournal(store.files, self.config_path, self.offsets)
        self.clients = ClientTable(config.channel_expired_timeout)
        self.locks = OrderLocks()
        self.held = HeldPulls(config.held_pulls_max)
        self.parked = ParkedAnswers()
        self.statistics = Statistics()
        self.rewrites: list[Rewrite] = []
        self.hooks = Hooks()
        self.keeping = Keeping()
        self.replicas = Replicas(store.config, clock.monotonic_ms)
        self.latencies = RequestLatencies()
        self.acknowledging = Acknowledging(
            store, self.parked, self.keeping, self.replicas, clock.monotonic_ms, self.latencies
        )
        self.deleted = DeletedTopics()
        self.has_groups_file = True
        self.changed_settings: dict[str, str] = {}  # what an operator changed while the broker ran
        self.on_new_queues: Callable[[list[tuple[str, int]]], None] = lambda queues: None  # (topic, queue) of each
        self.on_log_grown: Callable[[], None] | None = None  # more of the log is readable: for slaves
        self.log_first = LogFirst(store, self._dispatch_later)  # of a slave
        self._new_queues = store.new_queues
        self._arrivals: list[Arrival] = []
        self.is_dispatch_due = False  # something was appended in this wakeup
        self._is_flush_due = False
        self.stopwatch_ns: Callable[[], int] = time.perf_counter_ns
        self._put_began_ns = 0  # the first put of this wakeup
        self.dispatch_times = Durations()  # of the dispatches that appends asked for
        self._timed_puts = 0  # of statistics.put
        self._unsynced: deque[tuple[int, int, int]] = deque()  # where puts end, when they began, how many
        self.topics.listen(self._topic_changed)
        self.groups.listen(self.keeping.group_changed)
        self.set_address(*address)
        store.set_batch_topics(BatchTopics(self.topics))
        store.add_arrival_listener(self._arrivals.append, queues=self.held.queues)

    def set_address(self, host: str, port: int) -> None:
        """The address that clients get; it is written into every record and message id."""
        self.address = f"{host}:{port}"
        self.store_host = encode_host(host, port)

    @property
    def is_slave(self) -> bool:
        return self.store.config.is_slave

    @property
    def never_delivers(self) -> bool:
        """Whether this is a slave that stands in for nobody: its services only take over what its master says."""
        return self.is_slave and not self.config.enable_slave_acting_master

    # --- files

    @property
    def config_path(self) -> Path:
        return self.store.config.path / "config"

    def load(self) -> None:
        """Read the tables of an earlier run; ConfigFileError when a file and its backup cannot be read."""
        self.is_log_cut = is_cut(self.store.config.path, self.store.files)
        try:
            self.topics.load(self.config_path / TOPICS_FILE)
        except EmptyFileError as exc:
            log.warning("%s; topics that hold messages are adopted from the queues", exc)
        self.deleted.load(self.config_path / DELETED_FILE)
        self.has_groups_file = self.groups.load(self.config_path / GROUPS_FILE)
        if self.is_slave:
            self.offsets.load_of_slave(self.config_path / OFFSETS_FILE)
            if self.is_log_cut:
                self._set_back_of_slave()
        else:
            self.offsets.load(self.config_path / OFFSETS_FILE)
            self._recover_offsets()
        self._follow_settings()

    def _recover_offsets(self) -> None:
        """Take over what groups committed after an earlier run's last save, and set groups back to the end of a queue
        that a power failure has shortened; the file then has it too."""
        path = self.config_path / OFFSETS_FILE
        try:
            moved = self.offset_journal.recover(
                self.store.max_offset, lambda: config_files.save(path, _text_of(self.offsets.snapshot_of_master())())
            )
        except TableSaveError as exc:  # a full disk: a crash now repeats more, nothing is lost
            log.error("%s", exc)
            return
        if moved:
            log.info("groups go on in %d queues where a crash stopped them, other than in %s", moved, path)

    def _set_back_of_slave(self) -> None:
        """A log that was cut (--resync, `store truncate`) gets other messages where those stood that a group has read,
        or that this slave has handed over. A position beyond the end would pass over them, here and at the master."""
        path = self.config_path / OFFSETS_FILE
        moved = self.offsets.set_back_of_slave(self.store.max_offset)
        if not moved:
            return
        log.info("groups are set back to the end of %d queues of this slave, where %s was ahead", moved, path)
        try:
            config_files.save(path, _text_of(self.offsets.snapshot_of_slave())())
        except TableSaveError as exc:  # a full disk: the next start sets them back again
            self.are_positions_unsaved = True
            log.error("%s", exc)

    def positions_loaded(self) -> None:
        """Every table of positions was read, and set back if the log was cut."""
        if self.is_log_cut and not self.are_positions_unsaved:
            try:
                positions_set_back(self.store.config.path, self.store.files)
            except OSError as exc:
                log.error("the next start sets positions back again, because this cannot be noted: %s", exc)
        self.is_log_cut = False

    def _follow_settings(self) -> None:
        """Tell the tables of settings that they go by, now and after each change."""
        config = self.config
        self.topics.auto_create = config.auto_create_topic_enable
        self.groups.auto_create = config.auto_create_subscription_group
        self.topics.client_bound.count_max = config.client_topics_max
        self.groups.client_bound.count_max = config.client_groups_max
        self.clients.silence_ms = config.channel_expired_timeout
        self.held.held_max = config.held_pulls_max
        self.topics.add_system_topics(
            system_topics(
                cluster=config.broker_cluster_name,
                broker=config.broker_name,
                default_queues=config.default_topic_queue_nums,
                auto_create=config.auto_create_topic_enable,
                is_trace_enabled=config.trace_topic_enable,
                trace_topic=config.msg_trace_topic_name,
                is_cluster_topic_enabled=config.cluster_topic_enable,
                is_broker_topic_enabled=config.broker_topic_enable,
                revive_queues=config.revive_queue_num,
            )
        )

    def change_settings(self, properties: Mapping[str, str]) -> None:
        """Change settings of the broker and its store: all, or none with the error that names the bad one."""
        own, of_store = self.config.split(properties)
        dataclasses.replace(self.config).update(own)  # a rehearsal: the store's half may still refuse
        self.store.config.change(of_store)
        self.config.update(own)
        self.changed_settings.update(properties)
        self._follow_settings()

    def snapshots(self) -> dict[str, Snapshot]:
        """File name -> what takes its values as of now and gives what makes a text of them."""
        return {
            DELETED_FILE: lambda: _text_of(self.deleted.snapshot()),  # before the topics: deleted_topics.py says why
            TOPICS_FILE: self.topics.text_snapshot,
            GROUPS_FILE: lambda: _text_of(self.groups.snapshot()),
            OFFSETS_FILE: self._offsets_text,
            "broker.properties": lambda: _settings_text(dict(self.changed_settings)),
        }

    def _offsets_text(self) -> Callable[[], str]:
        if self.is_slave:
            return _text_of(self.offsets.snapshot_of_slave())
        self.offset_journal.note_for_save()  # before the file: offset_journal.py says why
        text = _text_of(self.offsets.snapshot_of_master())

        def synced() -> str:
            self.offset_journal.sync()
            return text()

        return synced

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record what a group has consumed, as its consumer says; one beyond the end of the queue counts as the end.

        The reference stores any number and moves the next pull to the end, which by then may lie further on: the
        messages that arrived in between would never be delivered. A slave's queues may end before its master's.
        """
        reader = self.store.reader
        if not self.store.config.is_slave and offset > reader.max_offset(topic, queue_id):
            self.dispatch_now()
            end = reader.max_offset(topic, queue_id)
            if offset > end:
                peer_warnings.warn(
                    "an offset beyond the end of its queue was committed",
                    f"group {group[:64]} committed {offset} in queue {queue_id} of topic {topic[:128]}, which ends at "
                    f"{end}: {end} is stored",
                )
                offset = end
        self.offsets.commit(group, topic, queue_id, offset)

    def topic_to_read(self, name: str) -> Topic | None:
        """A topic as consumers see it. While light queues are on, each is a topic of one queue, which no table holds
        (LmqTopicConfigManager.selectTopicConfig)."""
        topic = self.topics.get(name)
        if topic is None and self.store.config.enable_lmq and name.startswith(LIGHT_PREFIX):
            return Topic(name, read_queues=1, write_queues=1)
        return topic

    def group_to_read(self, name: str) -> Group | None:
        """A consumer's group, made when it is new and may be; one named like a light queue is kept in no table."""
        group = self.groups.get(name)
        if group is None and self.store.config.enable_lmq and name.startswith(LIGHT_PREFIX):
            return Group(name)
        return group or self.groups.find_or_create(name)

    def answer_when_routed(
        self, connection: Peer, command: Command, answer: bytes, *, topics: Iterable[str], groups: Iterable[str]
    ) -> bytes | None:
        """The answer, or none yet: it leaves when these are kept (keeping.py), or cannot be.

        Nothing is acknowledged here that a crash could take; what does is for acknowledging.py.
        """

        def settled(_error: TableSaveError | None) -> None:
            if connection.is_open and not command.is_oneway:
                connection.reply(answer)

        return None if self.keeping.wait(topics, groups, settled) else answer

    def delete_queues(self, topics: Sequence[str]) -> None:
        """Destroy the queues of deleted topics, and remember that they are: the log still holds their records.

        The caller saves DELETED_FILE, TOPICS_FILE and what else it changed in the same step before it answers.
        """
        for name in topics:  # before the dispatch, which may make their queues
            self.deleted.note(name, log_end=self.store.appended_offset)
        self.topics.version.advance(self.now_ms())  # slaves take both with the topics
        self.dispatch_now()
        self.store.delete_topics(topics)
        self.deleted.on_deleted(topics)

    def _topic_changed(self, topic: Topic | None) -> None:
        if topic is not None:
            if self.deleted.note_made_again(topic.name):
                self.keeping.when_saved(DELETED_FILE, lambda _error: None)
            self.keeping.topic_changed(topic.name)

    def refuse_on_slave(self) -> None:
        """Topics and groups of a slave are its master's: a change here would be gone with the next copy of them."""
        if self.is_slave:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"Can't modify topic or subscription group from slave broker, please execute it from master broker: "
                f"{self.config.broker_name} has brokerId {self.config.broker_id} here, its master has 0",
            )

    # --- putting

    def put(self, message: IncomingMessage) -> AppendResult:
        """Append without rewriting: for what the broker itself puts, and for what was rewritten already."""
        properties = message.properties
        began_ns = 0 if self.is_dispatch_due else self.stopwatch_ns()
        result = self.store.append(
            message.topic,
            message.queue_id,
            message.body,
            message.encoded_properties(),
            tags_code=message.effective_tags_code(),
            keys=properties.get(Property.KEYS),
            unique_key=properties.get(Property.UNIQUE_KEY),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_time_ms=message.born_time_ms,
            born_host=message.born_host,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
        self.after_append(began_ns=began_ns)
        if result.status.is_stored:
            self.statistics.note_put(message.topic, 1, result.size_bytes, kind_of(properties))
        else:
            self.statistics.put_failed += 1
        return result

    def after_append(self, *, wants_flush: bool = False, began_ns: int = 0) -> None:
        """Have the queues brought up to date at the end of this wakeup. `began_ns`: when its first put began."""
        if wants_flush:
            self._is_flush_due = True
        if not self.is_dispatch_due:
            self.is_dispatch_due = True
            self._put_began_ns = began_ns or self.stopwatch_ns()
            self.call_soon(self.dispatch_now)

    def dispatch_now(self) -> None:
        """Bring queues and index up to date, ask for a flush where one is waited for, wake held pulls."""
        if not self.is_dispatch_due:
            return
        self.is_dispatch_due = False
        is_flush_due = self._is_flush_due
        if is_flush_due:
            self._is_flush_due = False
            self.store.request_flush()
        if self.on_log_grown is not None:
            self.on_log_grown()
        began_ns = self.stopwatch_ns()
        self._dispatch()
        ended_ns = self.stopwatch_ns()
        self.dispatch_times.note((ended_ns - began_ns) // 1000)
        self._time_puts(ended_ns, until_durable=is_flush_due)

    def _time_puts(self, ended_ns: int, *, until_durable: bool) -> None:
        """Note how long the puts of this wakeup took; later, when the disk has them, where that is waited for."""
        count = self.statistics.put.value - self._timed_puts
        self._timed_puts += count
        if count and until_durable:
            self._unsynced.append((self.store.log_max_offset, self._put_began_ns, count))
        elif count:
            self.store.stats.note_puts(count, (ended_ns - self._put_began_ns) // 1000)

    def dispatch_again(self) -> None:
        """Dispatch could not go on (no room for a queue or index file): nothing is appended then that would call it."""
        if self.store.standstill_reason:
            self._dispatch()

    def durable(self, offset: int) -> None:
        """The log is synced up to `offset`; -1: a sync failed, and nothing that waits may be acknowledged."""
        if offset < 0:
            self._unsynced.clear()
            self.parked.fail()
            return
        if self.store.config.is_sync_flush:
            if self.on_log_grown is not None:
                self.on_log_grown()
            self._dispatch()  # readers see a message only when it is durable
        self.parked.advanced(offset)
        while self._unsynced and self._unsynced[0][0] <= offset:
            _, began_ns, count = self._unsynced.popleft()
            self.store.stats.note_puts(count, (self.stopwatch_ns() - began_ns) // 1000)

    def committed(self) -> None:
        """The write buffer pool made more of the log readable (transientStorePoolEnable)."""
        if self.on_log_grown is not None:
            self.on_log_grown()
        self._dispatch()

    def _dispatch_later(self) -> None:
        self.call_soon(self._dispatch_rest)

    def _dispatch_rest(self) -> None:
        self.log_first.is_rest_due = False
        if self.is_accepting:  # else the store is about to close, and makes up for the rest
            self._dispatch()

    def _dispatch(self) -> None:
        if self.is_slave:
            self.log_first.dispatch()
        else:
            self.store.dispatch()
        if self._new_queues:
            queues = list(self._new_queues)
            self._new_queues.clear()
            self.on_new_queues(queues)
        if self._arrivals:
            # Held pulls run after dispatch has returned: they read the queues that it is writing.
            arrivals = self._arrivals.copy()
            self._arrivals.clear()
            for topic, queue_id, queue_offset, tags_code, _, properties in arrivals:
                self.held.arrived(
                    topic, queue_id, queue_offset=queue_offset, tags_code=tags_code, properties=properties
                )


def _text_of(to_json: Callable[[], config_files.Json]) -> Callable[[], str]:
    return lambda: config_files.pretty(to_json())


def _settings_text(settings: dict[str, str]) -> Callable[[], str]:
    return lambda: format_properties(settings)
