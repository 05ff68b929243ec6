"""What `contrailmq admin` changes: only what was asked for, nothing that loses messages without a word."""

from __future__ import annotations

import itertools
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest
from admin_command import run, run_json

from contrailmq import Admin, Message, MessageQueue, Producer
from contrailmq.testing import LocalCluster

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"Changed{next(_numbers)}"


def filled(cluster: LocalCluster, topic: str, *, queues: int, each: int) -> str:
    """A topic on the first broker with `each` messages in every queue; returns the broker's name."""
    with Admin(namesrv=cluster.namesrv) as admin, Producer("filler", namesrv=cluster.namesrv) as producer:
        broker = sorted(admin.masters())[0]
        admin.create_topic(topic, queues=queues, broker=broker)
        for queue_id in range(queues):
            for number in range(each):
                producer.send(Message(topic, b"%d" % number), queue=MessageQueue(topic, broker, queue_id))
    return broker


def test_creating_a_topic_that_exists_fails_and_leaves_it_as_it_was(cluster: LocalCluster, name: str) -> None:
    assert run_json(cluster, "topic", "create", name, "--queues", "6")["queues"] == 6
    before = run_json(cluster, "topic", "route", name)
    said = run(cluster, "topic", "create", name, "--queues", "2", "--perm", "4", code=1)
    assert f"topic {name} exists on " in said
    assert "topic update" in said
    assert run_json(cluster, "topic", "route", name) == before


def test_a_topic_can_be_created_on_a_broker_that_lacks_it(cluster: LocalCluster, name: str) -> None:
    broker = filled(cluster, name, queues=2, each=0)
    with Admin(namesrv=cluster.namesrv) as admin:
        other = next(found for found in admin.masters() if found != broker)
    run(cluster, "topic", "create", name, "--queues", "3", "--broker", broker, code=1)
    run(cluster, "topic", "create", name, "--queues", "3", "--broker", other)
    queues = {row["broker"]: row["read_queues"] for row in run_json(cluster, "topic", "route", name)}
    assert queues == {broker: 2, other: 3}


def test_an_update_changes_what_is_given_and_nothing_else(cluster: LocalCluster, name: str) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(name, queues=3, read_queues=5, permission=6, order=True, attributes={"message.type": "FIFO"})
        before = admin.topic_config(name)
        run(cluster, "topic", "update", name, "--perm", "4")
        after = admin.topic_config(name)
        assert len(after) == 2
        for broker, config in after.items():
            was = before[broker]
            assert (was.perm, config.perm) == (6, 4)
            assert (config.read_queue_nums, config.write_queue_nums, config.order) == (5, 3, True)
            assert config.attributes == was.attributes == {"message.type": "FIFO"}
        run(cluster, "topic", "update", name, "--queues", "7")
        wider = admin.topic_config(name).values()
        assert {(item.read_queue_nums, item.write_queue_nums, item.perm) for item in wider} == {(7, 7, 4)}
        assert admin.get_kv("ORDER_TOPIC_CONFIG", name) == ";".join(f"{broker}:7" for broker in sorted(after))
        run(cluster, "topic", "update", name, "--no-order")
        assert {config.order for config in admin.topic_config(name).values()} == {False}
        assert admin.get_kv("ORDER_TOPIC_CONFIG", name) is None


def test_an_update_of_nothing_or_of_an_unknown_topic_fails(cluster: LocalCluster, name: str) -> None:
    assert f"topic {name} does not exist" in run(cluster, "topic", "update", name, "--queues", "2", code=1)
    run(cluster, "topic", "create", name)
    assert "nothing to change" in run(cluster, "topic", "update", name, code=2)


def test_queues_with_unread_messages_go_only_by_force_and_their_messages_are_counted(
    cluster: LocalCluster, name: str
) -> None:
    filled(cluster, name, queues=8, each=1)
    said = run(cluster, "topic", "update", name, "--queues", "2", code=1)
    assert "6 messages" in said
    assert "--force" in said
    assert {row["read_queues"] for row in run_json(cluster, "topic", "route", name)} == {8}
    assert run_json(cluster, "topic", "update", name, "--queues", "2", "--force")["unreachable_messages"] == 6
    assert len(run_json(cluster, "message", "by-time", name)) == 2
    run(cluster, "topic", "update", name, "--queues", "8")
    assert len(run_json(cluster, "message", "by-time", name)) == 8, "more queues bring the messages back"


def test_fewer_queues_to_write_need_no_force_since_what_is_there_stays_readable(
    cluster: LocalCluster, name: str
) -> None:
    filled(cluster, name, queues=4, each=1)
    run(cluster, "topic", "update", name, "--write-queues", "1")
    (row,) = run_json(cluster, "topic", "route", name)
    assert (row["read_queues"], row["write_queues"]) == (4, 1)


def test_messages_are_unread_until_every_group_has_consumed_them(cluster: LocalCluster, name: str) -> None:
    broker = filled(cluster, name, queues=2, each=5)
    with Admin(namesrv=cluster.namesrv) as admin:
        for group, offset in ((f"{name}_fast", 5), (f"{name}_slow", 3)):
            admin.create_group(group)
            admin.set_offset(group, MessageQueue(name, broker, 1), offset)
        assert "2 messages" in run(cluster, "topic", "update", name, "--queues", "1", code=1)
        admin.set_offset(f"{name}_slow", MessageQueue(name, broker, 1), 5)
    assert run_json(cluster, "topic", "update", name, "--queues", "1")["unreachable_messages"] == 0


