"""`contrailmq admin message tail|trace|resend`, and moving a group with a look before."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from admin_command import run, run_json

from contrailmq import Admin, ConsumeFromWhere, Message, MessageQueue, Producer, PushConsumer
from contrailmq.testing import LocalCluster
from waiting_for import until

_numbers = itertools.count()
EACH = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(config={"enablePropertyFilter": "true", "traceTopicEnable": "true"}) as made:
        filled(made, "Shown", group="shown")
        yield made


@pytest.fixture
def topic() -> str:
    return f"Told{next(_numbers)}"


def broker_of(cluster: LocalCluster) -> str:
    with Admin(namesrv=cluster.namesrv) as admin:
        return next(iter(admin.masters()))


def filled(cluster: LocalCluster, topic: str, *, group: str = "") -> None:
    """Two queues: three messages in the first, none in the second; `group` has consumed one of them."""
    broker = broker_of(cluster)
    with Admin(namesrv=cluster.namesrv) as admin, Producer("teller", namesrv=cluster.namesrv) as producer:
        admin.create_topic(topic, queues=2)
        for number in range(EACH):
            message = Message(
                topic,
                b"body %d" % number,
                tags="odd" if number % 2 else "even",
                keys=[f"k{number}"],
                properties={"region": "eu" if number else "us", "n": str(number)},
            )
            producer.send(message, queue=MessageQueue(topic, broker, 0))
        if group:
            admin.create_group(group)
            admin.set_offset(group, MessageQueue(topic, broker, 0), 1)


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        ((), [0, 1, 2]),
        (("--lines", "2"), [1, 2]),
        (("--tag", "even"), [0, 2]),
        (("--tag", "even", "--tag", "odd", "--lines", "1"), [2]),
        (("--sql", "n > 0 AND region = 'eu'"), [1, 2]),
        (("--key", "k1", "--key", "k2"), [1, 2]),
        (("--property", "region=eu", "--tag", "even"), [2]),
        (("--since", "-1h"), [0, 1, 2]),
        (("--since", "+1h"), []),
        (("--key", "none"), []),
    ],
    ids=str,
)
def test_the_last_messages_are_shown_a_line_each(
    cluster: LocalCluster, options: tuple[str, ...], bodies: list[int]
) -> None:
    lines = run(cluster, "message", "tail", "Shown", *options).splitlines()
    assert [line.rpartition("  ")[2] for line in lines] == [f"body {number}" for number in bodies]
    told = [json.loads(line) for line in run(cluster, "message", "tail", "Shown", *options, "--json").splitlines()]
    assert [message["body"] for message in told] == [f"body {number}" for number in bodies]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--tag", "a", "--sql", "b = 1"), "--tag or --sql, one of them"),
        (("--property", "a"), "--property 'a' is not NAME=TEXT"),
        (("--sql", " "), "--sql needs an expression"),
        (("--since", "noon"), "is not a time"),
    ],
    ids=str,
)
def test_a_filter_that_cannot_be_is_a_wrong_command_line(
    cluster: LocalCluster, options: tuple[str, ...], text: str
) -> None:
    assert text in " ".join(run(cluster, "message", "tail", "Any", *options, code=2).split())


def test_an_expression_that_the_broker_refuses_is_one_line(cluster: LocalCluster, topic: str) -> None:
    filled(cluster, topic)
    for follow in ((), ("-f",)):
        said = run(cluster, "message", "tail", topic, *follow, "--sql", "n >", code=1)
        assert said.startswith("error: ")
        assert len(said.splitlines()) == 1


def test_following_prints_what_comes_and_ends_cleanly_on_ctrl_c(cluster: LocalCluster, topic: str) -> None:
    """Every message once and in its order, of what was there at --since and of what came while it ran."""
    filled(cluster, topic)
    command = ["message", "tail", topic, "-f", "--since", "-1h", "--tag", "even", "--json", "-n", cluster.namesrv]
    with subprocess.Popen(
        [sys.executable, "-m", "contrailmq", "admin", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CONTRAILMQ_PURE": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = [json.loads(process.stdout.readline())["body"] for _ in range(2)]
        with Producer("teller", namesrv=cluster.namesrv) as producer:
            for number in range(4):
                producer.send(
                    Message(topic, b"later %d" % number, tags="even"), queue=MessageQueue(topic, broker_of(cluster), 1)
                )
        seen += [json.loads(process.stdout.readline())["body"] for _ in range(4)]
        process.send_signal(signal.SIGINT)
        rest, errors = process.stdout.read(), process.stderr.read()
        assert (process.wait(60), rest, errors) == (0, "", "")
    assert seen == ["body 0", "body 2", "later 0", "later 1", "later 2", "later 3"]


def test_a_trace_is_a_timeline_from_the_send_to_the_consumption(cluster: LocalCluster, topic: str) -> None:
    with Producer("traced", namesrv=cluster.namesrv, trace=True) as producer:
        consumer = PushConsumer(
            f"{topic}-group", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, trace=True
        )
        consumer.subscribe(topic)
        got: list[object] = []
        consumer.listen(got.append)
        message_id = producer.send(Message(topic, b"followed")).message_id
        with consumer:
            until(lambda: got, "the message")
    with Admin(namesrv=cluster.namesrv) as admin:
        until(lambda: len(admin.trace(message_id)) >= 3, "the traces, which clients write later or at their end")
    steps = run_json(cluster, "message", "trace", message_id)
    assert [step["what"] for step in steps] == ["sent", "consuming", "consumed"]
    assert steps[0]["after_ms"] == 0
    assert [step["group"] for step in steps] == ["traced", f"{topic}-group", f"{topic}-group"]
    assert all(step["is_good"] for step in steps)
    assert "consumed" in run(cluster, "message", "trace", message_id)
    assert "nobody has traced" in run(cluster, "message", "trace", "00" * 16, code=1)


def test_a_message_goes_to_its_topic_again_as_a_new_one_after_saying_so(cluster: LocalCluster, topic: str) -> None:
    filled(cluster, topic, group=f"{topic}-group")
    (message,) = run_json(cluster, "message", "by-key", topic, "k2")
    refused = run(cluster, "message", "resend", topic, message["message_id"], code=1)
    assert f"for every group of the topic: 1 group ({topic}-group)" in refused
    assert len(run_json(cluster, "message", "by-key", topic, "k2")) == 1, "nothing is sent without an answer"
    sent = run_json(cluster, "message", "resend", topic, message["message_id"], "--yes")
    copy, original = run_json(cluster, "message", "by-key", topic, "k2")
    assert original == message
    assert sent["new_message_id"] == copy["message_id"] != original["message_id"]
    assert [copy["body"], copy["tags"], copy["keys"]] == ["body 2", "even", ["k2"]]
    assert (copy["properties"]["region"], copy["properties"]["n"]) == ("eu", "2")


def test_one_member_of_a_group_consumes_a_message_when_told_to(cluster: LocalCluster, topic: str) -> None:
    filled(cluster, topic, group=f"{topic}-group")
    (message,) = run_json(cluster, "message", "by-key", topic, "k0")
    to_group = ("message", "resend", topic, message["message_id"], "--group", f"{topic}-group", "--yes")
    assert "has no member online" in run(cluster, *to_group, code=1)
    got: list[bytes] = []
    consumer = PushConsumer(f"{topic}-group", namesrv=cluster.namesrv)
    consumer.subscribe(topic)
    consumer.listen(lambda messages: got.extend(bytes(item.body) for item in messages))
    with consumer:
        until(lambda: len(got) >= 2, "the messages", seen=lambda: got)
        result = run_json(cluster, *to_group)
        assert result["result"] == "CR_SUCCESS"
        assert "no member nobody online" in run(cluster, *to_group, "--client", "nobody", code=1)
    assert sorted(got) == [b"body 0", b"body 1", b"body 2"]


def test_a_reset_shows_what_it_means_and_a_dry_run_does_nothing(cluster: LocalCluster, topic: str) -> None:
    group = f"{topic}-group"
    filled(cluster, topic, group=group)
    broker = broker_of(cluster)
    (first, second) = run_json(cluster, "group", "reset", group, topic, "--to", "latest", "--dry-run")
    told = {"topic": topic, "broker": broker, "queue": 0, "old_offset": 1, "offset": 3, "skipped": 2, "again": 0}
    assert first == told
    assert second == told | {"queue": 1, "old_offset": None, "offset": 0, "skipped": 0}
    assert "2 will never be consumed" in run(cluster, "group", "reset", group, topic, "--to", "latest", code=1)
    (before, _) = run_json(cluster, "group", "progress", group, "--topic", topic)
    assert before["consumer_offset"] == 1, "a question that nobody answers changes nothing"
    assert "1 will be consumed again" in run(cluster, "group", "reset", group, topic, "--offset", "0", "--yes")
    (after, _) = run_json(cluster, "group", "progress", group, "--topic", topic)
    assert after["consumer_offset"] == 0
    one = run_json(cluster, "group", "reset", group, topic, "--offset", "2", "--queue", f"{broker}:0", "--yes")
    assert [(row["queue"], row["offset"], row["skipped"]) for row in one] == [(0, 2, 2)]


def test_skipping_leaves_out_what_waits_in_every_topic_of_the_group(cluster: LocalCluster, topic: str) -> None:
    group = f"{topic}-group"
    filled(cluster, topic, group=group)
    filled(cluster, f"{topic}b", group=group)
    assert {row["skipped"] for row in run_json(cluster, "group", "skip", group, "--dry-run")} == {0, 2}
    assert sum(row["skipped"] for row in run_json(cluster, "group", "skip", group, "--yes")) == 4
    assert "lag: 0" in run(cluster, "group", "progress", group)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ((), 2, "give --to or --offset"),
        (("--to", "latest", "--offset", "1"), 2, "give --to or --offset"),
        (("--to", "someday"), 2, "--to takes earliest, latest or a time"),
        (("--to", "latest", "--queue", "b:0"), 2, "--queue goes with --offset"),
        (("--offset", "17"), 1, "has the offset 17: they have"),
        (("--offset", "-1"), 1, "offset -1 is negative"),
        (("--offset", "1", "--queue", "b:9"), 1, "has no queue b:9 to read: it has"),
    ],
    ids=str,
)
def test_where_a_group_cannot_go_on_is_said(
    cluster: LocalCluster, options: tuple[str, ...], code: int, text: str
) -> None:
    assert text in " ".join(run(cluster, "group", "reset", "shown", "Shown", *options, code=code).split())


def test_producers_are_listed_by_group(cluster: LocalCluster, topic: str) -> None:
    with Producer(f"{topic}-senders", namesrv=cluster.namesrv) as producer:
        producer.send(Message(topic, b"x"))
        ask = lambda: run_json(cluster, "producers", "--group", f"{topic}-senders")  # noqa: E731
        until(ask, "the broker has heard of the producer")
        rows = ask()
    assert [(row["group"], row["language"]) for row in rows] == [(f"{topic}-senders", "PYTHON")]
    assert rows[0]["last_seen_ms"] > 1_700_000_000_000
    assert rows[0]["address"].startswith("127.0.0.1:"), "without Java's slash, as everywhere"
