"""What the console shows of a broker's inside: what waits, settings, replication; and the commands it writes."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from contrailmq import Admin, Message, Producer, SimpleConsumer, TransactionProducer, TransactionState
from contrailmq.cli import _command
from contrailmq.cli.console import _archive_reader
from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.pipeline import ready_commands
from contrailmq.message import ContrailError
from contrailmq.testing import LocalCluster
from waiting_for import until

T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


def ask(namesrv: str, question: Callable[[ConsoleModel], Awaitable[T]], *, is_read_only: bool = False) -> T:
    async def run() -> T:
        model = ConsoleModel(namesrv, is_read_only=is_read_only)
        try:
            return await question(model)
        finally:
            await model.stop()

    return asyncio.run(run())


def test_open_half_messages_timers_and_delayed_ones_are_seen_and_ended_ones_are_not(cluster: LocalCluster) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("Waits", queues=1)

    def execute(message: Message, arg: object) -> TransactionState:
        return TransactionState.UNKNOWN if message.body == b"open" else TransactionState.COMMIT

    in_an_hour_ms = time.time_ns() // 1_000_000 + 3_600_000
    with TransactionProducer(
        "deciding", namesrv=cluster.namesrv, execute=execute, check=lambda message: TransactionState.UNKNOWN
    ) as transactions:
        sent = {
            transactions.send_in_transaction(Message("Waits", body), None).message_id: body
            for body in (b"open", b"ended", b"open", b"ended")
        }
        with Producer("waiting", namesrv=cluster.namesrv) as producer:
            producer.send(Message("Waits", b"timer", deliver_at=in_an_hour_ms))
            producer.send(Message("Waits", b"level", delay_level=18))

        async def seen(model: ConsoleModel) -> bool:
            value = (await model.pending.seen()).value
            halves = {half.message_id: (half.topic, half.producer_group) for half in value.halves}
            waiting = {(row.kind, row.of): row.count for row in value.waiting}
            is_open = {message_id: ("Waits", "deciding") for message_id, body in sent.items() if body == b"open"}
            return halves == is_open and waiting == {("timer", "Waits"): 1, ("delay level", "18"): 1}

        until(lambda: ask(cluster.namesrv, seen), "two open transactions, a timer and a delayed message")


def test_an_open_half_message_is_as_old_as_its_first_sending() -> None:
    """The broker stores it anew each time that it asks the producer: its store time is always young."""
    quick = {"transactionTimeOut": "300", "transactionCheckInterval": "100"}
    with (
        LocalCluster(config=quick) as running,
        TransactionProducer(
            "deciding",
            namesrv=running.namesrv,
            execute=lambda message, arg: TransactionState.UNKNOWN,
            check=lambda message: TransactionState.UNKNOWN,
        ) as transactions,
    ):
        transactions.send_in_transaction(Message("Waits", b"open"), None)
        sent_ms = time.time_ns() // 1_000_000

        async def ages(model: ConsoleModel) -> list[tuple[bool, int]]:
            halves = (await model.pending.seen()).value.halves
            return [(half.checked >= 3, half.born_time_ms) for half in halves]

        until(lambda: any(is_asked for is_asked, _ in ask(running.namesrv, ages)), "it was asked for three times")
        assert all(born_ms <= sent_ms for _, born_ms in ask(running.namesrv, ages))


def test_timers_of_the_brokers_themselves_are_not_shown(cluster: LocalCluster) -> None:
    """POP keeps one for each message that it hands out, acknowledged or not."""
    with Producer("popped", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Popped", b"one"))
    with (
        SimpleConsumer("popping", namesrv=cluster.namesrv) as consumer,
        Admin(namesrv=cluster.namesrv) as admin,
    ):
        consumer.subscribe("Popped")
        until(lambda: len(consumer.receive(invisible_duration=60)), "it is handed out")
        addresses = cluster.broker_addresses

        def kept() -> list[str]:
            return [key for address in addresses for key in admin.broker_stats(address) if "REVIVE_LOG" in key]

        until(kept, "a timer of POP waits")

        async def waiting(model: ConsoleModel) -> list[str]:
            return [row.of for row in (await model.pending.seen()).value.waiting]

        assert not [of for of in ask(cluster.namesrv, waiting) if "REVIVE_LOG" in of]


def test_a_message_is_not_sent_to_a_topic_that_somebody_deleted(cluster: LocalCluster) -> None:
    """Where brokers create topics by themselves, a page that is still open would bring it back, with other queues."""
    with Admin(namesrv=cluster.namesrv) as admin:

        async def send(model: ConsoleModel) -> None:
            await model.topics.send("Deleted", b"late")

        with pytest.raises(ContrailError, match="Deleted"):
            ask(cluster.namesrv, send)
        assert "Deleted" not in admin.topics()


def test_the_letters_of_a_group_that_does_not_exist_are_an_error(cluster: LocalCluster) -> None:
    async def page(model: ConsoleModel) -> None:
        await model.letters.page("mistyped")

    with pytest.raises(ContrailError, match="group mistyped does not exist"):
        ask(cluster.namesrv, page)


def test_settings_have_meanings_and_show_where_brokers_differ(cluster: LocalCluster) -> None:
    async def question(model: ConsoleModel) -> None:
        first, second = await model.settings.places()
        await model.settings.change(first, "transactionCheckMax", "71")
        rows = {row.key: row for row in (await model.settings.of(second)).value}
        assert rows["transactionCheckMax"].meaning == "after so many questions a half message is given up"
        assert rows["transactionCheckMax"].others == "broker-0: 71"
        assert rows["brokerName"].others == "", "every broker has a name of its own"
        with pytest.raises(ContrailError, match="flushDiskTipe"):
            await model.settings.change(first, "flushDiskTipe", "SYNC_FLUSH")
        with pytest.raises(ContrailError, match="a value is one line"):
            await model.settings.change(first, "transactionCheckMax", "70\nbrokerPermission=4")

    ask(cluster.namesrv, question)
    with Admin(namesrv=cluster.namesrv) as admin:
        assert admin.broker_config(cluster.broker_addresses[0])["transactionCheckMax"] == "71"

    async def refused(model: ConsoleModel) -> None:
        with pytest.raises(ContrailError, match="read-only"):
            await model.settings.change((await model.settings.places())[0], "transactionCheckMax", "72")

    ask(cluster.namesrv, refused, is_read_only=True)


def test_name_servers_are_asked_one_by_one(cluster: LocalCluster) -> None:
    async def question(model: ConsoleModel) -> dict[str, str]:
        return {row.address: row.state for row in await model.settings.name_servers()}

    states = ask(f"{cluster.namesrv};127.0.0.1:1", question)
    assert states[cluster.namesrv] == "answers, knows 2 brokers"
    assert states["127.0.0.1:1"].startswith("does not answer: ")


def test_the_commands_that_are_written_are_taken_by_the_command_line() -> None:
    commands = ready_commands("127.0.0.1:9876;h:1", topics=["Orders", "A b"], archive="my archive", group="$(billing)")
    assert len(commands) == 5
    assert len(ready_commands("h:1", topics=[], archive="", group="")) == 2, "nothing is archived without topics"
    pipeline = _command("pipeline")
    for command in commands:
        program, group, name, *words = shlex.split(command.line)
        assert (program, group) == ("contrailmq", "pipeline")
        context = pipeline.make_context("pipeline", [name, *words])
        job = pipeline.get_command(context, name)
        assert job is not None, name
        parsed = job.make_context(name, words, parent=context).params
        assert "my archive" in parsed.values() or parsed["group"] == "$(billing)"
        assert parsed["namesrv"] == ("127.0.0.1:9876;h:1" if name != "ask" else None)


def test_an_archive_says_how_far_it_is_and_what_is_none_is_a_note(tmp_path: Path) -> None:
    assert _archive_reader(None) is None
    reader = _archive_reader([str(tmp_path / "none")])
    assert reader is not None
    (facts,) = reader()
    assert "is not an archive, there is no such directory" in facts.fault
