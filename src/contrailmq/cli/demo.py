"""`contrailmq demo`: the main job, end to end, in a temporary directory.

Every line it prints is about something that has just happened; a step that does not come out as announced ends the demo
with exit code 1. The steps are functions over one `Stage`, in the order in which a newcomer would try them.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from contrailmq import StoredMessage
    from contrailmq.testing import LocalCluster

_WAIT_S = 30.0
DELAY_LEVELS = "1s 2s 2s 5s"  # short ones: a first retry takes level 3, which is 10 s by default
CLOCKS_APART_MS: Final = 100  # a birth is by the wall clock, a store time may differ from it by as much


class DemoFailedError(Exception):
    """A step did not come out as announced."""


class LeftOutError(Exception):
    """A step needs what is not installed; the text says what."""


class Stage:
    """What the steps share: a running cluster, its store directory, and the screen."""

    def __init__(self, cluster: LocalCluster, store: Path, console: Console) -> None:
        self.cluster, self.store, self.console = cluster, store, console

    def say(self, text: str) -> None:
        self.console.print(f"   {text}", highlight=False, markup=False, soft_wrap=True)


class Inbox:
    """Messages that a listener has seen; `wait` gives them once there are enough."""

    def __init__(self) -> None:
        self._seen: list[StoredMessage] = []
        self._changed = threading.Condition()

    def take(self, messages: list[StoredMessage]) -> None:
        with self._changed:
            self._seen += messages
            self._changed.notify_all()

    def wait(self, count: int, what: str) -> list[StoredMessage]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._seen) >= count, timeout=_WAIT_S):
                raise DemoFailedError(f"{what}: {len(self._seen)} of {count} messages came in {_WAIT_S:g} s")
            return list(self._seen)


def demo() -> None:
    """Send, filter, retry and delay through a real broker, then look at what it stored. Cleans up after itself."""
    from rich.console import Console

    from contrailmq.testing import LocalCluster

    logging.getLogger("contrailmq").addHandler(logging.NullHandler())  # the failure shown below is meant
    console = Console()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="contrailmq-demo-") as directory:
        store = Path(directory) / "store"
        try:
            with LocalCluster(store=store, config={"messageDelayLevel": DELAY_LEVELS}) as cluster:
                stage = Stage(cluster, store, console)
                console.print(f"NameServer {cluster.namesrv}, broker {cluster.broker_addresses[0]}", highlight=False)
                for title, step in STEPS:
                    console.print(f"[bold]{title}[/bold]")
                    step(stage)
            for title, step in AFTERWARDS:
                console.print(f"[bold]{title}[/bold]")
                step(stage)
        except DemoFailedError as error:
            console.print(f"[red]failed:[/red] {error}")
            raise typer.Exit(1) from error
        except LeftOutError as error:  # the last step: everything before it was shown
            stage.say(f"left out: {error}")
    console.print(f"done in {time.monotonic() - begin:.1f} s; nothing is left behind")


def show_record(stage: Stage) -> None:
    """One record of the log: encoded, judged, decoded."""
    from contrailmq import Message
    from contrailmq.message import encode_host, encode_properties
    from contrailmq.store import check_record, decode_record, encode_record

    message = Message("Orders", b"one espresso", tags="paid", keys=["o-17"])
    host = encode_host("127.0.0.1", 10911)
    record = encode_record(
        message.topic,
        message.body,
        encode_properties(message.properties),
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_host=host,
        store_host=host,
        born_time_ms=0,
        store_time_ms=0,
    )
    decoded = decode_record(record)
    stage.say(f"{len(record)} bytes, verdict {check_record(record).kind.value}, magic {decoded.magic & 0xFFFFFFFF:08x}")
    stage.say(f"decoded: {decoded.topic} {decoded.body!r} {decoded.properties}")


def send_and_filter(stage: Stage) -> None:
    from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer

    inbox = Inbox()
    with Producer("demo_shop", namesrv=stage.cluster.namesrv) as producer:
        for number in range(12):
            tag = ("paid", "shipped", "cancelled")[number % 3]
            producer.send(Message("Orders", f"order {number}".encode(), tags=tag, keys=[f"o-{number}"]))
    stage.say("sent 12 messages with tags paid, shipped, cancelled")
    consumer = PushConsumer("demo_billing", namesrv=stage.cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Orders", "paid || shipped")
    consumer.listen(inbox.take)
    with consumer:
        seen = inbox.wait(8, "filtered consumption")
    tags = sorted({message.tags or "" for message in seen})
    if tags != ["paid", "shipped"] or len(seen) != 8:
        raise DemoFailedError(f"expected 8 messages tagged paid or shipped, got {len(seen)} tagged {tags}")
    stage.say(f"consumed {len(seen)} of them: {', '.join(tags)}")


def fail_and_retry(stage: Stage) -> None:
    from contrailmq import ConsumeFromWhere, ConsumeResult, Message, Producer, PushConsumer

    inbox = Inbox()

    def handle(messages: list[StoredMessage]) -> ConsumeResult:
        if messages[0].reconsume_times == 0:
            raise RuntimeError("the till is broken")
        inbox.take(messages)
        return ConsumeResult.SUCCESS

    with Producer("demo_shop", namesrv=stage.cluster.namesrv) as producer:
        producer.send(Message("Payments", b"payment 1"))
    consumer = PushConsumer("demo_till", namesrv=stage.cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Payments")
    consumer.listen(handle)
    with consumer:
        message = inbox.wait(1, "retry")[0]
    waited_s = (message.store_time_ms - message.born_time_ms) / 1000
    stage.say(f"failed once, came back as attempt {message.reconsume_times + 1} after {waited_s:.1f} s")


def deliver_later(stage: Stage) -> None:
    from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer

    inbox = Inbox()
    with Producer("demo_shop", namesrv=stage.cluster.namesrv) as producer:
        producer.send(Message("Reminders", b"level", delay_level=1))
        producer.send(Message("Reminders", b"timer", delay=3))
    consumer = PushConsumer("demo_clock", namesrv=stage.cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Reminders")
    consumer.listen(inbox.take)
    with consumer:
        waited_ms = {m.body: m.store_time_ms - m.born_time_ms for m in inbox.wait(2, "delayed delivery")}
    for body, least_ms, told in ((b"level", 1000, "delay level 1 (1 s)"), (b"timer", 2000, "delay of 3 s, any second")):
        if waited_ms[body] < least_ms - CLOCKS_APART_MS:
            raise DemoFailedError(f"{told}: came {waited_ms[body]} ms after it was born, too early")
        stage.say(f"{told}: delivered {waited_ms[body]} ms after it was born")


def commit_and_roll_back(stage: Stage) -> None:
    from contrailmq import ConsumeFromWhere, Message, PushConsumer, TransactionProducer, TransactionState

    def execute(message: Message, arg: object) -> TransactionState:
        return TransactionState.COMMIT if arg == "commit" else TransactionState.ROLLBACK

    inbox = Inbox()
    with TransactionProducer(
        "demo_bank", namesrv=stage.cluster.namesrv, execute=execute, check=lambda message: TransactionState.UNKNOWN
    ) as producer:
        for name in ("roll back", "commit", "roll back"):
            producer.send_in_transaction(Message("Transfers", name.encode()), name)
    consumer = PushConsumer("demo_ledger", namesrv=stage.cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Transfers")
    consumer.listen(inbox.take)
    with consumer:
        bodies = [message.body for message in inbox.wait(1, "the committed message")]
    if bodies != [b"commit"]:
        raise DemoFailedError(f"consumers should see the committed transfer alone, they saw {bodies}")
    stage.say("of three transfers one committed and two rolled back: consumers saw the one")


def look_at_the_files(stage: Stage) -> None:
    from contrailmq.store import StoreConfig, StoreView, verify_store

    with StoreView(StoreConfig(_broker_store(stage), message_delay_level=DELAY_LEVELS)) as view:
        report = verify_store(view)
    if not report.is_ok:
        raise DemoFailedError(f"the store does not fit together: {report.findings[:3]}")
    stage.say(f"verified {report.records} records, {report.units} queue units, {report.index_entries} index entries")


def _broker_store(stage: Stage) -> Path:
    return next(path.parent for path in sorted(stage.store.rglob("commitlog")))


def report_with_spark(stage: Stage) -> None:
    from rich.table import Table

    import contrailmq.spark
    from contrailmq.cli import missing_extra

    try:
        from contrailmq.spark.jobs.report import report as traffic_report
        from contrailmq.spark.runtime.engine import SparkEngine

        stage.say("starting Spark (local[2]) ...")
        spark = contrailmq.spark.session("contrailmq-demo", master="local[2]")
    except contrailmq.spark.SparkEnvironmentError as error:
        raise LeftOutError(str(error)) from error
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        raise LeftOutError(missing) from error
    try:
        log = spark.read.format("commitlog").load(str(_broker_store(stage)))
        rows = log.groupBy("topic", "tags").count().orderBy("topic", "tags").collect()
        report = traffic_report(str(_broker_store(stage)), SparkEngine(spark))
    finally:
        spark.stop()
    counts = Table("topic", "tag", "messages", title="spark.read.format('commitlog') ... groupBy('topic', 'tags')")
    for row in rows:
        counts.add_row(row["topic"], row["tags"] or "", str(row["count"]))
    stage.console.print(counts)
    traffic = Table("topic", "messages", "bytes of log", "born to stored, p50 ms", title="contrailmq pipeline report")
    for topic in report.topics:
        traffic.add_row(topic.topic, str(topic.messages), str(topic.log_bytes), str(topic.latency_p50_ms))
    stage.console.print(traffic)


STEPS: list[tuple[str, Callable[[Stage], None]]] = [
    ("A record of the log", show_record),
    ("Send, and consume by tag", send_and_filter),
    ("Fail once, and get it again", fail_and_retry),
    ("Deliver later", deliver_later),
    ("Transactions", commit_and_roll_back),
]
AFTERWARDS: list[tuple[str, Callable[[Stage], None]]] = [
    ("The files, without a broker", look_at_the_files),
    ("The same files with Spark", report_with_spark),
]
