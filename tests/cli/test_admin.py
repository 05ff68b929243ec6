"""`contrailmq admin` against a cluster of ours."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator

import pytest
from admin_command import run, run_json
from typer.testing import CliRunner

from contrailmq import (
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    TransactionProducer,
    TransactionState,
)
from contrailmq.cli import app
from contrailmq.testing import LocalCluster
from waiting_for import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        with Producer("shop", namesrv=made.namesrv) as producer:
            for number in range(4):
                producer.send(Message("Orders", b"%d" % number, tags="paid", keys=[f"o-{number}"]))
        with LitePullConsumer("audit", namesrv=made.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as pull:
            pull.subscribe("Orders")
            got = 0
            while got < 4:
                got += len(pull.poll(timeout=120.0))
        yield made


def test_topics_are_listed_created_measured_and_deleted(cluster: LocalCluster) -> None:
    assert {"topic": "Orders"} in run_json(cluster, "topic", "list")
    run(cluster, "topic", "create", "Made", "--queues", "2")
    assert len(run_json(cluster, "topic", "status", "Made")) == 2
    assert run_json(cluster, "topic", "route", "Made")[0]["write_queues"] == 2
    run(cluster, "topic", "delete", "Made", "--yes")
    assert {"topic": "Made"} not in run_json(cluster, "topic", "list")
    assert "Orders" in run(cluster, "topic", "list")


def test_groups_show_their_progress(cluster: LocalCluster) -> None:
    assert "audit" in {row["group"] for row in run_json(cluster, "group", "list")}
    rows = run_json(cluster, "group", "progress", "audit", "--topic", "Orders")
    assert sum(int(str(row["consumer_offset"])) for row in rows) == 4
    assert "lag: 0" in run(cluster, "group", "progress", "audit", "--topic", "Orders")
    run(cluster, "group", "create", "fresh")
    assert "fresh" in {row["group"] for row in run_json(cluster, "group", "list")}
    run(cluster, "group", "delete", "fresh", "--yes")
    assert run_json(cluster, "group", "members", "audit") == []


def test_messages_are_found_by_key_id_and_time(cluster: LocalCluster) -> None:
    (message,) = run_json(cluster, "message", "by-key", "Orders", "o-2")
    assert message["body"] == "2"
    found = json.loads(run(cluster, "message", "get", "Orders", str(message["message_id"]), "--json"))
    assert found["offset_message_id"] == message["offset_message_id"]
    assert len(run_json(cluster, "message", "by-time", "Orders")) == 4
    assert "error: topic Orders has no message" in run(cluster, "message", "get", "Orders", "00" * 16, code=1)


def test_what_a_message_holds_is_shown_as_it_is(cluster: LocalCluster) -> None:
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Marked", b"[/red] [b]x :smile:", tags="[/t]", keys=["m-1"]))
    shown = run(cluster, "message", "by-key", "Marked", "m-1")
    assert "[/red] [b]x :smile:" in shown
    assert "[/t]" in shown


def test_what_a_terminal_would_act_on_is_shown_and_not_done(cluster: LocalCluster) -> None:
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        message = Message("Hostile", b"a\x1b[2Jb\x07\nforged line \xc2\x9b31m", tags="\x1b]0;t", keys=["h-1"])
        message.properties["p"] = "\x1b[31m\x7f"
        producer.send(message)
    for shown in (
        run(cluster, "message", "by-key", "Hostile", "h-1"),
        run(cluster, "message", "by-key", "Hostile", "h-1", "--json"),
    ):
        assert not [char for char in shown if unicodedata.category(char) == "Cc" and char != "\n"]
    table = run(cluster, "message", "by-key", "Hostile", "h-1")
    assert "a\\x1b[2Jb\\x07\\nforged line \\x9b31m" in table
    assert "\\x1b]0;t" in table
    assert run_json(cluster, "message", "by-key", "Hostile", "h-1")[0]["body"] == "a\x1b[2Jb\x07\nforged line \x9b31m"


def test_offsets_are_reset(cluster: LocalCluster) -> None:
    rows = run_json(cluster, "offset", "reset", "audit", "Orders", "--to", "earliest", "--yes")
    assert {row["offset"] for row in rows} == {0}
    rows = run_json(cluster, "offset", "reset", "audit", "Orders", "--to", "latest", "--yes")
    assert sum(int(str(row["offset"])) for row in rows) == 4
    assert "earliest, latest" in run(cluster, "offset", "reset", "audit", "Orders", "--to", "never", code=2)


def test_clusters_and_brokers_are_shown(cluster: LocalCluster) -> None:
    (row,) = run_json(cluster, "cluster", "list")
    address = str(row["address"])
    assert address == cluster.broker_addresses[0]
    assert json.loads(run(cluster, "broker", "status", address, "--json"))["brokerVersionDesc"]
    assert json.loads(run(cluster, "broker", "config", address, "--json"))["brokerName"] == row["broker"]
    assert run_json(cluster, "dlq", "list", "audit") == []


def test_a_broker_whose_address_is_given_is_asked_without_a_name_server(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    address = cluster.broker_addresses[0]
    for what in ("status", "pending", "damage", "config"):
        result = CliRunner().invoke(app, ["admin", "broker", what, address, "--json"])
        assert result.exit_code == 0, result.output
    changed = CliRunner().invoke(app, ["admin", "broker", "set", address, "maxFilterMessageSize=15000"])
    assert changed.exit_code == 0, changed.output
    assert json.loads(run(cluster, "broker", "config", address, "--json"))["maxFilterMessageSize"] == 15000
    without = CliRunner().invoke(app, ["admin", "topic", "list"])
    assert (without.exit_code, without.output) == (
        1,
        "error: no NameServer address: add -n host:9876 or set NAMESRV_ADDR\n",
    )


def test_what_waits_is_shown_by_topic_and_level(cluster: LocalCluster) -> None:
    with Producer("later", namesrv=cluster.namesrv) as producer:
        producer.send(Message("Reminders", b"t", delay=3600.0))
        producer.send(Message("Reminders", b"l", delay_level=18))
    undecided = TransactionProducer(
        "ledger",
        namesrv=cluster.namesrv,
        execute=lambda message, arg: TransactionState.UNKNOWN,
        check=lambda message: TransactionState.UNKNOWN,
    )
    with undecided:
        for body in (b"1", b"2"):
            undecided.send_in_transaction(Message("Ledger", body), None)
    address = cluster.broker_addresses[0]
    wanted = [
        {"kind": "delay", "of": "18", "pending": 1},
        {"kind": "half", "of": "Ledger", "pending": 2},
        {"kind": "timer", "of": "Reminders", "pending": 1},
    ]
    ask = lambda: run_json(cluster, "broker", "pending", address)  # noqa: E731
    until(lambda: ask() == wanted, "the wheel takes the timer in a moment later", seen=ask)


def test_an_unreachable_name_server_is_one_line_and_exit_code_1() -> None:
    result = CliRunner().invoke(app, ["admin", "topic", "list", "-n", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "none of the NameServers" in result.output
