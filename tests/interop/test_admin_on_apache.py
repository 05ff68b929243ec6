"""The commands of `contrailmq admin` that look, tell, move and keep, with Apache's NameServer and broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache import Apache
from typer.testing import CliRunner

from contrailmq import Admin, Message, MessageQueue, Producer
from contrailmq.cli import app
from waiting_for import until

pytestmark = pytest.mark.program("Apache's broker under our clients", "5.5.0")


@pytest.fixture(scope="module")
def namesrv(rocketmq: Apache) -> Iterator[str]:
    """Two topics with messages that a group has partly consumed."""
    with rocketmq.cluster(autoCreateTopicEnable="true", traceTopicEnable="true") as (address, _):
        with Admin(namesrv=address) as admin:
            until(lambda: "TBW102" in admin.topics())
            admin.create_topic("Orders", queues=1)
            admin.create_topic("Ordered", queues=2, order=True, attributes={"message.type": "FIFO"})
            admin.create_group("billing")
            with Producer("shop", namesrv=address, trace=True) as producer:
                for number in range(4):
                    message = Message(
                        "Orders", b"%d" % number, tags="odd" if number % 2 else "even", keys=[f"k{number}"]
                    )
                    message.properties["n"] = str(number)
                    queue = producer.send(message).queue
            admin.set_offset("billing", MessageQueue("Orders", queue.broker_name, 0), 1)
        yield address


def run(namesrv: str, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["admin", *words, "-n", namesrv])
    assert result.exit_code == code, result.output
    return result.output


def run_json(namesrv: str, *words: str, code: int = 0) -> Any:
    return json.loads(run(namesrv, *words, "--json", code=code))


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        ((), "0123"),
        (("--tag", "odd"), "13"),
        (("--sql", "n > 1"), "23"),
        (("--key", "k2"), "2"),
        (("--lines", "1"), "3"),
    ],
    ids=str,
)
def test_the_last_messages_are_told(namesrv: str, options: tuple[str, ...], bodies: str) -> None:
    lines = run(namesrv, "message", "tail", "Orders", *options).splitlines()
    assert [line[-1] for line in lines] == list(bodies)


def test_a_message_is_traced_and_sent_again(namesrv: str) -> None:
    (message,) = run_json(namesrv, "message", "by-key", "Orders", "k0")
    with Admin(namesrv=namesrv) as admin:
        until(lambda: bool(admin.trace(message["message_id"])))
    assert run_json(namesrv, "message", "trace", message["message_id"])[0]["what"] == "sent"
    run(namesrv, "topic", "create", "Again", "--queues", "1")
    with Producer("shop", namesrv=namesrv) as producer:
        first = producer.send(Message("Again", b"again", keys=["a"])).message_id
    with Admin(namesrv=namesrv) as admin:
        until(lambda: admin.message("Again", first) is not None)
    sent = run_json(namesrv, "message", "resend", "Again", first, "--yes")
    assert sent["queue_offset"] == 1


def test_a_reset_and_a_skip_do_what_they_show(namesrv: str) -> None:
    (shown,) = run_json(namesrv, "group", "reset", "billing", "Orders", "--to", "latest", "--dry-run")
    assert (shown["old_offset"], shown["offset"], shown["skipped"]) == (1, 4, 3)
    run(namesrv, "group", "reset", "billing", "Orders", "--offset", "2", "--yes")
    (row,) = run_json(namesrv, "group", "progress", "billing", "--topic", "Orders")
    assert row["consumer_offset"] == 2
    run(namesrv, "group", "skip", "billing", "--yes")
    assert run(namesrv, "group", "progress", "billing", "--topic", "Orders").endswith("lag: 0\n")


def test_a_cluster_is_kept_as_a_file(namesrv: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    run(namesrv, "export", "--to", str(file))
    assert run(namesrv, "import", str(file), "--dry-run") == "the cluster is as the file says\n"
    text = file.read_text()
    file.write_text(text.replace("- name: billing\n", "- name: billing\n  retries: 3\n- name: made\n"))
    assert {change["name"] for change in run_json(namesrv, "import", str(file), "--yes")["changes"]} == {
        "billing",
        "made",
    }
    run(namesrv, "topic", "delete", "Ordered", "--yes")
    assert run_json(namesrv, "import", str(file), "--dry-run", code=3)["changes"][0]["name"] == "Ordered"
    run(namesrv, "import", str(file), "--yes")
    assert run(namesrv, "import", str(file), "--dry-run") == "the cluster is as the file says\n"
    file.write_text(text)
    run(namesrv, "import", str(file), "--prune", "--yes")
    assert run(namesrv, "export") == text


def test_a_plain_cluster_carries_over(namesrv: str) -> None:
    plan = run_json(namesrv, "migrate", "plan")
    assert plan["status"] == "kept", plan


def test_producers_are_listed_and_unknown_settings_refused(namesrv: str) -> None:
    with Producer("listed", namesrv=namesrv) as producer:
        producer.send(Message("Orders", b"x"))
        until(lambda: bool(run_json(namesrv, "producers", "--group", "listed")))
    (row,) = run_json(namesrv, "cluster", "list")
    assert "did you mean fileReservedTime?" in run(
        namesrv, "broker", "set", row["address"], "fileReservdTime=1", code=1
    )
