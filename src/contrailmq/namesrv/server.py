"""The NameServer on a socket: one function per request code over `routes` and `kv_config`.

Everything runs on one loop and is answered at once, with two exceptions. A change of the key-value table or of the
settings is answered when a worker thread has written the file; changes made meanwhile share the next write (`saving`).
Large or compressed registrations are decoded in a worker thread, one at a time and in order. At most
WAITING_BYTES_MAX may wait over all connections; beyond that the answer is SYSTEM_BUSY.

Most requests ask for routes. Their encoded bodies are cached until the tables change (`RouteTables.generation`) or
exceed ROUTE_BYTES_MAX. `stop` answers accepted requests for at most shutdownWaitTimeSeconds and refuses the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Final

from contrailmq.message import ContrailError
from contrailmq.metrics import Metrics
from contrailmq.namesrv import kv_config
from contrailmq.namesrv.config import PROTECTED_KEYS, NamesrvConfig
from contrailmq.namesrv.figures import figures
from contrailmq.namesrv.registration import ReadRegistration, check_crc, is_light, read_registration
from contrailmq.namesrv.routes import MASTER_ID, BrokerKey, MinBrokerIdChange, Registration, RouteTables, queue_data
from contrailmq.namesrv.saving import Saving
from contrailmq.wire import admin_requests as headers
from contrailmq.wire.bodies import (
    BrokerMemberGroupBody,
    DataVersion,
    KVTable,
    TopicList,
    TopicRouteData,
    decode_body,
    encode_body,
    encode_cluster_info,
    encode_route,
)
from contrailmq.wire.codes import RequestCode, ResponseCode, request_name
from contrailmq.wire.connection import SERVER_LIMITS
from contrailmq.wire.errors import ConnectionClosedError, RemoteProtocolError
from contrailmq.wire.frame import ReplyTemplate, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.promises import remote_refusal
from contrailmq.wire.properties import format_properties, parse_properties
from contrailmq.wire.ration import Ration
from contrailmq.wire.tls import ServerTls
from contrailmq.wire.transport import Connection, RemotingServer, not_supported

__all__ = ["NameServer"]

_log = logging.getLogger(__name__)

UNKNOWN: Final = -1  # in place of a request code that is not served
STANDARD_JSON_VERSION: Final = 401  # V4_9_4: from here on requesters read broker ids as JSON strings
# A list of 100,000 topics takes 10 ms; who does not read must not hold up a stop, for which RocketMQ gives 30 s.
_LIMITS: Final = replace(SERVER_LIMITS, slice_commands=1, stuck_s=2.0)
_FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_ROUTE_FOUND: Final = ReplyTemplate({})
BROKER_ID_MAX: Final = 2**63 - 1  # Java's long
NAME_CHARACTERS_MAX: Final = 1024  # of a broker, a cluster, a zone or an address; host names end at 255
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024  # four registrations of the largest size
WAITING_BYTES: Final = 4096  # of a request that waits, whatever it says: its task, its answer's coroutine, its header
UNFINISHED_BYTES_MAX: Final = 64 * 1024 * 1024  # of requests that are being received
ROUTE_BYTES_MAX: Final = 32 * 1024 * 1024  # 100,000 routes of one broker
_LAST_ANSWERS_SECONDS: Final = 1.0  # for refusals to leave, when the time for stopping is over

Answer = bytes | Coroutine[None, None, bytes]
Serve = Callable[[Connection, Command], Answer]


def _tell_gone(key: BrokerKey, broker_name: str, why: str) -> None:
    _log.info("broker %s of cluster %s at %s is forgotten: %s", broker_name, key.cluster, key.address, why)


def _monotonic_ms() -> int:
    """Brokers are silent for a time that passes: a wall clock that is set forgets none of them."""
    return time.monotonic_ns() // 1_000_000


class BusyError(ContrailError):
    """Too much waits already; the text has the numbers."""


class NameServer:
    """One NameServer. `start` and `stop` it on the loop that serves it; `address` is what clients are given."""

    def __init__(
        self,
        config: NamesrvConfig | None = None,
        *,
        tls: ServerTls | None = None,
        clock_ms: Callable[[], int] = _monotonic_ms,
    ) -> None:
        self.config = config or NamesrvConfig()
        self.kv = kv_config.KvConfig()
        self.tables = RouteTables()
        self._clock_ms = clock_ms
        self._started_ms = 0
        self._route_bodies: dict[tuple[str, bool], bytes] = {}
        self._route_bytes = 0
        self._route_generation = -1
        self._changed_settings: dict[str, str] = {}  # since the start, by UPDATE_NAMESRV_CONFIG
        self._kv_saving, self._settings_saving = Saving(self._save_kv), Saving(self._save_settings)
        self._registering = asyncio.Lock()
        self._registrations_read = 0  # in worker threads, or waiting for one, and what waits for them
        self._waiting_bytes = 0  # of requests that are answered later
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order: one that is cancelled loses its place
        self._scanner: asyncio.TimerHandle | None = None
        self._server = RemotingServer(
            self.handle,
            host=self.config.bind_address,
            port=self.config.listen_port,
            tls=tls,
            limits=_LIMITS,
            ration=Ration(UNFINISHED_BYTES_MAX),
            idle_seconds=self.config.server_channel_max_idle_time_seconds,
            on_disconnect=self._disconnected,
        )
        self._table = self._handlers()
        self.served: Counter[int] = Counter()  # requests by code; UNKNOWN for those that are not served
        self.busy_count = 0  # requests that were refused, WAITING_BYTES_MAX
        self._not_ready = "it starts"
        self.metrics = Metrics(self.config.export_settings(), live=list, ready=self._ready_reasons)
        self._apply_config()

    @property
    def address(self) -> str:
        """`host:port` to dial; the loopback address when the server listens on all."""
        host = "127.0.0.1" if self.config.bind_address in ("", "0.0.0.0") else self.config.bind_address
        return f"[{host}]:{self._server.port}" if ":" in host else f"{host}:{self._server.port}"

    @property
    def connection_count(self) -> int:
        return len(self._server.connections)

    @property
    def refused_connections(self) -> int:
        return self._server.refused

    async def start(self) -> None:
        """Load the key-value table and listen. KvConfigError or ConnectError when that cannot be done."""
        self.kv = await asyncio.to_thread(kv_config.load, self.config.kv_config_file)
        self._started_ms = self._clock_ms()
        await self.metrics.start()
        try:
            await self._server.start()
            self.metrics.show(figures(self), {"node_type": "nameserver", "node_id": self.address})
        except BaseException:  # a cancelled start too must let go of the port
            await self.metrics.close()
            raise
        self._not_ready = ""
        self._schedule_scan(asyncio.get_running_loop())

    def _ready_reasons(self) -> list[str]:
        return [self._not_ready] if self._not_ready else []

    async def stop(self) -> None:
        """Answer what was accepted, refuse what is not done in shutdownWaitTimeSeconds, and close."""
        if self._scanner is not None:
            self._scanner.cancel()
        self._not_ready = "it stops"
        limit_s = self.config.shutdown_wait_time_seconds
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        refusing = loop.call_at(end_s, self._refuse_waiting)
        await self._server.close(drain_seconds=limit_s + _LAST_ANSWERS_SECONDS)
        if self._tasks:  # of requests that nobody waits for
            await asyncio.wait(list(self._tasks), timeout=max(0.0, end_s - loop.time()))
        refusing.cancel()
        self._refuse_waiting()
        left = [*self._tasks, *self._kv_saving.writes, *self._settings_saving.writes]
        if left:
            await asyncio.wait(left)  # a write that has begun cannot be called back
        await self.metrics.close()

    def _refuse_waiting(self) -> None:
        """The time for stopping is over."""
        if self._tasks:
            _log.warning("stopping: %d requests are not done and are refused", len(self._tasks))
        self._kv_saving.cancel_next()
        self._settings_saving.cancel_next()
        for task in self._tasks:
            task.cancel()

    def scan(self) -> None:
        """Forget the brokers that were silent for their timeout."""
        before = dict(self.tables.live)
        connections, changes = self.tables.expire(self._clock_ms())
        for key in before.keys() - self.tables.live.keys():
            _tell_gone(key, before[key].broker_name, "it was silent for its heartbeat timeout")
        for connection in connections:
            if isinstance(connection, Connection):
                connection.close("the broker was silent for its heartbeat timeout")
        self._tell(changes)

    # ---------------------------------------------------------------------------------------------------- dispatching

    def _handlers(self) -> dict[int, Serve]:
        code = RequestCode
        return {
            code.GET_ROUTEINFO_BY_TOPIC: self._get_route,
            code.REGISTER_BROKER: self._register_broker,
            code.UNREGISTER_BROKER: self._unregister_broker,
            code.BROKER_HEARTBEAT: self._broker_heartbeat,
            code.QUERY_DATA_VERSION: self._query_data_version,
            code.GET_BROKER_MEMBER_GROUP: self._get_member_group,
            code.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            code.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            code.GET_BROKER_CLUSTER_INFO: self._get_cluster_info,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._get_all_topics,
            code.GET_TOPICS_BY_CLUSTER: self._get_topics_by_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._get_system_topics,
            code.GET_UNIT_TOPIC_LIST: self._get_unit_topics,
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: self._get_unit_sub_topics,
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._get_unit_sub_ununit_topics,
            code.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            code.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            code.PUT_KV_CONFIG: self._put_kv,
            code.GET_KV_CONFIG: self._get_kv,
            code.DELETE_KV_CONFIG: self._delete_kv,
            code.GET_KVLIST_BY_NAMESPACE: self._get_kv_list,
            code.UPDATE_NAMESRV_CONFIG: self._update_config,
            code.GET_NAMESRV_CONFIG: self._get_config,
        }

    def handle(self, connection: Connection, commands: list[Command]) -> None:
        """Answer the requests of one wakeup."""
        for command in commands:
            try:
                serve = self._table.get(command.code)
                self.served[command.code if serve is not None else UNKNOWN] += 1
                answer = not_supported(command) if serve is None else serve(connection, command)
            except ContrailError as exc:
                answer = _error(command, exc)
            except Exception as exc:  # noqa: BLE001 - a mistake of ours costs its request, not the others
                _log.exception("%s failed", request_name(command.code))
                answer = _mistake(command, exc)
            if not isinstance(answer, bytes):
                self._spawn(connection, command, answer)
            elif not command.is_oneway:
                connection.reply(answer)

    async def _answer_later(
        self, connection: Connection, command: Command, answer: Coroutine[None, None, bytes]
    ) -> None:
        try:
            data = await answer
        except ContrailError as exc:
            data = _error(command, exc)
        except Exception as exc:  # noqa: BLE001 - without an answer it would keep its connection for ever
            _log.exception("%s failed", request_name(command.code))
            data = _mistake(command, exc)
        except asyncio.CancelledError:
            data = self._too_late(command)
        if not command.is_oneway:
            connection.reply(data)

    def _too_late(self, command: Command) -> bytes:
        limit_s = self.config.shutdown_wait_time_seconds
        remark = f"this NameServer stops and could not do it within shutdownWaitTimeSeconds={limit_s}: ask again"
        return encode_response(command, ResponseCode.SYSTEM_BUSY, remark=remark)

    def _spawn(self, connection: Connection, command: Command, answer: Coroutine[None, None, bytes]) -> None:
        held_bytes = _held_bytes(command)

        def done(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            self._waiting_bytes -= held_bytes
            if task.cancelled():  # before it began: what is cancelled later answers by itself
                answer.close()
                if not command.is_oneway:
                    connection.reply(self._too_late(command))

        task = asyncio.get_running_loop().create_task(self._answer_later(connection, command, answer))
        self._waiting_bytes += held_bytes
        self._tasks[task] = None
        task.add_done_callback(done)

    def _check_room(self, request: Command) -> None:
        """BusyError when the request cannot wait too."""
        size_bytes = _held_bytes(request)
        if self._waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            self.busy_count += 1
            raise BusyError(
                f"{request_name(request.code)} of {size_bytes} bytes: {len(self._tasks)} requests of "
                f"{self._waiting_bytes} bytes wait already, the limit is {WAITING_BYTES_MAX}: ask again later"
            )

    def _disconnected(self, connection: Connection) -> None:
        for key, live in self.tables.live.items():
            if live.connection is connection:
                _tell_gone(key, live.broker_name, "its connection ended")
        self._tell(self.tables.connection_closed(connection))

    def _schedule_scan(self, loop: asyncio.AbstractEventLoop) -> None:
        def run() -> None:
            try:
                self.scan()
            finally:  # the loop logs what went wrong; the next scan comes anyway
                self._schedule_scan(loop)

        self._scanner = loop.call_later(self.config.scan_not_active_broker_interval / 1000, run)

    def _tell(self, changes: list[MinBrokerIdChange]) -> None:
        """Tell the other brokers of a group that its smallest id changed, when configured so."""
        if not self.config.notify_min_broker_id_changed:
            return
        for change in changes:
            header = headers.NotifyMinBrokerIdChange(
                min_broker_id=change.min_broker_id,
                broker_name=change.broker_name,
                min_broker_addr=change.min_broker_address,
                offline_broker_addr=change.offline_address,
                ha_broker_addr=change.ha_address,
            )
            for target in change.targets:
                if isinstance(target, Connection) and target.is_open:
                    target.oneway(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)

    # ---------------------------------------------------------------------------------------------------------- routes

    def _get_route(self, connection: Connection, request: Command) -> bytes:
        header = request.header(headers.GetRouteInfo)
        if self.config.need_wait_for_service:
            ready_ms = self._started_ms + self.config.wait_seconds_for_service * 1000
            if self._clock_ms() < ready_ms:
                return encode_response(request, ResponseCode.SYSTEM_ERROR, remark="name server not ready")
        is_standard = request.version >= STANDARD_JSON_VERSION or bool(header.accept_standard_json_only)
        if header.zone_mode and header.zone_name:
            route = self._route(header.topic)
            body = encode_route(_of_zone(route, header.zone_name), is_standard=is_standard) if route else None
        else:
            body = self._route_body(header.topic, is_standard)
        if body is None:
            remark = f"No topic route info in name server for the topic: {header.topic}\n{_FAQ}"
            return encode_response(request, ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        return _ROUTE_FOUND.render(request, (), body_bytes=len(body)) + body

    def _route_body(self, topic: str, is_standard: bool) -> bytes | None:
        if self._route_generation != self.tables.generation:
            self._forget_route_bodies()
            self._route_generation = self.tables.generation
        key = (topic, is_standard)
        body = self._route_bodies.get(key)
        if body is None:
            route = self._route(topic)
            if route is None:
                return None
            body = encode_route(route, is_standard=is_standard)
            size_bytes = len(body) + len(topic)
            if self._route_bytes + size_bytes > ROUTE_BYTES_MAX:
                self._forget_route_bodies()
            if size_bytes <= ROUTE_BYTES_MAX:
                self._route_bodies[key] = body
                self._route_bytes += size_bytes
        return body

    def _forget_route_bodies(self) -> None:
        self._route_bodies.clear()
        self._route_bytes = 0

    def _route(self, topic: str) -> TopicRouteData | None:
        route = self.tables.route(topic)
        if route is not None and self.config.order_message_enable:
            route.order_topic_conf = self.kv.get(kv_config.ORDER_TOPIC_CONFIG, topic)
        return route

    def _register_topic(self, connection: Connection, request: Command) -> bytes:
        header = request.header(headers.TopicHeader)
        if request.body:
            self.tables.register_topic(header.topic, decode_body(request.body, TopicRouteData).queue_datas)
        return encode_response(request)

    def _delete_topic(self, connection: Connection, request: Command) -> Answer:
        header = request.header(headers.DeleteTopicInNamesrv)

        def delete() -> bytes:
            self.tables.delete_topic(header.topic, header.cluster_name or None)
            return encode_response(request)

        return self._in_turn(request, delete)

    def _get_cluster_info(self, connection: Connection, request: Command) -> bytes:
        return encode_response(request, body=encode_cluster_info(self.tables.cluster_info()))

    def _get_all_topics(self, connection: Connection, request: Command) -> bytes:
        if not self.config.enable_all_topic_list:
            return encode_response(request, ResponseCode.SYSTEM_ERROR, remark="disable")
        return encode_response(request, body=encode_body(TopicList(topic_list=self.tables.topics)))

    def _get_topics_by_cluster(self, connection: Connection, request: Command) -> bytes:
        header = request.header(headers.ClusterHeader)
        return self._topic_list(request, self.tables.topics_of_cluster(header.cluster))

    def _get_system_topics(self, connection: Connection, request: Command) -> bytes:
        topics, address = self.tables.system_topics()
        return encode_response(request, body=encode_body(TopicList(topic_list=topics, broker_addr=address)))

    def _get_unit_topics(self, connection: Connection, request: Command) -> bytes:
        return self._topic_list(request, self.tables.unit_topics())

    def _get_unit_sub_topics(self, connection: Connection, request: Command) -> bytes:
        return self._topic_list(request, self.tables.unit_sub_topics())

    def _get_unit_sub_ununit_topics(self, connection: Connection, request: Command) -> bytes:
        return self._topic_list(request, self.tables.unit_sub_ununit_topics())

    def _topic_list(self, request: Command, topics: list[str]) -> bytes:
        if not self.config.enable_topic_list:
            return encode_response(request, ResponseCode.SYSTEM_ERROR, remark="disable")
        return encode_response(request, body=encode_body(TopicList(topic_list=topics)))

    def _wipe_write_permission(self, connection: Connection, request: Command) -> bytes:
        count = self.tables.wipe_write_permission(request.header(headers.BrokerNameHeader).broker_name)
        return encode_response(request, ext=headers.WipeWritePermResponse(wipe_topic_count=count))

    def _add_write_permission(self, connection: Connection, request: Command) -> bytes:
        count = self.tables.add_write_permission(request.header(headers.BrokerNameHeader).broker_name)
        return encode_response(request, ext=headers.AddWritePermResponse(add_topic_count=count))

    # --------------------------------------------------------------------------------------------------------- brokers

    def _register_broker(self, connection: Connection, request: Command) -> Answer:
        header = request.header(headers.RegisterBroker)
        if not MASTER_ID <= header.broker_id <= BROKER_ID_MAX:
            raise RemoteProtocolError(f"brokerId is {header.broker_id}: it takes {MASTER_ID} to {BROKER_ID_MAX}")
        for field in ("cluster_name", "broker_name", "broker_addr", "ha_server_addr", "zone_name"):
            length = len(getattr(header, field) or "")
            if length > NAME_CHARACTERS_MAX:
                raise RemoteProtocolError(f"{field} has {length} characters, the limit is {NAME_CHARACTERS_MAX}")
        if header.compressed or not is_light(request.body) or self._registrations_read:
            self._check_room(request)
            self._registrations_read += 1
            return self._register_later(connection, request, header)
        return self._registered(connection, request, header, _read_registration(request, header))

    async def _register_later(self, connection: Connection, request: Command, header: headers.RegisterBroker) -> bytes:
        try:
            async with self._registering:
                if not connection.is_open:
                    raise ConnectionClosedError(connection.address, "the broker left before its registration was read")
                read = await asyncio.to_thread(_read_registration, request, header)
            if not connection.is_open:
                raise ConnectionClosedError(connection.address, "the broker left while its registration was read")
            return self._registered(connection, request, header, read)
        finally:
            self._registrations_read -= 1

    def _registered(
        self, connection: Connection, request: Command, header: headers.RegisterBroker, read: ReadRegistration
    ) -> bytes:
        is_known = BrokerKey(header.cluster_name, header.broker_addr) in self.tables.live
        is_known = is_known and self._in_place(header) == header.broker_addr  # nobody has taken it meanwhile
        outcome = self.tables.register(
            Registration(
                cluster=header.cluster_name,
                broker_name=header.broker_name,
                broker_id=header.broker_id,
                address=header.broker_addr,
                ha_address=header.ha_server_addr,
                body=read.body,
                queues=read.queues,
                connection=connection,
                timeout_ms=header.heartbeat_timeout_millis,
                enable_acting_master=header.enable_acting_master,
                zone_name=header.zone_name,
            ),
            self._clock_ms(),
        )
        if outcome.refusal is not None:
            return encode_response(request, ResponseCode.SYSTEM_ERROR, remark=outcome.refusal)
        if not is_known and self._in_place(header) == header.broker_addr:
            text = "broker %s (id %d) of cluster %s registered at %s, with %d topics"
            topics = len(read.queues)
            _log.info(text, header.broker_name, header.broker_id, header.cluster_name, header.broker_addr, topics)
        if outcome.change is not None:
            self._tell([outcome.change])
        ext = headers.RegisterBrokerResponse(
            master_addr=outcome.master_address, ha_server_addr=outcome.master_ha_address
        )
        orders = self.kv.namespace(kv_config.ORDER_TOPIC_CONFIG)
        if orders is None or not self.config.return_order_topic_config_to_broker:
            return encode_response(request, ext=ext)
        return encode_response(request, ext=ext, body=encode_body(KVTable(table=orders)))

    def _in_place(self, header: headers.RegisterBroker) -> str | None:
        """Who has the place that this broker registers for."""
        group = self.tables.brokers.get(header.broker_name)
        return group.broker_addrs.get(header.broker_id) if group is not None else None

    def _unregister_broker(self, connection: Connection, request: Command) -> Answer:
        header = request.header(headers.BrokerIdentity)
        key = BrokerKey(header.cluster_name, header.broker_addr)

        def unregister() -> bytes:
            if key in self.tables.live:
                _tell_gone(key, header.broker_name, "it said goodbye")
            self._tell(self.tables.unregister([key], names={key: header.broker_name}))
            return encode_response(request)

        return self._in_turn(request, unregister)

    def _in_turn(self, request: Command, work: Callable[[], bytes]) -> Answer:
        """What undoes registrations waits for those that came before it and are still being read."""
        if not self._registrations_read:
            return work()
        self._check_room(request)
        self._registrations_read += 1
        return self._after_registrations(work)

    async def _after_registrations(self, work: Callable[[], bytes]) -> bytes:
        try:
            async with self._registering:
                return work()
        finally:
            self._registrations_read -= 1

    def _broker_heartbeat(self, connection: Connection, request: Command) -> bytes:
        header = request.header(headers.BrokerHeartbeat)
        self.tables.heartbeat(header.cluster_name, header.broker_addr, self._clock_ms())
        return encode_response(request)

    def _query_data_version(self, connection: Connection, request: Command) -> bytes:
        header = request.header(headers.BrokerIdentity)
        theirs = decode_body(request.body, DataVersion)
        ours = self.tables.data_version(header.cluster_name, header.broker_addr)
        # Also with another version: RocketMQ's brokers send this as their heartbeat (compatibleWithOldNameSrv).
        self.tables.heartbeat(header.cluster_name, header.broker_addr, self._clock_ms())
        ext = headers.QueryDataVersionResponse(changed=ours != theirs)
        return encode_response(request, ext=ext, body=encode_body(ours) if ours is not None else b"")

    def _get_member_group(self, connection: Connection, request: Command) -> bytes:
        header = request.header(headers.BrokerMemberGroupRequest)
        group = self.tables.member_group(header.cluster_name, header.broker_name)
        return encode_response(request, body=encode_body(BrokerMemberGroupBody(broker_member_group=group)))

    # -------------------------------------------------------------------------------------------- key-values, settings

    def _put_kv(self, connection: Connection, request: Command) -> Answer:
        header = request.header(headers.PutKvConfig)
        self._check_room(request)
        self.kv.put(header.namespace, header.key, header.value)
        return self._saved(request)

    def _delete_kv(self, connection: Connection, request: Command) -> Answer:
        header = request.header(headers.KvKey)
        self._check_room(request)
        self.kv.delete(header.namespace, header.key)
        return self._saved(request)

    async def _saved(self, request: Command) -> bytes:
        """The answer, when a write that began after the change has ended."""
        self.tables.generation += 1  # routes may show order settings
        await self._kv_saving.saved()
        return encode_response(request)

    def _save_kv(self) -> Callable[[], None]:
        return partial(kv_config.save, self.config.kv_config_file, self.kv.to_json())

    def _get_kv(self, connection: Connection, request: Command) -> bytes:
        header = request.header(headers.KvKey)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return encode_response(request, ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return encode_response(request, ext=headers.KvValueResponse(value=value))

    def _get_kv_list(self, connection: Connection, request: Command) -> bytes:
        header = request.header(headers.NamespaceHeader)
        table = self.kv.namespace(header.namespace)
        if table is None:
            remark = f"No config item, Namespace: {header.namespace}"
            return encode_response(request, ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return encode_response(request, body=encode_body(KVTable(table=table)))

    def _update_config(self, connection: Connection, request: Command) -> Answer:
        self._check_room(request)
        try:
            changes = parse_properties(request.body.decode())
        except UnicodeDecodeError as exc:
            return encode_response(request, ResponseCode.SYSTEM_ERROR, remark=f"settings are not UTF-8 text: {exc}")
        blocked = sorted(self.config.blocked_keys & changes.keys())
        if blocked:
            remark = f"Can not update config in black list: {', '.join(blocked)}"
            return encode_response(request, ResponseCode.NO_PERMISSION, remark=remark)
        refusal = remote_refusal(changes, PROTECTED_KEYS, self.config.allow_remote_config)
        if refusal:
            return encode_response(request, ResponseCode.NO_PERMISSION, remark=refusal)
        self.config = self.config.updated(changes)
        self._apply_config()
        self._changed_settings.update({key: changes[key] for key in self.config.keys() & changes.keys()})
        return self._saved_settings(request)

    async def _saved_settings(self, request: Command) -> bytes:
        await self._settings_saving.saved()
        return encode_response(request)

    def _save_settings(self) -> Callable[[], None]:
        return partial(kv_config.save_settings, self.config.config_file, dict(self._changed_settings))

    def _get_config(self, connection: Connection, request: Command) -> bytes:
        values = self.config.to_properties()
        values["rocketmqHome"] = str(self.config.home)
        values["kvConfigPath"] = str(self.config.kv_config_file)
        values["configStorePath"] = str(self.config.config_file)
        return encode_response(request, body=format_properties(values).encode())

    def _apply_config(self) -> None:
        self.tables.delete_unmentioned_topics = self.config.delete_topic_with_broker_registration
        self.tables.support_acting_master = self.config.support_acting_master
        self.tables.generation += 1


def _read_registration(request: Command, header: headers.RegisterBroker) -> ReadRegistration:
    check_crc(request.body, header.body_crc32)
    name, must_not_write = header.broker_name, header.broker_id != MASTER_ID and bool(header.enable_acting_master)
    return read_registration(
        request.body,
        is_compressed=bool(header.compressed),
        version=request.version,
        to_queues=lambda config: queue_data(name, config, must_not_write=must_not_write),
    )


def _of_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Only the brokers of one zone, and those without a master, which clients may still read from."""
    shown = [data for data in route.broker_datas if data.zone_name == zone or 0 not in data.broker_addrs]
    names = {data.broker_name for data in shown}
    route.broker_datas = shown
    route.queue_datas = [queues for queues in route.queue_datas if queues.broker_name in names]
    return route


def _held_bytes(request: Command) -> int:
    return WAITING_BYTES + len(request.body) + sum(len(name) + len(value) for name, value in request.ext.items())


def _error(request: Command, error: ContrailError) -> bytes:
    peer_warnings.warn(f"{request_name(request.code)} refused", str(error))
    code = ResponseCode.SYSTEM_BUSY if isinstance(error, BusyError) else ResponseCode.SYSTEM_ERROR
    return encode_response(request, code, remark=str(error))


def _mistake(request: Command, error: Exception) -> bytes:
    return encode_response(request, ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"[:1000])
