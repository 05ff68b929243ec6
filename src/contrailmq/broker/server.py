"""BrokerServer: one broker's life, from a configuration to a port that answers, and back.

Everything runs on one loop: sockets, appends, dispatch, held pulls. Blocking work has threads: the store's own, one
that writes tables, and a few that read what is not in memory. Start order is store, tables, port, registration; a
failure anywhere undoes what was done and says what to change. Stop order: leave the NameServers, answer what is
waiting, close the port, save, close the store.

Other parts join through `handlers` (a request code), `node.rewrites` (a message on its way in) and `add_service` (work
that is due now and then).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

from contrailmq._faults import LastingFault
from contrailmq.broker.adoption import Adoption
from contrailmq.broker.cluster.acting import Acting
from contrailmq.broker.cluster.advertise import Advertised, advertised_address
from contrailmq.broker.cluster.escape import Escape
from contrailmq.broker.cluster.log_following import LogFollowing
from contrailmq.broker.cluster.master_link import open_link
from contrailmq.broker.cluster.pre_online import SERVED, PreOnline, Progress
from contrailmq.broker.cluster.registration import Registration
from contrailmq.broker.cluster.replication import MasterReplication
from contrailmq.broker.cluster.resync import resync
from contrailmq.broker.cluster.routed_queues import RoutedQueues
from contrailmq.broker.cluster.slave_sync import SlaveSync
from contrailmq.broker.config import BrokerConfig, BrokerConfigError
from contrailmq.broker.handlers import Handlers
from contrailmq.broker.metrics import BrokerFigures, live_reasons, ready_reasons
from contrailmq.broker.metrics.health import STARTING, STOPPING
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.processors import Processors
from contrailmq.broker.state.config_files import ConfigFileError, TableSaveError, save
from contrailmq.broker.state.duty import Duty
from contrailmq.broker.state.keeping import TOPICS_FILE
from contrailmq.broker.state.offset_journal import NOTE_MS
from contrailmq.broker.state.offsets import OFFSETS_FILE, SEPARATOR
from contrailmq.broker.state.persistence import SavePause, TableSaver
from contrailmq.broker.state.topics import saved_batch_topics
from contrailmq.broker.supervision import Service, Supervisor
from contrailmq.message import ContrailError
from contrailmq.metrics import Metrics
from contrailmq.store import (
    STORE_DESCRIPTORS,
    Clock,
    Drive,
    Files,
    MessageStore,
    StoreConfig,
    StoreConfigError,
    SystemClock,
    recorded_path,
    settings_to_record,
)
from contrailmq.wire.connection import SERVER_LIMITS, Connection
from contrailmq.wire.errors import ConnectError
from contrailmq.wire.properties import SettingsError, read_properties
from contrailmq.wire.ration import Ration
from contrailmq.wire.refusals import MASTER_ASKS_SLAVES
from contrailmq.wire.tls import ServerTls
from contrailmq.wire.transport import UNFINISHED_BYTES_MAX, RemotingClient, RemotingServer

log = logging.getLogger("contrailmq.broker")

HA_PORT: Final = 10_912  # haListenPort where nobody sets it
VIP_PORT_DISTANCE: Final = 2  # clients up to 4.4 send to listenPort - 2
COLD_READERS: Final = 4

FIRST_REGISTRATION_S: Final = 5.0
ONLINE_S: Final = 15.0  # how long a start waits for slaves to say how far they have come without their master
SLAVES_DRAIN_S: Final = 1.0  # what slaves get at a stop, to take the end of the log
EXPIRE_MS: Final = 100  # how late a held pull, a flush timeout or a slave's may be noticed
RECHECK_MS: Final = 5_000
STANDSTILL_MS: Final = 1_000  # how soon dispatch goes on when there is room again
CLIENT_SCAN_MS: Final = 10_000
SAMPLE_MS: Final = 10_000
STORE_WATCH_MS: Final = 1_000
ROUTES_MS: Final = 60_000  # in which every client has asked for its routes again: they do so every 30 s
LOOP_LOOK_S: Final = 0.1  # how often the loop's delay is measured


class PortError(ContrailError):
    """A port of the broker cannot be listened on; nothing was started."""

    def __init__(self, host: str, port: int, error: ConnectError | OSError) -> None:
        reason = error.__cause__ or error
        super().__init__(
            f"cannot listen on {host}:{port}: {reason}; stop what listens there, or set listenPort (a broker takes "
            f"that port and, unless enableFastListenPort=false, the one {VIP_PORT_DISTANCE} below it), haListenPort "
            "(the next one, unless it is set) or bindAddress"
        )
        self.host, self.port = host, port


class BrokerServer:
    """One broker. `await start()`, `await stop()`; `node` holds its tables, `failed` is set when it must not go on."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        tls: ServerTls | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` is for incoming connections, `client_tls` for outgoing ones: to NameServers and the master.
        `files` is the store's door to the disk; tests put a faulty one there."""
        self.config = config
        self.clock = clock or SystemClock()
        self.store = MessageStore(store_config, files=files, clock=self.clock, drive=Drive.LOOP)
        self.handlers = Handlers()
        self.supervisor = Supervisor(self.store.store_clock.look, self._gave_up)
        self.failed: asyncio.Event = asyncio.Event()
        self._tls, self._client_tls = tls, client_tls
        self._servers: list[RemotingServer] = []
        self._table_worker = ThreadPoolExecutor(1, "contrailmq-tables")
        self._cold_readers = ThreadPoolExecutor(COLD_READERS, "contrailmq-cold-read")
        self._client = RemotingClient(tls=client_tls)
        self._save_pause = SavePause()
        self._unwritable = LastingFault(log, f"broker {config.broker_name} takes no messages")
        self.replication: MasterReplication | None = None
        self._is_running = False
        self._not_ready = STARTING  # empty while it is for others to say
        self.metrics: Metrics | None = None
        self._back_since_ms: int | None = None  # since when the NameServers name a master of this slave
        self._changed: dict[str, str] = {}

    # --- life

    async def start(self) -> None:
        """Open the store, load the tables, listen, register. Raises a ContrailError that says what to change."""
        self._load_changed_settings()
        self.config.check()
        self._check_role()
        own_ip = "" if self.config.metrics_prom_exporter_host else self._advertised().ip
        settings = self.config.export_settings(own_ip)
        self.metrics = Metrics(settings, live=self._live_reasons, ready=self._ready_reasons)
        await self.metrics.start()  # first: probes are answered while a store recovers
        try:
            await self._start()
        except BaseException:  # a cancelled start too must let go of the port
            await self.metrics.close()
            raise
        self._not_ready = ""

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self.config.resync:
            await resync(self.config, self.store.config, self._client, self.store.files)
        self.store.set_batch_topics(saved_batch_topics(self.store.config.path / "config" / TOPICS_FILE))
        await loop.run_in_executor(None, self.store.open)
        try:
            self._build(loop)
            if self._asks_slaves_first:
                self.handlers.restrict(SERVED, MASTER_ASKS_SLAVES)
                self.registration.is_held_back, self.node.duty = True, Duty.FOLLOW
            else:
                self._start_services()
            await self._listen()
            self._show_figures()
            await self.registration.check_name(FIRST_REGISTRATION_S)
        except BaseException:  # a cancelled start too must not keep ports and the store's lock
            await self._close_ports(0)
            try:
                await self.supervisor.stop()
            except ContrailError as exc:  # the first cause is raised, not what follows from it
                log.error("%s", exc)
            await loop.run_in_executor(None, self.store.close)
            raise
        self._is_running = True
        self._start_background()
        if self.registration.is_held_back:
            await self._wait_until_online()
        registered = await self._register_first()
        log.info(
            "broker %s of %s listens on %s:%d, gives clients %s, and is registered with %d of %d NameServers",
            self.config.broker_name,
            self.config.broker_cluster_name,
            self.config.bind_address,
            self.port,
            self.node.address,
            registered,
            len(self.config.namesrv_addresses),
        )

    async def _register_first(self) -> int:
        """Register before `ready` is printed; a NameServer that does not answer delays that only a little."""
        try:
            async with asyncio.timeout(FIRST_REGISTRATION_S):
                return await self.registration.register_all()
        except TimeoutError:
            log.warning("not every NameServer answered within %g s: registering goes on", FIRST_REGISTRATION_S)
            self.registration.register_soon()
            return 0

    # --- coming online

    @property
    def _asks_slaves_first(self) -> bool:
        config = self.config
        is_master = not self.store.config.is_slave and bool(config.namesrv_addresses)
        return is_master and config.enable_slave_acting_master and not config.skip_pre_online

    async def _wait_until_online(self) -> None:
        try:
            async with asyncio.timeout(ONLINE_S):
                await self._is_online.wait()
        except TimeoutError:
            log.warning("not every slave was heard within %g s: this master is online when they were", ONLINE_S)

    async def _come_online(self) -> None:
        """Take over what slaves did without this master, and begin to serve."""
        assert self.replication is not None
        asking = PreOnline(
            self.node,
            self._client,
            ha_address=lambda: self.registration.ha_address,
            connected=self.replication.server.hosts,
        )
        progress = await asking.run()
        try:
            self._take_over(progress)
        except ContrailError as exc:
            log.critical("what slaves did without this master cannot be taken over: %s; the broker stops", exc)
            self.failed.set()
            return
        self.handlers.lift()
        self.registration.is_held_back = False
        self._is_online.set()
        self.registration.register_soon()

    def _take_over(self, progress: Progress) -> None:
        node = self.node
        for (key, queue_id), offset in progress.offsets.items():
            topic, _, group = key.partition(SEPARATOR)
            if offset > (node.offsets.stored(key, queue_id) or 0):
                node.commit_offset(group, topic, queue_id, offset)
        node.duty = Duty.DELIVER
        self._start_services()
        self.delay.take_over(progress.levels)
        self.timers.take_over(progress.timers)

    def _start_services(self) -> None:
        for service in self._services:
            self.add_service(service)
        self.node.positions_loaded()

    def _change_duty(self, duty: Duty) -> None:
        """End the services, which saves how far they have come, and begin again."""
        for service in self._services:
            service.stop()
        self.escape.forget()
        self.node.duty = duty
        if duty is Duty.ESCAPE:
            self.escape.open()
        for service in self._services:
            service.start()

    def _take_in(self) -> None:
        now_ms = self.store.store_clock.look()
        for service in self._services:
            service.tick(now_ms)

    @property
    def port(self) -> int:
        return self._servers[0].port

    @property
    def address(self) -> str:
        """The address that clients get."""
        return self.node.address

    def join(self, client: Connection) -> None:
        """Serve a client of this process without a socket; ConnectError once the broker stops."""
        self._servers[0].join(client, self.address)

    async def stop(self) -> None:
        """Leave the NameServers, answer what waits, save, close. Idempotent."""
        if not self._is_running:
            return
        self._is_running = False
        self._not_ready = STOPPING
        await self.registration.unregister_all()
        await self.acting.end_part()
        self.node.is_accepting = False
        self.node.held.release_all()
        self.pop.release_all()
        self.lite.release_all()
        drain_s = self.config.graceful_stop_ms / 1000
        try:
            async with asyncio.timeout(drain_s):
                await self.handlers.drain()
        except TimeoutError:
            self.handlers.cancel()
        await self._close_ports(drain_s)
        loop = asyncio.get_running_loop()
        # What cannot be saved is raised at the end, after the rest is saved and the store closed.
        async with contextlib.AsyncExitStack() as acts:
            acts.callback(self._end_workers)
            acts.push_async_callback(lambda: loop.run_in_executor(None, self.store.close))
            acts.push_async_callback(self._close_metrics)
            acts.callback(self.node.offset_journal.close)
            acts.callback(self.pop.close)
            acts.push_async_callback(lambda: loop.run_in_executor(self._table_worker, self._save_all_now))
            acts.callback(self.node.dispatch_now)
            acts.push_async_callback(self._client.close)
            acts.callback(self.escape.forget)
            await self.supervisor.stop()
        log.info("broker %s stopped", self.config.broker_name)

    def _save_all_now(self) -> None:
        self.saver.save_all_now()
        self.node.offset_journal.clear()
        self.pop.saved()

    async def kill(self) -> None:
        """Drop everything as a crash would: nothing is saved, nothing is flushed. For tests."""
        if not self._is_running:
            return
        self._is_running = False
        await self._close_metrics()
        await self._close_ports(0)
        await self.supervisor.abandon()
        self.registration.cancel()
        self.node.offset_journal.close()
        self.delay.crash()
        self.timers.crash()
        self.pop.close()
        self.handlers.cancel()
        self.escape.forget()
        await self._client.close()
        await asyncio.get_running_loop().run_in_executor(None, self.store.abandon)
        self._end_workers()

    def add_service(self, service: Service) -> None:
        """Work that is due now and then; call it between `start` and `stop`."""
        self.supervisor.add(service)

    # --- seen from outside

    def _live_reasons(self) -> list[str]:
        return live_reasons(has_failed=self.failed.is_set())

    def _ready_reasons(self) -> list[str]:
        return [self._not_ready] if self._not_ready else ready_reasons(self.node, self.registration)

    def _show_figures(self) -> None:
        """From now on there are figures."""
        assert self.metrics is not None
        assert self.replication is not None
        replication = self.replication
        figures = self.figures
        figures.slaves = replication.status
        figures.replication_times = lambda: replication.times
        if self.log_following is not None:
            figures.follow_figures = self.log_following.figures
        figures.survey.popped = self._popped
        figures.open_connections = lambda: sum(len(server.connections) for server in self._servers)
        figures.refused_connections = lambda: sum(server.refused for server in self._servers)
        self.metrics.show(figures.table(), figures.common_labels(), figures.prepare)

    def _popped(self, topic: str, group: str, queue_id: int) -> tuple[int, Collection[int]] | None:
        queue = self.pop.in_flight.queues.get((topic, group, queue_id))
        return None if queue is None else (queue.next_offset, queue.waiting)

    async def _close_metrics(self) -> None:
        if self.metrics is not None:
            await self.metrics.close()

    async def _look_at_loop(self) -> None:
        """How late the loop comes back: what every request waits for besides its own work."""
        loop, delays = asyncio.get_running_loop(), self.figures.loop_delays
        while True:
            due_s = loop.time() + LOOP_LOOK_S
            await asyncio.sleep(LOOP_LOOK_S)
            delays.note(max(int((loop.time() - due_s) * 1_000_000), 0))

    # --- building

    def _advertised(self) -> Advertised:
        config = self.config
        return advertised_address(
            configured=config.broker_ip1,
            bind_address=config.bind_address,
            namesrv_addresses=config.namesrv_addresses,
        )

    def _record_settings(self) -> None:
        """Leave for `contrailmq store` what it needs to know of the settings; blocks for a moment, at the start."""
        text = settings_to_record(self.store.config)
        if text is not None:
            try:
                save(recorded_path(self.store.config.path), text)
            except TableSaveError as exc:
                log.warning("tools will need the broker's configuration file (-c): %s", exc)

    def _load_changed_settings(self) -> None:
        """What an operator changed while an earlier run was up wins over the file it was started with."""
        path = self.store.config.path / "config" / "broker.properties"
        if not path.exists():
            return
        try:
            self._changed = read_properties(path)
            own, of_store = self.config.split(self._changed)
            self.config.update(own)
            self.store.config.change(of_store)
        except (SettingsError, BrokerConfigError, StoreConfigError) as exc:
            raise ConfigFileError(f"{path}: {exc}; mend or remove the file") from exc

    def _check_role(self) -> None:
        """brokerRole decides, as in RocketMQ: a slave has an id of its own, and a master is always 0."""
        config, is_slave = self.config, self.store.config.is_slave
        if is_slave and config.broker_id == 0:
            raise BrokerConfigError("brokerId", 0, "brokerRole=SLAVE needs an id above 0: 0 is the master's")
        if not is_slave and config.broker_id != 0:
            log.warning("brokerId=%d is taken as 0: brokerRole says that this is a master", config.broker_id)
            config.broker_id = 0
        if config.resync and not is_slave:
            raise BrokerConfigError("resync", "true", "only a slave has a master to go by: start it without --resync")
        if config.enable_slave_acting_master and is_slave and not config.slave_read_enable:
            log.warning(
                "enableSlaveActingMaster=true without slaveReadEnable=true: consumers cannot read from this slave "
                "while it stands in for its master"
            )
        if config.ha_tls and is_slave and self._client_tls is None:
            raise BrokerConfigError(
                "haTls", "true", "a slave needs tls.enable=true for it, and tls.client.trustCertPath"
            )
        if config.ha_tls and not is_slave and (self._tls is None or self._tls.context is None):
            raise BrokerConfigError("haTls", "true", "a master needs tls.server.certPath and tls.server.keyPath for it")

    def _build(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self.config
        advertised = self._advertised()
        log.info("clients get the address %s (%s)", advertised.ip, advertised.reason)
        if advertised.warning:
            log.warning("%s", advertised.warning)
        self._advertised_ip = advertised.ip
        self.node = node = BrokerNode(
            config,
            self.store,
            clock=self.clock,
            call_soon=loop.call_soon,
            address=(advertised.ip, config.listen_port),
        )
        node.changed_settings.update(self._changed)
        node.load()
        self._record_settings()
        self.saver = TableSaver(
            node.config_path, node.snapshots(), self._table_worker, lost_reason=lambda: self.store.lost_reason
        )
        self.registration = Registration(
            node, self._client, ha_address=f"{config.broker_ip2 or advertised.ip}:{self.store.config.ha_listen_port}"
        )
        replication = self.replication = MasterReplication(node, self._client, self._cold_readers)
        self.slave_sync: SlaveSync | None = None
        self.log_following: LogFollowing | None = None
        self._register_processors()
        node.keeping.when_saved = self.saver.when_saved
        node.keeping.when_registered = self.registration.when_registered
        node.topics.listen(lambda topic: self._topics_changed())
        self.runtime.slaves = replication.status
        self.store.on_durable(lambda offset: self._hop(loop, lambda: self._durable(offset)))
        self.store.on_committed(lambda: self._hop(loop, node.committed))

    def _register_processors(self) -> None:
        processors = Processors(
            self.node,
            self.handlers,
            self.saver,
            tables=self._table_worker,
            readers=self._cold_readers,
            configured=self.registration.register_soon,
        )
        self.send, self.members, self.runtime = processors.send, processors.members, processors.runtime
        self.pop, self.transactions, self.delay, self.timers, self.lite = self._services = processors.services
        if self.config.namesrv_addresses:
            processors.assignment.route = RoutedQueues(self.node, self._client).of
        self.figures = BrokerFigures(
            self.node,
            self.handlers,
            readers=self._cold_readers,
            transactions=self.transactions,
            delay=self.delay,
            timers=self.timers,
        )
        self._build_acting()
        if self.node.is_slave:
            self._follow_master(processors.adoption)

    def _build_acting(self) -> None:
        """Who delivers what is due in this group, and where to."""
        self._is_online = asyncio.Event()
        self.node.elsewhere = self.escape = Escape(self.node, self._client)
        self.acting = Acting(
            self.node,
            self._client,
            self.escape,
            self.timers,
            change=self._change_duty,
            take_in=self._take_in,
            look_again=self.registration.register_soon,
            ha_address=lambda: self.registration.ha_address,
        )
        self.acting.register(self.handlers)
        if self.config.enable_slave_acting_master:
            self.runtime.figures.append(self.acting.figures)

    def _follow_master(self, adoption: Adoption) -> None:
        """What a slave copies: tables by asking, the log by following."""
        look_again = self.registration.register_soon
        tables = self.slave_sync = SlaveSync(
            self.node, self._client, self.saver, self.delay, self.timers, adoption, look_again=look_again
        )
        connect = partial(open_link, tls=self._client_tls if self.config.ha_tls else None)
        following = self.log_following = LogFollowing(self.node, self._client, look_again=look_again, connect=connect)
        self.runtime.figures.append(following.figures)
        self.runtime.following = following.status
        self.acting.master = following

        def told(address: str, ha_address: str) -> None:
            tables.master_told(address, ha_address)
            following.master_told(address, ha_address)
            self._note_master(has_master=bool(tables.master))

        self.registration.follow(told)

    def _note_master(self, *, has_master: bool) -> None:
        """Consumers that wait here go to the master that is back.

        Where a slave stood in for it, their routes call this slave the master until they are asked for again: whoever
        were sent on now would be back at once, again and again. So they wait here, where the log goes on, until then.
        """
        node, now_ms = self.node, self.node.monotonic_ms()
        if not has_master:
            node.has_master, self._back_since_ms = False, None
        elif not node.has_master:
            self._back_since_ms = now_ms if self._back_since_ms is None else self._back_since_ms
            if self.config.enable_slave_acting_master and now_ms - self._back_since_ms < ROUTES_MS:
                return  # each registration with a NameServer asks again
            node.has_master = True
            node.held.release_all()

    def _durable(self, offset: int) -> None:
        self.node.durable(offset)
        if self.log_following is not None:
            self.log_following.durable(offset)

    async def _listen(self) -> None:
        config = self.config
        ports = [config.listen_port]
        if config.is_vip_channel_enabled and config.listen_port > VIP_PORT_DISTANCE:
            ports.append(config.listen_port - VIP_PORT_DISTANCE)
        limits = replace(SERVER_LIMITS, write_bytes_max=config.unsent_bytes_max)
        ration = Ration(UNFINISHED_BYTES_MAX)
        for port in ports:
            server = RemotingServer(
                self.handlers.handle,
                host=config.bind_address,
                port=port,
                tls=self._tls,
                idle_seconds=config.server_channel_max_idle_time_seconds,
                limits=limits,
                ration=ration,
                reserved_descriptors=STORE_DESCRIPTORS,
                on_disconnect=self.members.disconnected,
            )
            try:
                await server.start()
            except ConnectError as exc:
                raise PortError(config.bind_address, port, exc) from exc
            self._servers.append(server)
        assert self.replication is not None
        try:
            context = self._tls.context if self._tls is not None and config.ha_tls else None
            await self.replication.listen(config.bind_address, self._ha_port, context)
        except OSError as exc:
            raise PortError(config.bind_address, self._ha_port, exc) from exc
        ha_ip = config.broker_ip2 or self._advertised_ip
        self.registration.ha_address = f"{ha_ip}:{self.replication.port}"
        self.node.set_address(self._advertised_ip, self.port)
        self.send.configure()

    @property
    def _ha_port(self) -> int:
        """Of the HA port; 0 takes a free one. Next to a port that was chosen freely anybody may be."""
        port = self.store.config.ha_listen_port
        return 0 if self.config.listen_port == 0 and port == HA_PORT else port

    async def _close_ports(self, drain_s: float) -> None:
        """Clients first: their last answers may wait for slaves."""
        await asyncio.gather(*(server.close(drain_s) for server in self._servers))
        if self.replication is not None:
            if drain_s:
                await self.replication.drain(min(drain_s, SLAVES_DRAIN_S))
            self.replication.close()

    def _end_workers(self) -> None:
        self._table_worker.shutdown(wait=True)
        self._cold_readers.shutdown(wait=True, cancel_futures=True)

    # --- background

    def _start_background(self) -> None:
        node, keep = self.node, self.supervisor
        keep.every("held pulls", EXPIRE_MS, lambda: node.held.expire(node.monotonic_ms()))
        keep.every("held pulls check", RECHECK_MS, lambda: node.held.recheck(self.store.max_offset))
        keep.every("dispatch that has stopped", STANDSTILL_MS, node.dispatch_again)
        keep.every("flush timeouts", EXPIRE_MS, lambda: node.parked.expire(node.monotonic_ms()))
        assert self.replication is not None
        keep.every("slaves", EXPIRE_MS, self.replication.tick)
        if not node.is_slave:
            keep.watch("members of the group", self.replication.members.run)
            self.replication.warn_about_settings()
        keep.every("client scan", CLIENT_SCAN_MS, lambda: self.members.expire(node.monotonic_ms()))
        keep.every("statistics", SAMPLE_MS, lambda: node.statistics.tick(node.monotonic_ms(), wall_ms=node.now_ms()))
        keep.every("store watch", STORE_WATCH_MS, self._watch_store)
        keep.watch("delay of the loop", self._look_at_loop)
        if not node.is_slave:
            node.offset_journal.open()
            keep.every("offset journal", NOTE_MS, node.offset_journal.note)
        keep.watch("offset saver", self._save_offsets)
        keep.watch("table saver", self.saver.run)
        if self.slave_sync is not None:
            keep.watch("copy of the master's tables", self.slave_sync.run)
        if self.log_following is not None:
            keep.watch("copy of the master's log", self.log_following.run)
        if self.config.enable_slave_acting_master:
            keep.watch("signs of life", self.acting.beat)
            if node.is_slave:
                keep.watch("who is alive in the group", self.acting.watch)
        if self.registration.is_held_back:
            keep.watch("coming online", self._come_online)
        keep.watch("registration", self.registration.run)  # also without a NameServer: one may be named later
        keep.watch("NameServer connections", self.registration.keep_connected)

    def _watch_store(self) -> None:
        """A full disk, a failed sync, files that are gone: the log says when it begins, hourly, and when it ends."""
        reason = self.store.unwritable_reason
        if reason and not self.node.is_slave:
            self._unwritable.goes_on(reason)
        else:
            self._unwritable.is_over("it takes them again")

    async def _save_offsets(self) -> None:
        while True:
            offsets = self.node.offsets
            await asyncio.sleep(self._save_pause.seconds(self.config.flush_consumer_offset_interval / 1000))
            if offsets.is_dirty:
                offsets.is_dirty = False
                began_s = time.monotonic()
                with contextlib.suppress(TableSaveError):  # logged, and the table saver tries again
                    await self.saver.save(OFFSETS_FILE)
                self._save_pause.note(time.monotonic() - began_s)

    def _topics_changed(self) -> None:
        self.saver.mark_soon(TOPICS_FILE)
        self.registration.register_soon()

    def _hop(self, loop: asyncio.AbstractEventLoop, news: Callable[[], None]) -> None:
        """News from a thread of the store: tell the loop. A loop that is already closed has nobody waiting."""
        try:
            loop.call_soon_threadsafe(news)
        except RuntimeError:
            log.debug("the loop was closed before the last flush")

    def _gave_up(self, name: str) -> None:
        self.failed.set()
