"""The broker itself: figures (28, 315, 907), settings (25, 26), and cleaning (306, 316, 329)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from typing import Final

from contrailmq.broker.config import PROTECTED_KEYS, BrokerConfigError, store_properties
from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.config_files import DataVersion, compact
from contrailmq.broker.state.deleted_topics import DELETED_FILE
from contrailmq.broker.state.keeping import TOPICS_FILE
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.store import LIGHT_PREFIX, Place, SlaveStatus, StoreConfigError
from contrailmq.wire.admin_bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    HaClientInfo,
    HaConnectionInfo,
    HaRuntimeInfo,
)
from contrailmq.wire.admin_requests import GetBrokerConfigResponse, ViewBrokerStats
from contrailmq.wire.bodies import KVTable, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.promises import remote_refusal
from contrailmq.wire.properties import parse_properties

OUR_VERSION_NAME: Final = "V5_3_3"
DAMAGED_LISTED_MAX: Final = 100  # of damaged records in the figures: 20 KB of text
# Java has a thread pool and a queue for each kind of request; tools show these figures.
_POOLS: Final = {"send": 10_000, "pull": 100_000, "query": 20_000, "litePull": 100_000, "ack": 100_000}

Figures = Callable[[], dict[str, str]]


class RuntimeAdmin:
    """`figures` may be extended by other parts (delay levels, timer): each returns lines for code 28. `slaves` are
    those that follow this master, `following` is how this slave follows its own."""

    def __init__(self, node: BrokerNode, saver: TableSaver, *, configured: Callable[[], None]) -> None:
        self._node = node
        self._saver = saver
        self._configured = configured
        self._version = DataVersion(timestamp=node.started_ms)
        self.figures: list[Figures] = []
        self.slaves: Callable[[], list[SlaveStatus]] = list
        self.following: Callable[[], HaClientInfo] = HaClientInfo

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime)
        handlers.register(RequestCode.VIEW_BROKER_STATS_DATA, self.stats)
        handlers.register(RequestCode.GET_BROKER_CONFIG, self.config)
        handlers.register_slow(RequestCode.UPDATE_BROKER_CONFIG, self.update_config)
        handlers.register(RequestCode.GET_BROKER_HA_STATUS, self.ha_status)
        handlers.register(RequestCode.GET_BROKER_EPOCH_CACHE, self.epochs)
        handlers.register(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_queues)
        handlers.register_slow(RequestCode.CLEAN_UNUSED_TOPIC, self.clean_topics)
        handlers.register(RequestCode.DELETE_EXPIRED_COMMITLOG, self.delete_files)

    # --- figures

    def runtime(self, connection: Peer, command: Command) -> bytes | None:
        table = self._totals() | self._node.store.runtime_info() | self._store_figures() | self._pools()
        for figures in self.figures:
            table |= figures()
        return success(command, None, encode_body(KVTable(table=table)))

    def _totals(self) -> dict[str, str]:
        node = self._node
        numbers = node.statistics
        seconds = (node.monotonic_ms() - node.started_monotonic_ms) // 1000
        days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
        return {
            "brokerVersionDesc": OUR_VERSION_NAME,
            "brokerActive": str(node.is_accepting).lower(),
            "bootTimestamp": str(node.started_ms),
            "currentTimestamp": str(node.now_ms()),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]",
            "startAcceptSendRequestTimeStamp": str(node.config.start_accept_send_request_time_stamp),
            # Without topics of the system, as in Java (BrokerStats.getMsgPutTotalTodayNow); the rates are of all.
            "msgPutTotalYesterdayMorning": str(numbers.put_by_people.yesterday_morning),
            "msgPutTotalTodayMorning": str(numbers.put_by_people.this_morning),
            "msgPutTotalTodayNow": str(numbers.put_by_people.value),
            "msgGetTotalYesterdayMorning": str(numbers.get_by_people.yesterday_morning),
            "msgGetTotalTodayMorning": str(numbers.get_by_people.this_morning),
            "msgGetTotalTodayNow": str(numbers.get_by_people.value),
            "putTps": numbers.put.averages(),
            "getTransferredTps": numbers.get.averages(),
            "getFoundTps": numbers.get_found.averages(),
            "getMissTps": numbers.get_missed.averages(),
            "getTotalTps": numbers.get_all_averages(),
            "putMessageTimesTotal": str(numbers.put.value),
            "putMessageFailedTimes": str(numbers.put_failed),
            "putMessageSizeTotal": str(numbers.put_bytes.value),
            "putMessageAverageSize": str(numbers.put_bytes.value / numbers.put.value if numbers.put.value else 0.0),
            "pageCacheLockTimeMills": "0",
        }

    def _store_figures(self) -> dict[str, str]:
        store = self._node.store
        usage = shutil.disk_usage(store.config.path)
        unflushed = max(store.log_max_offset - store.durable_offset, 0)
        return {
            "earliestMessageTimeStamp": str(store.earliest_time()),
            "commitLogDirCapacity": f"Total : {_human(usage.total)}, Free : {_human(usage.free)}.",
            "dispatchBehindBytes": str(max(store.log_max_offset - store.dispatched_offset, 0)),
            "damagedPlaces": compact(
                [_damaged(place) for place in store.damaged_places()[:DAMAGED_LISTED_MAX]]
            ).decode(),
            "remainHowManyDataToFlush": _human(unflushed),
            "remainHowManyDataToCommit": "0 B",
            "remainTransientStoreBufferNumbs": "2147483647",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }

    def _pools(self) -> dict[str, str]:
        table = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "100000"}
        for name, capacity in _POOLS.items():
            table[f"{name}ThreadPoolQueueSize"] = "0"
            table[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
            table[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table["pullThreadPoolQueueSize"] = str(len(self._node.held))
        return table

    def stats(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(ViewBrokerStats)
        counter = self._node.statistics.find(header.stats_name, header.stats_key)
        if counter is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name[:64]}> <{header.stats_key[:256]}> not exist",
            )

        def item(window: str) -> BrokerStatsItem:
            rate = counter.rate(window)
            return BrokerStatsItem(avgpt=rate.per_operation, sum=rate.sum, tps=rate.per_second)

        body = BrokerStatsData(stats_day=item("day"), stats_hour=item("hour"), stats_minute=item("minute"))
        return success(command, None, encode_body(body))

    def ha_status(self, connection: Peer, command: Command) -> bytes | None:
        slaves = self.slaves()
        body = HaRuntimeInfo(
            ha_client_runtime_info=self.following(),
            ha_connection_info=[
                HaConnectionInfo(
                    addr=slave.address,
                    diff=slave.lag_bytes,
                    in_sync=slave.is_in_sync,
                    silent_millis=slave.silent_ms,
                    slave_ack_offset=slave.acknowledged,
                    transfer_from_where=slave.next_offset,
                    transferred_byte_in_second=slave.bytes_per_second,
                )
                for slave in slaves
            ],
            in_sync_slave_nums=sum(slave.is_in_sync for slave in slaves),
            master=not self._node.is_slave,
            master_commit_log_max_offset=0 if self._node.is_slave else self._node.store.log_max_offset,
        )
        return success(command, None, encode_body(body))

    def epochs(self, connection: Peer, command: Command) -> bytes | None:
        raise Refused(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode")

    # --- settings

    def config(self, connection: Peer, command: Command) -> bytes | None:
        properties = self._node.config.to_properties() | store_properties(self._node.store.config)
        text = "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))
        version = compact(self._version.to_json()).decode()
        return success(command, GetBrokerConfigResponse(version=version), text.encode())

    async def update_config(self, connection: Peer, command: Command) -> bytes | None:
        """Change settings while running: all of them or none; kept over a restart in config/broker.properties."""
        changes = parse_properties(command.body.decode("utf-8", "replace"))
        if not changes:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the body holds no key=value line")
        self._check_remote(changes)
        try:
            self._node.change_settings(changes)
        except (BrokerConfigError, StoreConfigError) as exc:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(exc)) from None
        self._version.advance(self._node.now_ms())
        self._configured()
        await self._saver.save("broker.properties")
        return success(command, {"version": compact(self._version.to_json()).decode()})

    def _check_remote(self, keys: Iterable[str]) -> None:
        config = self._node.config
        listed = sorted({part.strip() for part in config.config_black_list.split(";")}.intersection(keys))
        if listed:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"Can not update config in black list: {', '.join(listed)} (configBlackList)",
            )
        refusal = remote_refusal(keys, PROTECTED_KEYS, config.allow_remote_config)
        if refusal:
            raise Refused(ResponseCode.NO_PERMISSION, refusal)

    # --- cleaning

    def clean_queues(self, connection: Peer, command: Command) -> bytes | None:
        self._node.store.clean_expired_queues()
        return success(command)

    async def clean_topics(self, connection: Peer, command: Command) -> bytes | None:
        """Drop the queues of topics that no longer exist; system topics and light queues stand in no table.

        Topics that have messages and were in no table were adopted at the start. A slave's table may be behind its
        queues: it drops none.
        """
        node = self._node
        if node.is_slave:
            return success(command)
        node.dispatch_now()
        unused = {
            topic
            for topic, _ in node.store.queues()
            if topic not in node.topics and not node.topics.is_system(topic) and not topic.startswith(LIGHT_PREFIX)
        }
        if unused:
            node.delete_queues(sorted(unused))
            await self._saver.save(DELETED_FILE, TOPICS_FILE)
        return success(command)

    def delete_files(self, connection: Peer, command: Command) -> bytes | None:
        self._node.store.delete_expired_files_now()
        return success(command)


def _damaged(place: Place) -> dict[str, object]:
    """A damaged record, for operators (`contrailmq admin broker damage`)."""
    return {
        "topic": place.topic,
        "queueId": place.queue_id,
        "queueOffset": place.queue_offset,
        "physicalOffset": place.physical_offset,
        "sizeBytes": place.size_bytes,
        "reason": place.reason,
    }


def _human(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size_bytes} B"
        size /= 1024
    return f"{size:.1f} TiB"