def test_creating_a_group_that_exists_fails_and_an_update_changes_only_what_is_given(
    cluster: LocalCluster, name: str
) -> None:
    run(cluster, "group", "create", name, "--retries", "3", "--orderly")
    assert f"group {name} exists on " in run(cluster, "group", "create", name, code=1)
    run(cluster, "group", "update", name, "--no-consume")
    with Admin(namesrv=cluster.namesrv) as admin:
        configs = admin.group_config(name)
    assert len(configs) == 2
    for config in configs.values():
        assert (config.retry_max_times, config.consume_message_orderly, config.consume_enable) == (3, True, False)
    assert "nothing to change" in run(cluster, "group", "update", name, code=2)
    assert "is not in the range x>=0" in run(cluster, "group", "update", name, "--retries", "-7", code=2)
    assert "group Nobody does not exist" in run(cluster, "group", "update", "Nobody", "--retries", "1", code=1)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("group", "progress", "Nobody"), "group Nobody"),
        (("group", "progress", "known", "--topic", "Nothing"), "topic Nothing"),
        (("group", "members", "Nobody"), "group Nobody"),
        (("group", "delete", "Nobody", "--yes"), "group Nobody"),
        (("topic", "delete", "Nothing", "--yes"), "topic Nothing"),
        (("topic", "status", "Nothing"), "topic Nothing"),
        (("topic", "groups", "Nothing"), "topic Nothing"),
        (("offset", "reset", "Nobody", "Known", "--to", "earliest"), "group Nobody"),
        (("offset", "reset", "known", "Nothing", "--to", "earliest"), "topic Nothing"),
        (("offset", "clone", "Nobody", "known", "Known"), "group Nobody"),
        (("offset", "clone", "known", "Nobody", "Known"), "group Nobody"),
        (("offset", "clone", "known", "known", "Nothing"), "topic Nothing"),
        (("dlq", "list", "Nobody"), "group Nobody"),
        (("dlq", "resend", "Nobody"), "group Nobody"),
    ],
    ids=" ".join,
)
def test_what_does_not_exist_is_said_and_ends_with_1(
    cluster: LocalCluster, arguments: tuple[str, ...], what: str
) -> None:
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("Known", queues=1)
        admin.create_group("known")
    assert f"error: {what} does not exist" in run(cluster, *arguments, code=1)


def test_offsets_that_a_group_does_not_have_are_not_cloned(cluster: LocalCluster, name: str) -> None:
    filled(cluster, name, queues=1, each=1)
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_group(name)
    assert "has no offsets" in run(cluster, "offset", "clone", name, name, name, code=1)


@pytest.mark.parametrize("noun", ["topic", "group"])
def test_a_delete_without_a_terminal_needs_yes(cluster: LocalCluster, name: str, noun: str) -> None:
    run(cluster, noun, "create", name)
    said = run(cluster, noun, "delete", name, code=1)
    assert "--yes" in said
    assert name in {row[noun] for row in run_json(cluster, noun, "list")}
    run(cluster, noun, "delete", name, "--yes")
    assert name not in {row[noun] for row in run_json(cluster, noun, "list")}


@pytest.mark.parametrize(("answer", "code", "is_there"), [(b"n\n", 1, True), (b"y\n", 0, False)])
def test_a_delete_at_a_terminal_asks_and_says_what_would_be_gone(
    cluster: LocalCluster, name: str, answer: bytes, code: int, is_there: bool
) -> None:
    filled(cluster, name, queues=2, each=3)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "contrailmq", "admin", "topic", "delete", name, "-n", cluster.namesrv]
    child = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        os.write(ours, answer)
        said, _ = child.communicate(timeout=120)
    finally:
        os.close(ours)
        os.close(theirs)
    assert child.returncode == code, said
    assert f"delete topic {name} with 6 messages in 2 queues?" in said
    assert (name in {row["topic"] for row in run_json(cluster, "topic", "list")}) is is_there


def test_what_is_told_of_several_brokers_and_of_what_cannot_be_reached_are_lines(
    cluster: LocalCluster, name: str
) -> None:
    broker = filled(cluster, name, queues=2, each=1)
    said = run(cluster, "topic", "update", name, "--queues", "1", "--force")
    assert said.splitlines() == [
        f"topic {name} on {broker}: 1 queues to read, 1 to write, permission 6",
        "1 unread message cannot be reached until the topic has as many queues again",
    ]
    run(cluster, "group", "create", name)
    said = run(cluster, "group", "update", name, "--retries", "3")
    assert len(said.splitlines()) == 2
    assert "\\n" not in said


@pytest.mark.parametrize(
    "arguments",
    [("topic", "create", "Queueless", "--queues", "0"), ("dlq", "resend", "nobody", "--max", "0")],
)
def test_a_number_that_would_do_nothing_is_a_wrong_command_line(
    cluster: LocalCluster, arguments: tuple[str, ...]
) -> None:
    assert "x>=1" in run(cluster, *arguments, code=2)
