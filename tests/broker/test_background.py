"""What runs beside requests: registration, supervised tasks, saving of tables, and bounds under many clients."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from broker.harness import Bench, Link, pull_fields, send_fields
from contrailmq.broker import supervision
from contrailmq.broker.cluster import registration as registration_module
from contrailmq.broker.cluster.registration import Registration
from contrailmq.broker.state import persistence
from contrailmq.broker.state.config_files import TableSaveError
from contrailmq.broker.state.persistence import SavePause, TableSaver
from contrailmq.broker.state.topics import Topic
from contrailmq.broker.supervision import FAILURES_MAX, Supervisor
from contrailmq.message.codec import BatchPart, encode_batch
from contrailmq.store.base.errors import StoreLostError
from contrailmq.wire.bodies import ClusterInfo, KVTable, RegisterBrokerBody, decode_body, encode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ConnectError
from contrailmq.wire.frame import FrameParser, encode_response
from contrailmq.wire.header import Command, Fields, to_ext
from contrailmq.wire.transport import RemotingClient


class NameServers(RemotingClient):
    """NameServers that note what they are told; those in `gone` cannot be reached."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int, dict[str, str], bytes]] = []
        self.gone: set[str] = set()
        self.refusing: set[str] = set()
        self.order_topics: dict[str, str] = {}
        self.master = ""
        self.masters: dict[str, str] = {}  # what single ones answer

    async def invoke(
        self, address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command:
        if address in self.gone:
            raise ConnectError(address, "refused")
        if code == RequestCode.GET_BROKER_CLUSTER_INFO:  # asked before each registration; nobody else is there
            return FrameParser().feed(encode_response(Command(), body=encode_body(ClusterInfo())))[0]
        self.told.append((address, code, to_ext(ext or {}), body))
        master = self.masters.get(address, self.master)
        answer_ext = {"masterAddr": master, "haServerAddr": "h:1"} if master else None
        answer_body = encode_body(KVTable(table=self.order_topics)) if self.order_topics else b""
        frame = encode_response(Command(), 1 if address in self.refusing else 0, answer_ext, answer_body)
        return FrameParser().feed(frame)[0]


def registration(bench: Bench, servers: NameServers) -> Registration:
    async def make() -> Registration:
        return Registration(bench.node, servers, ha_address="10.0.0.2:10912")

    return bench.run(make())


@pytest.fixture
def servers(bench: Bench) -> NameServers:
    bench.config.namesrv_addr = "a:1;b:2"
    return NameServers()


def test_two_rounds_of_registration_may_begin_at_once(bench: Bench, servers: NameServers) -> None:
    """A start's own, and one for a topic that it made."""
    told = servers.invoke

    async def answers_later(*asked: object) -> Command:
        await asyncio.sleep(0)
        return await told(*asked)

    servers.invoke = answers_later
    both = registration(bench, servers)

    async def at_once() -> list[int]:
        return await asyncio.gather(both.register_all(), both.register_all())

    assert 2 in bench.run(at_once())


def test_every_name_server_is_told_every_topic(bench: Bench, servers: NameServers) -> None:
    bench.node.topics.put(Topic("T", read_queues=3, write_queues=4, attributes={"message.type": "FIFO"}))
    assert bench.run(registration(bench, servers).register_all()) == 2
    address, code, ext, body = servers.told[0]
    assert {entry[0] for entry in servers.told} == {"a:1", "b:2"}
    assert (address, code) == ("a:1", 103)
    assert ext["brokerAddr"] == "10.0.0.2:10911"
    assert (ext["brokerName"], ext["clusterName"], ext["brokerId"]) == ("b", "C", "0")
    assert ext["haServerAddr"] == "10.0.0.2:10912"
    wrapper = decode_body(body, RegisterBrokerBody).topic_config_serialize_wrapper
    assert wrapper.data_version.counter == bench.node.topics.version.counter
    assert {"TBW102", "T", "C", "b"} <= set(wrapper.topic_config_table)
    assert wrapper.topic_config_table["T"].read_queue_nums == 3


def test_one_that_is_gone_does_not_keep_the_others_from_hearing_and_is_logged_once(
    bench: Bench, servers: NameServers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told = registration(bench, servers)
    servers.gone.add("a:1")
    servers.refusing.add("b:2")
    for _ in range(3):
        assert bench.run(told.register_all()) == 0
    assert sum("not registered" in record.message for record in caplog.records) == 2
    servers.gone.clear()
    servers.refusing.clear()
    assert bench.run(told.register_all()) == 2
    assert sum("registered with NameServer" in record.message for record in caplog.records) >= 2
    servers.gone.add("a:1")
    bench.run(told.unregister_all())
    assert [(address, code) for address, code, _, _ in servers.told][-1] == ("b:2", 104)


def test_the_answer_tells_ordered_topics_and_a_slave_its_master(bench: Bench, servers: NameServers) -> None:
    bench.node.topics.put(Topic("T"))
    servers.order_topics = {"T": "b:4"}
    servers.master = "10.0.0.1:10911"
    found: list[tuple[str, str]] = []
    told = registration(bench, servers)
    told.follow(lambda address, ha_address: found.append((address, ha_address)))
    bench.run(told.register_all())
    topic = bench.node.topics.get("T")
    assert topic is not None
    assert topic.order
    assert found == [("10.0.0.1:10911", "h:1")]


def test_the_master_is_the_one_that_the_first_name_server_with_one_tells_and_gone_when_all_say_so(
    bench: Bench, servers: NameServers
) -> None:
    found: list[str] = []
    told = registration(bench, servers)
    told.follow(lambda address, ha_address: found.append(address))
    servers.masters = {"a:1": "", "b:2": "10.0.0.1:1"}
    bench.run(told.register_all())
    servers.masters = {"a:1": "10.0.0.2:1", "b:2": "10.0.0.1:1"}
    bench.run(told.register_all())
    servers.masters = {}
    bench.run(told.register_all())
    servers.gone.add("a:1")
    servers.refusing.add("b:2")
    bench.run(told.register_all())  # nobody says anything
    assert found == ["10.0.0.1:1", "10.0.0.2:1", ""]


def test_a_broker_that_may_not_be_written_registers_its_topics_so(bench: Bench, servers: NameServers) -> None:
    bench.node.topics.put(Topic("T"))
    bench.config.broker_permission = 4
    body = decode_body(bench.run(registration(bench, servers).body()), RegisterBrokerBody)
    assert body.topic_config_serialize_wrapper.topic_config_table["T"].perm == 4


def test_a_changed_topic_is_told_at_once(bench: Bench, servers: NameServers) -> None:
    told = registration(bench, servers)
    heard = asyncio.Event()

    async def listen() -> None:
        original = servers.invoke

        async def invoke(
            address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
        ) -> Command:
            heard.set()
            return await original(address, code, ext, body, timeout_s)

        servers.invoke = invoke  # type: ignore[method-assign]
        task = asyncio.get_running_loop().create_task(told.run())
        told.register_soon()
        await heard.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    bench.run(listen())


def test_every_period_the_name_servers_are_told_again_though_nothing_changed(
    bench: Bench, servers: NameServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registration(bench, servers).period_s == 30
    monkeypatch.setattr(registration_module, "PERIOD_MS_MIN", 1)
    bench.config.register_name_server_period = 1
    told = registration(bench, servers)
    original, thrice = servers.invoke, asyncio.Event()

    async def invoke(
        address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command:
        if len(servers.told) == 5:
            thrice.set()
        return await original(address, code, ext, body, timeout_s)

    monkeypatch.setattr(servers, "invoke", invoke)

    async def work() -> None:
        task = asyncio.get_running_loop().create_task(told.run())
        await thrice.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    bench.run(asyncio.wait_for(work(), 120))
    assert [code for _, code, _, _ in servers.told][:5] == [103] * 5


def test_a_name_server_that_is_back_is_told_at_once_and_one_that_cannot_be_dialled_delays_nobody(
    bench: Bench, servers: NameServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_module, "RECONNECT_S", 0)
    told = registration(bench, servers)
    is_told, dialled = asyncio.Event(), []

    async def connect(address: str) -> None:
        dialled.append(address)
        if address == "a:1":
            await asyncio.Event().wait()  # a host that swallows everything

    monkeypatch.setattr(servers, "ready", lambda address: None)
    monkeypatch.setattr(servers, "connect", connect)
    monkeypatch.setattr(told, "register_soon", is_told.set)

    async def work() -> None:
        task = asyncio.get_running_loop().create_task(told.keep_connected())
        await is_told.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    bench.run(asyncio.wait_for(work(), 120))
    assert dialled == ["a:1", "b:2"]


def test_who_made_a_topic_is_answered_when_the_name_servers_have_heard_of_it(bench: Bench) -> None:
    calls: list[Callable[[], None]] = []
    bench.node.keeping.when_registered = calls.append
    assert bench.tell(310, send_fields("New"), b"x") == []
    assert bench.tell(310, send_fields("New"), b"y") == [], "the second relies on the topic as the first does"
    assert len(calls) == 1
    calls[0]()
    assert [(answer.code, answer.ext["queueOffset"]) for answer in bench.link.take()] == [(0, "0"), (0, "1")]
    assert bench.tell(310, send_fields("New"), b"z")[0].code == 0
    consumer = Link(1)
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}'
    assert bench.tell(34, None, body, link=consumer) == []
    calls[1]()
    assert consumer.take()[0].code == 0
    assert bench.tell(34, None, body, link=consumer)[0].code == 0


@pytest.mark.parametrize("is_binary", [False, True], ids=["JSON", "binary"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
def test_with_synchronous_flush_too_the_first_messages_of_a_topic_wait_for_its_route(
    tmp_path: Path, is_batch: bool, is_binary: bool
) -> None:
    with closing(Bench(tmp_path, flush_disk_type="SYNC_FLUSH")) as bench:
        bench.store.request_flush = lambda: None  # type: ignore[method-assign]
        calls: list[Callable[[], None]] = []
        bench.node.keeping.when_registered = calls.append
        body = encode_batch([BatchPart(0, b"x", b"")]) if is_batch else b"x"
        assert bench.tell(310, send_fields("New", m=str(is_batch).lower()), body, is_binary=is_binary) == []
        bench.node.durable(bench.store.log_max_offset)
        assert bench.link.take() == [], "durable, but nobody could ask for its route"
        (call,) = calls
        call()
        (answer,) = bench.link.take()
        assert (answer.code, answer.ext["queueOffset"]) == (0, "0")


def test_waiting_for_name_servers_ends_even_when_none_answers(
    bench: Bench, servers: NameServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_module, "ANSWER_WAIT_S", 0.01)
    told = registration(bench, servers)

    async def stuck() -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(told, "register_all", stuck)

    async def wait() -> None:
        heard = asyncio.Event()
        told.when_registered(heard.set)
        task = asyncio.get_running_loop().create_task(told.run())
        await heard.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    bench.run(wait())
    bench.config.namesrv_addr = ""
    called: list[bool] = []
    told.when_registered(lambda: called.append(True))
    assert called == [True]


def test_a_name_server_that_hangs_holds_up_one_answer_and_is_told_the_rest_when_it_is_back(
    bench: Bench, servers: NameServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_module, "ANSWER_WAIT_S", 0.01)
    told = registration(bench, servers)
    has_hung, is_back, caught_up = asyncio.Event(), asyncio.Event(), asyncio.Event()
    original = servers.invoke

    async def invoke(
        address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command:
        if address == "b:2":
            has_hung.set()
            await is_back.wait()
            if b'"Second"' in body:
                caught_up.set()
        return await original(address, code, ext, body, timeout_s)

    monkeypatch.setattr(servers, "invoke", invoke)

    async def work() -> None:
        task = asyncio.get_running_loop().create_task(told.run())
        for name in ("First", "Second"):
            bench.node.topics.put(Topic(name))
            heard = asyncio.Event()
            told.when_registered(heard.set)
            await heard.wait()
            assert f'"{name}"'.encode() in [body for address, _, _, body in servers.told if address == "a:1"][-1]
        assert has_hung.is_set()
        is_back.set()
        await caught_up.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    bench.run(asyncio.wait_for(work(), 120))


def test_a_round_that_is_under_way_does_not_register_a_broker_that_has_left(
    bench: Bench, servers: NameServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = registration(bench, servers)
    original = servers.invoke
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def invoke(
        address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command:
        if code == 103:
            begun.set()
            await goes_on.wait()
        return await original(address, code, ext, body, timeout_s)

    monkeypatch.setattr(servers, "invoke", invoke)

    async def work() -> None:
        task = asyncio.get_running_loop().create_task(told.run())
        told.register_soon()
        await begun.wait()
        await told.unregister_all()
        goes_on.set()
        answered = asyncio.Event()
        told.when_registered(answered.set)
        await answered.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    bench.run(asyncio.wait_for(work(), 120))
    assert [code for _, code, _, _ in servers.told] == [104, 104]


# --------------------------------------------------------------------------------------------------------- supervision


class Counted:
    name = "counted"
    interval_ms = 0

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.ticks = 0
        self.events: list[str] = []
        self.ticked = asyncio.Event()

    def start(self) -> None:
        self.events.append("start")

    def stop(self) -> None:
        self.events.append("stop")

    def tick(self, now_ms: int) -> None:
        if self.left:
            self.left -= 1
            raise ValueError("broken")
        self.ticks += 1
        self.ticked.set()


def test_a_service_that_fails_is_logged_by_name_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervision, "PAUSE_S", 0)

    async def run() -> Counted:
        supervisor = Supervisor(lambda: 0, lambda name: None)
        service = Counted(failures=3)
        supervisor.add(service)
        await service.ticked.wait()
        await supervisor.stop()
        return service

    service = asyncio.run(run())
    assert service.events == ["start", "stop"]
    assert sum("counted failed" in record.message for record in caplog.records) == 3


def test_a_store_that_takes_no_writes_any_more_stands_a_service_still_and_does_not_end_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervision, "PAUSE_S", 0)
    gave_up: list[str] = []

    class Reading(Counted):
        def tick(self, now_ms: int) -> None:
            if self.left:
                self.left -= 1
                raise StoreLostError(Path("store"), cause="its lock was replaced")
            super().tick(now_ms)

    async def run() -> None:
        supervisor = Supervisor(lambda: 0, gave_up.append)
        service = Reading(failures=3 * FAILURES_MAX)
        supervisor.add(service)
        await service.ticked.wait()
        await supervisor.stop()

    asyncio.run(asyncio.wait_for(run(), 120))
    assert gave_up == []
    (told,) = [record.message for record in caplog.records if "counted" in record.message]
    assert told.startswith(
        "background task counted has stopped until the next start: store store is read-only: its lock was replaced"
    )


def test_a_task_that_cannot_be_kept_alive_stops_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PAUSE_S", 0)

    async def run() -> tuple[str, int]:
        gave_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        supervisor = Supervisor(lambda: 0, gave_up.set_result)
        tries = 0

        async def work() -> None:
            nonlocal tries
            tries += 1
            raise OSError("no disk")

        supervisor.watch("saver", work)
        name = await gave_up
        await supervisor.stop()
        return name, tries

    assert asyncio.run(run()) == ("saver", FAILURES_MAX)


# ------------------------------------------------------------------------------------------------------------- saving


def test_only_marked_tables_are_written_and_a_full_disk_keeps_them_marked(tmp_path: Path) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as worker:
            saver = TableSaver(
                tmp_path / "config", {"a.json": lambda: lambda: "A", "b.json": lambda: lambda: "B"}, worker
            )
            (tmp_path / "config").write_text("in the way")
            with pytest.raises(TableSaveError, match=r"config.a\.json cannot be saved: .*: make room"):
                await saver.save("a.json")
            (tmp_path / "config").unlink()
            await saver.save()
            assert sorted(path.name for path in (tmp_path / "config").iterdir()) == ["a.json"]
            saver.add("c.json", lambda: lambda: "{}")
            saver.save_all_now()
            assert (tmp_path / "config" / "c.json").read_text() == "{}"

    asyncio.run(run())


def test_what_a_full_disk_refused_is_written_as_soon_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic made meanwhile would be forgotten by a crash; nobody need change anything for it to be saved."""
    monkeypatch.setattr(persistence, "RETRY_S", 0)
    caplog.set_level("INFO")

    async def run() -> None:
        tries = 0

        def snapshot() -> Callable[[], str]:
            nonlocal tries
            tries += 1
            if tries == 5:
                (tmp_path / "config").unlink()
                has_room.set()
            return lambda: "A"

        has_room = asyncio.Event()
        (tmp_path / "config").write_text("in the way")
        with ThreadPoolExecutor(1) as worker:
            saver = TableSaver(tmp_path / "config", {"a.json": snapshot}, worker)
            running = asyncio.ensure_future(saver.run())
            with pytest.raises(TableSaveError):
                await saver.save("a.json")
            await has_room.wait()
            await saver.save()  # waits for the one that is under way, and has nothing to do itself
            running.cancel()
        assert (tmp_path / "config" / "a.json").read_text() == "A"

    asyncio.run(asyncio.wait_for(run(), 120))
    assert [line for line in caplog.messages if "saved" in line] == [
        f"broker tables: {tmp_path}/config/a.json cannot be saved: File exists: make room or mend the directory; what "
        "changed is in effect, and is saved as soon as that works",
        f"broker tables: those in {tmp_path}/config are saved again, after 0.0 s",
    ]


def test_each_table_is_written_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as worker:
        saver = TableSaver(tmp_path, {"a.json": lambda: lambda: "A", "b.json": lambda: lambda: "B"}, worker)
        (tmp_path / "a.json.tmp").mkdir()
        with pytest.raises(TableSaveError, match=r"a\.json cannot be saved"):
            saver.save_all_now()
    assert (tmp_path / "b.json").read_text() == "B"


def test_a_service_that_cannot_be_stopped_does_not_keep_the_others_from_it() -> None:
    stopped: list[str] = []

    class Stopping:
        interval_ms = 1000

        def __init__(self, name: str) -> None:
            self.name = name

        def start(self) -> None: ...

        def tick(self, now_ms: int) -> None: ...

        def stop(self) -> None:
            stopped.append(self.name)
            if self.name == "second":
                raise OSError("no room")

    async def run() -> None:
        supervisor = Supervisor(lambda: 0, lambda name: None)
        for name in ("first", "second", "third"):
            supervisor.add(Stopping(name))
        with pytest.raises(OSError, match="no room"):
            await supervisor.stop()

    asyncio.run(run())
    assert stopped == ["third", "second", "first"]


# ------------------------------------------------------------------------------------------------------- many clients


def test_offsets_are_saved_as_often_as_that_is_cheap_and_never_later_than_configured() -> None:
    pause = SavePause()
    assert pause.seconds(5.0) == 0.1
    pause.note(0.001)
    assert pause.seconds(5.0) == 0.1
    pause.note(0.009)
    assert pause.seconds(5.0) + 2 * 0.009 <= 0.2  # what a kill repeats: the pause, a save that was too late, its own
    pause.note(0.1)
    assert pause.seconds(5.0) == pytest.approx(2.0)
    pause.note(3.0)
    assert pause.seconds(5.0) == 5.0
    assert pause.seconds(0.05) == 0.05


def test_a_held_pull_costs_a_few_kilobytes_and_an_arrival_wakes_only_its_own_queue(bench: Bench) -> None:
    """Ten thousand of them must stay far below 300 MB: 1,000 are measured."""
    bench.node.topics.put(Topic("T", read_queues=100, write_queues=100))
    links = [Link(port) for port in range(100)]
    commands = [bench.command(11, pull_fields("T", 0, queue_id=number % 100, sysFlag=6)) for number in range(1000)]
    tracemalloc.start()
    for number, command in enumerate(commands):
        bench.handlers.handle(links[number // 10], [command])
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(bench.node.held) == 1000
    assert size < 1000 * 4096, f"{size / 1000:.0f} bytes for each held pull"
    bench.send(e=7)
    assert len(bench.node.held) == 1000 - 10
    assert sum(len(link.sent) for link in links) == 10
