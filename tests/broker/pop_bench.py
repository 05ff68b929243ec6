"""A broker without sockets whose POP part runs: time passes when a test says so."""

from __future__ import annotations

from pathlib import Path

from broker.harness import Bench, Link, records
from contrailmq.broker.state.config_files import save
from contrailmq.broker.state.deleted_topics import DELETED_FILE
from contrailmq.broker.state.keeping import GROUPS_FILE, TOPICS_FILE
from contrailmq.message import StoredMessage
from contrailmq.store.base.clock import ManualClock
from contrailmq.wire.header import Command
from contrailmq.wire.pop_strings import PopHandle

POP, ACK, PEEK, CHANGE, NOTIFICATION, POLLING_INFO, BATCH_ACK = (
    200050, 200051, 200052, 200053, 200054, 200055, 200151,
)  # fmt: skip


class PopBench(Bench):
    """Started services, and POP's requests as methods. `random` is where plans of queues begin (0 to 99)."""

    def __init__(
        self,
        path: Path,
        *,
        clock: ManualClock | None = None,
        settings: dict[str, str] | None = None,
        **store_settings: object,
    ) -> None:
        super().__init__(path, clock=clock, settings=settings, **store_settings)
        self.begin = 50  # the retry topic comes last
        self.pop.popping.random = lambda count: self.begin % count
        self.pop.noticing.random = lambda count: self.begin % count
        self.is_stopped = False
        for service in self.services:
            service.start()

    def kill(self) -> None:
        """End as a killed process does; topics and groups are on the disk before anything of them is answered."""
        self.is_stopped = True
        for name in (DELETED_FILE, TOPICS_FILE, GROUPS_FILE):
            save(self.node.config_path / name, self.node.snapshots()[name]()())
        self.let_go()
        self.loop.close()
        self._worker.shutdown()
        self.store.abandon()

    def close(self) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        for service in self.services:
            service.stop()
        self.settle()
        self.saver.save_all_now()
        self.pop.saved()
        super().close()

    def passes(self, milliseconds: int, step_ms: int = 50) -> None:
        """Time goes by, and the services have their turns."""
        left = milliseconds
        while left > 0:
            step = min(step_ms, left)
            left -= step
            self.clock.advance(step)
            self.turn()

    def turn(self) -> None:
        now_ms = self.store.store_clock.look()
        for service in self.services:
            service.tick(now_ms)
        self.settle()

    # --- requests

    def pop_fields(self, topic: str = "T", group: str = "g", **other: object) -> dict[str, str]:
        fields: dict[str, object] = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 10_000,
            "pollTime": 0,
            "bornTime": self.clock.now_ms(),
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        return {name: str(value) for name, value in (fields | other).items()}

    def ask_pop(self, topic: str = "T", group: str = "g", *, link: Link | None = None, **other: object) -> Command:
        return self.ask(POP, self.pop_fields(topic, group, **other), link=link)

    def popped(self, topic: str = "T", group: str = "g", **other: object) -> list[Popped]:
        """The messages that a pop gives, with their handles as Java's client makes them."""
        return popped(self.ask_pop(topic, group, **other), self.config.broker_name)

    def ack(self, message: Popped, group: str = "g", **other: object) -> Command:
        return self.ask(ACK, message.ack_fields(group) | {name: str(value) for name, value in other.items()})

    def change(self, message: Popped, invisible_ms: int, group: str = "g", **other: object) -> Command:
        fields = message.ack_fields(group) | {"invisibleTime": str(invisible_ms)}
        return self.ask(CHANGE, fields | {name: str(value) for name, value in other.items()})


class Popped:
    """A message and its handle."""

    def __init__(self, message: StoredMessage, handle: PopHandle, stored_topic: str) -> None:
        self.message = message
        self.handle = handle
        self.stored_topic = stored_topic

    @property
    def body(self) -> bytes:
        return self.message.body

    def ack_fields(self, group: str) -> dict[str, str]:
        return {
            "consumerGroup": group,
            "topic": self.stored_topic,
            "queueId": str(self.handle.queue_id),
            "extraInfo": self.handle.encode(),
            "offset": str(self.handle.offset),
        }

    def changed(self, answer: Command) -> Popped:
        """With the handle that a change of the invisible time gave."""
        ext = answer.ext
        handle = self.handle._replace(
            start_offset=self.handle.offset, pop_time_ms=int(ext["popTime"]), invisible_ms=int(ext["invisibleTime"])
        )
        return Popped(self.message, handle, self.stored_topic)


def popped(answer: Command, broker_name: str) -> list[Popped]:
    """What Java's client makes of an answer (pop.md 2.3)."""
    assert answer.code in (0, 209, 210), (answer.code, answer.remark)
    ext = answer.ext
    starts = {}
    for entry in filter(None, ext["startOffsetInfo"].split(";")):
        mark, queue_id, start = entry.split(" ")
        assert (mark, queue_id) not in starts, "a queue is named twice"
        starts[mark, queue_id] = int(start)
    found = []
    for message in records(answer.body):
        own = message.properties.get("POP_CK")
        if own is not None:
            handle = PopHandle.decode(own)
        else:
            mark = "0" if not message.topic.startswith("%RETRY%") else "2" if "+" in message.topic else "1"
            handle = PopHandle(
                starts[mark, str(message.queue_id)],
                int(ext["popTime"]),
                int(ext["invisibleTime"]),
                int(ext["reviveQid"]),
                mark,
                broker_name,
                message.queue_id,
                message.queue_offset,
            )
        found.append(Popped(message, handle, message.topic))
    return found
