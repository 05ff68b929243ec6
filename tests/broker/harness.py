"""A broker without sockets.

Handlers are called with commands that went through the real codec, and answers are read back.

`Bench` has a manual clock, a real store in a temporary directory, and links that gather what is sent to them. Nothing
runs by itself: `settle()` runs what was put off to the end of the wakeup.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from at_once import AtOnce as AtOnce
from contrailmq.broker.config import BrokerConfig
from contrailmq.broker.handlers import Handlers
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.processors import Processors
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.broker.state.topics import saved_batch_topics
from contrailmq.message import StoredMessage, encode_properties
from contrailmq.message.codec import decode_record
from contrailmq.store.base.clock import ManualClock
from contrailmq.store.config import StoreConfig
from contrailmq.store.files import Files
from contrailmq.store.message_store import Drive, MessageStore
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import BINARY, JSON, Command, Fields

T = TypeVar("T")
MIB = 1 << 20
ROUNDS = 100 if os.environ.get("CONTRAILMQ_LONG") else 10  # crashes in a row


class UnsyncedFiles(Files):
    """Files that are not synced: these tests end long before a power failure, and run ten times faster."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class Link:
    """A connection that keeps what is sent. Requests of the broker are answered by `answers`, when it has an entry."""

    def __init__(self, port: int = 40_000) -> None:
        self.peer = ("10.0.0.9", port)
        self.attributes: dict[str, object] = {}
        self._open = True
        self._parser = FrameParser()
        self.sent: list[bytes] = []
        self.requests: list[tuple[int, dict[str, str], bytes]] = []
        self.answers: dict[int, bytes | Exception] = {}
        self.close_cause = ""
        self._has_more = asyncio.Event()

    async def replied(self, count: int) -> None:
        """Wait until so many answers were sent."""
        while len(self.sent) < count:
            self._has_more.clear()
            await self._has_more.wait()

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def address(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}"

    def forget(self, count: int = 1) -> None:
        """Nothing is waited for here."""

    def reply(self, data: bytes) -> None:
        self.sent.append(data)
        self._has_more.set()

    def reply_parts(self, parts: Sequence[bytes | memoryview], size_bytes: int) -> None:
        assert sum(map(len, parts)) == size_bytes
        self.sent.append(b"".join(parts))
        self._has_more.set()

    def oneway(self, code: int, ext: Fields | None = None, body: bytes = b"") -> None:
        (command,) = FrameParser().feed(encode_request(code, ext, body, opaque=0, is_oneway=True))
        self.requests.append((code, command.ext, command.body))

    def invoke(
        self, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> asyncio.Future[Command]:
        (command,) = FrameParser().feed(encode_request(code, ext, body, opaque=0))
        self.requests.append((code, command.ext, command.body))
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        answer = self.answers[code]
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(FrameParser().feed(answer)[0])
        return future

    def close(self, cause: str = "we closed it") -> None:
        self._open = False
        self.close_cause = cause

    def take(self) -> list[Command]:
        """The answers that were sent since the last call."""
        data, self.sent = b"".join(self.sent), []
        return self._parser.feed(data) if data else []


class Bench:
    def __init__(
        self,
        path: Path,
        *,
        settings: Mapping[str, str] | None = None,
        files: Files | None = None,
        clock: ManualClock | None = None,
        worker: Executor | None = None,
        readers: Executor | None = None,
        **store_settings: object,
    ) -> None:
        """`worker` writes tables, `readers` read what is not in memory: the same thread unless they are given.

        No service is started: what is delayed or prepared is stored as a server stores it, and stays there.
        """
        self.clock = clock or ManualClock()  # its wall clock counts when the store is opened; then time passes
        sizes: dict[str, object] = {
            "mapped_file_size_commit_log": MIB,
            "mapped_file_size_consume_queue": 20_000,
            "max_hash_slot_num": 1000,
            "max_index_num": 4000,
        }
        self.store = MessageStore(
            StoreConfig(path / "store", **(sizes | store_settings)),
            files=files or UnsyncedFiles(),
            clock=self.clock,
            drive=Drive.LOOP,
        )
        self.store.set_batch_topics(saved_batch_topics(path / "store" / "config" / "topics.json"))
        self.store.open()
        self.config, warnings = BrokerConfig.from_properties(
            {"brokerName": "b", "brokerClusterName": "C"} | dict(settings or {})
        )
        assert not warnings
        self._due: list[Callable[[], None]] = []
        self.node = BrokerNode(
            self.config, self.store, clock=self.clock, call_soon=self._due.append, address=("10.0.0.2", 10_911)
        )
        self.node.load()
        self._worker = worker or ThreadPoolExecutor(1)
        self.handlers = Handlers()
        self.loop = asyncio.new_event_loop()
        self._opaque = itertools.count(1)
        self.saver = self.loop.run_until_complete(self._make_saver())
        processors = Processors(
            self.node,
            self.handlers,
            self.saver,
            tables=self._worker,
            readers=readers or self._worker,
            configured=lambda: None,
        )
        self.adoption = processors.adoption
        self.send_processor, self.pulls = processors.send, processors.pull
        self.members, self.runtime = processors.members, processors.runtime
        self.pop, self.transactions, self.delay, self.timers, self.lite = self.services = processors.services
        self.link = Link()

    async def _make_saver(self) -> TableSaver:
        return TableSaver(self.node.config_path, self.node.snapshots(), self._worker)

    def close(self) -> None:
        self.settle()
        self.loop.close()
        self._worker.shutdown()
        self.let_go()
        self.store.close()

    def let_go(self) -> None:
        """Of the journals, as they are: what a stopped broker writes down at last is for the test to ask for."""
        self.node.offset_journal.close()
        self.delay.crash()
        self.timers.crash()
        self.pop.close()

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.loop.run_until_complete(work)

    def deliver_delayed(self) -> None:
        """Start the delay levels, and let them deliver all that waits: the longest level is two hours."""
        self.delay.start()
        self.clock.advance(2 * 3_600_000)
        self.delay.tick(self.store.store_clock.look())
        self.settle()

    def settle(self) -> None:
        """Run what the handlers put off to the end of the wakeup."""
        while self._due:
            due, self._due[:] = list(self._due), []
            for call in due:
                call()

    def command(
        self,
        code: int,
        ext: Fields | None = None,
        body: bytes = b"",
        *,
        is_oneway: bool = False,
        is_binary: bool = False,
        version: int = 479,
    ) -> Command:
        frame = encode_request(
            code,
            ext,
            body,
            opaque=next(self._opaque),
            is_oneway=is_oneway,
            serialize_type=BINARY if is_binary else JSON,
        )
        (command,) = FrameParser().feed(frame)
        command.version = version
        return command

    def ask(
        self,
        code: int,
        ext: Fields | None = None,
        body: bytes = b"",
        *,
        link: Link | None = None,
        is_binary: bool = False,
        version: int = 479,
        settle: bool = True,
    ) -> Command:
        """Send one request and return its answer, which must come at once."""
        answers = self.tell(code, ext, body, link=link, is_binary=is_binary, version=version, settle=settle)
        assert len(answers) == 1, f"{len(answers)} answers to {code}"
        return answers[0]

    def tell(
        self,
        code: int,
        ext: Fields | None = None,
        body: bytes = b"",
        *,
        link: Link | None = None,
        is_oneway: bool = False,
        is_binary: bool = False,
        version: int = 479,
        settle: bool = True,
    ) -> list[Command]:
        """Send one request and return whatever was answered so far."""
        link = link or self.link
        command = self.command(code, ext, body, is_oneway=is_oneway, is_binary=is_binary, version=version)

        async def handle() -> None:
            self.handlers.handle(link, [command])
            await self.handlers.drain()

        self.run(handle())
        if settle:
            self.settle()
        answers = link.take()
        assert all(answer.opaque == command.opaque for answer in answers) or not settle
        return answers

    # --- the usual requests

    def send(self, topic: str = "T", body: bytes = b"hello", *, link: Link | None = None, **fields: object) -> Command:
        return self.ask(310, send_fields(topic, **fields), body, link=link)

    def pull(
        self,
        topic: str = "T",
        offset: int = 0,
        *,
        queue_id: int = 0,
        group: str = "g",
        link: Link | None = None,
        **f: object,
    ) -> list[Command]:
        return self.tell(11, pull_fields(topic, offset, queue_id=queue_id, group=group, **f), link=link)

    def heartbeat(
        self,
        *topics: str,
        group: str = "g",
        client_id: str = "c1",
        link: Link | None = None,
        expression: str = "*",
        expression_type: str = "TAG",
        version: int = 1,
        model: object = "CLUSTERING",
    ) -> Command:
        subscriptions = ",".join(
            f'{{"topic":"{topic}","subString":"{expression}","subVersion":{version},"expressionType":"{expression_type}"}}'
            for topic in topics
        )
        model_text = f'"{model}"' if isinstance(model, str) else str(model)
        body = (
            f'{{"clientID":"{client_id}","consumerDataSet":[{{"groupName":"{group}","consumeType":"CONSUME_PASSIVELY",'
            f'"messageModel":{model_text},"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
            f'"subscriptionDataSet":[{subscriptions}]}}],"producerDataSet":[{{"groupName":"pg"}}]}}'
        )
        return self.ask(34, None, body.encode(), link=link)


def send_fields(
    topic: str = "T", *, properties: Mapping[str, str] | str | None = None, **other: object
) -> dict[str, str]:
    """Ext fields of SEND_MESSAGE_V2, as a Java client would send them."""
    text = properties if isinstance(properties, str) else encode_properties(properties or {}).decode()
    fields = {
        "a": "pg",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000123",
        "h": "0",
        "i": text,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return fields | {name: str(value) for name, value in other.items()}


def pull_fields(topic: str, offset: int, *, queue_id: int = 0, group: str = "g", **other: object) -> dict[str, str]:
    """Ext fields of PULL_MESSAGE with the subscription inside (sysFlag 4)."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return fields | {name: str(value) for name, value in other.items()}


def records(body: bytes) -> list[StoredMessage]:
    """The messages of a pull's or query's answer."""
    found = []
    view = memoryview(body)
    while view:
        message = decode_record(view)
        found.append(message)
        view = view[message.size_bytes :]
    return found
