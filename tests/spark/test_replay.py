"""Messages sent again: to which queue, with which key, what cannot be sent, and what is refused before it begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contrailmq import Message
from contrailmq.cli import app
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.sync_admin import Admin
from contrailmq.message import MessageError, Property, dlq_topic
from contrailmq.spark.columns import OptionError
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.jobs import replay as job
from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.replay import Pace, ReplayResult, UnsendableError, redrive, redriven, replay
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY
from contrailmq.spark.sinks.sending import Sender, SinkSettings, make_message
from contrailmq.spark.sources.topic_plan import QueueRange, TopicSettings
from contrailmq.spark.sources.topic_pulls import read_range
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.testing import LocalCluster

ONE = LocalEngine(1)
ROUNDS = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2) as running:
        yield running


def filled(folder: Path, messages: list[tuple[int, Message]]) -> str:
    """A store with these messages, each in the queue named beside it."""
    config = StoreConfig(folder, mapped_file_size_commit_log=65_536, max_hash_slot_num=10, max_index_num=40)
    with MessageStore(config) as store:
        for queue_id, message in messages:
            assert store.put(message, queue_id).status.name == "PUT_OK"
    return str(folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four queues of `Source`, whose bodies tell queue and offset."""
    bodies = [(queue_id, b"%d-%d" % (queue_id, offset)) for offset in range(ROUNDS) for queue_id in range(4)]
    messages = [(queue_id, Message("Source", body)) for queue_id, body in bodies]
    return filled(tmp_path_factory.mktemp("source"), messages)


def read_topic(cluster: LocalCluster, topic: str) -> list[dict[str, Any]]:
    settings, rows = TopicSettings(cluster.namesrv, with_system_topics=True), []
    with QueueReader(namesrv=cluster.namesrv) as reader:
        for queue in reader.queues(topic):
            part = QueueRange(queue, 0, reader.max_offset(queue))
            rows += [row for batch in read_range(part, settings, reader) for row in batch.to_pylist()]
    return rows


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["pipeline", *arguments, "--engine", "local"])


@pytest.mark.parametrize(("queues", "used"), [(1, 2), (2, 4), (4, 4), (3, 4)])
def test_queues_are_spread_over_all_brokers_and_each_goes_wholly_to_one(
    cluster: LocalCluster, store: str, queues: int, used: int
) -> None:
    topic = f"Spread{queues}"
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(topic, queues=queues)
    assert replay(store, topic, cluster.namesrv).sent == 4 * ROUNDS
    places: dict[tuple[str, int], list[bytes]] = {}
    for row in read_topic(cluster, topic):
        places.setdefault((row["brokerName"], row["queueId"]), []).append(row["body"])
    by_source = [
        (place, [body for body in bodies if body.startswith(b"%d-" % queue_id)])
        for place, bodies in places.items()
        for queue_id in range(4)
    ]
    whole = sorted(bodies for _, bodies in by_source if bodies)
    assert whole == [[b"%d-%d" % (queue_id, offset) for offset in range(ROUNDS)] for queue_id in range(4)]
    assert len(places) == used
    of_brokers = [sum(len(bodies) for (name, _), bodies in places.items() if name == broker) for broker, _ in places]
    assert set(of_brokers) == {2 * ROUNDS}


def test_a_topic_on_one_broker_keeps_queue_ids(cluster: LocalCluster, store: str) -> None:
    with QueueReader(namesrv=cluster.namesrv) as reader, Admin(namesrv=cluster.namesrv) as admin:
        broker = max(queue.broker_name for queue in reader.publish_queues("Anything"))
        admin.create_topic("OnOne", queues=4, broker=broker)
    replay(store, "OnOne", cluster.namesrv)
    rows = read_topic(cluster, "OnOne")
    assert sorted((row["queueId"], row["body"]) for row in rows) == [
        (queue_id, b"%d-%d" % (queue_id, offset)) for queue_id in range(4) for offset in range(ROUNDS)
    ]


def test_a_replayed_message_keeps_the_key_that_it_carries(cluster: LocalCluster, tmp_path: Path) -> None:
    own = [{DEDUP_PROPERTY: "a"}, {DEDUP_PROPERTY: "b"}, {DEDUP_PROPERTY: "a"}, {}]
    source = filled(tmp_path, [(0, Message("Keyed", b"%d" % n, properties=of)) for n, of in enumerate(own)])
    replay(source, "KeyedAgain", cluster.namesrv)
    keys = {row["body"]: dict(row["properties"])[DEDUP_PROPERTY] for row in read_topic(cluster, "KeyedAgain")}
    made = keys.pop(b"3")
    assert keys == {b"0": "a", b"1": "b", b"2": "a"}
    assert made.startswith("replay-Keyed-")
    assert "-0-3-" in made


def test_a_redriven_letter_does_not_carry_the_key_of_the_message_that_failed(cluster: LocalCluster) -> None:
    settings = SinkSettings(cluster.namesrv)
    with QueueReader(namesrv=cluster.namesrv) as client, Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("Driven", queues=1)
        sender = Sender(client, settings)
        letter = make_message({"topic": dlq_topic("k"), "body": "b"}, settings, "the-first-time")
        letter.properties["RETRY_TOPIC"] = "Driven"
        sender.add(letter, {})
        sender.flush()
    (stored,) = read_topic(cluster, dlq_topic("k"))
    again, key = redriven(stored)
    assert DEDUP_PROPERTY not in again["properties"]
    assert redrive("k", cluster.namesrv).sent == 1
    (row,) = read_topic(cluster, "Driven")
    assert dict(row["properties"])[DEDUP_PROPERTY] == key == f"redrive-{stored['msgId']}"


@pytest.fixture
def with_empty(tmp_path: Path) -> str:
    """Eight messages in queue 2, the last six without a body."""
    bodies = [b"first", b"second", *[b""] * 6]
    return filled(tmp_path / "empty", [(2, Message("Hollow", body)) for body in bodies])


def test_a_message_that_cannot_be_sent_is_named(cluster: LocalCluster, with_empty: str) -> None:
    place = r"Hollow/2 at offset 2 cannot be sent again: the body is empty.*; pass over it with --skip-unsendable"
    with pytest.raises(UnsendableError, match=place):
        replay(with_empty, "Filled", cluster.namesrv)


def test_messages_that_cannot_be_sent_are_passed_over_and_counted(cluster: LocalCluster, with_empty: str) -> None:
    done = run(
        "replay", "--from", with_empty, "-n", cluster.namesrv, "--to-topic", "Solid", "--skip-unsendable", "--json"
    )
    assert json.loads(done.stdout) == {"found": 8, "sent": 2, "skipped": 6}
    told = done.stderr.splitlines()
    assert [line.split(" cannot")[0] for line in told] == [f"warning: Hollow/2 at offset {n}" for n in range(2, 7)]
    assert all(line.endswith("; skipped") for line in told)
    assert sorted(row["body"] for row in read_topic(cluster, "Solid")) == [b"first", b"second"]


def test_a_topic_with_no_legal_name_is_no_reason_to_pass_over_every_message(with_empty: str) -> None:
    with pytest.raises(MessageError, match="topic 'a b' has forbidden characters"):
        replay(with_empty, "a b", "nobody:1", skip_unsendable=True)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"starting_offsets": {("Nope", 0): 1}}, "starting offset of Nope/0 is 1, but .* does not hold Nope"),
        (
            {"ending_offsets": {("Source", 4): 1}},
            r"ending offset of Source/4 is 1, but .* holds its queues \[0, 1, 2, 3\]",
        ),
        ({"ending_times_ms": {("Source", 9): 1}}, "the ending time of Source/9 is 1, but"),
        ({"starting_offsets": {("Source", 0): -1}}, "the starting offset of Source/0 is -1: the least is 0"),
        ({"topics": frozenset(["Other"]), "starting_offsets": {("Source", 0): 1}}, "Source is not among"),
    ],
)
def test_offsets_of_queues_that_are_not_replayed_are_refused(store: str, bounds: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        replay(store, None, "", selection=Selection(**bounds), dry_run=True)


def test_offsets_of_topics_that_an_archive_does_not_hold_are_refused(store: str, tmp_path: Path) -> None:
    archive(store, str(tmp_path / "a"), ONE)
    only = Selection(starting_offsets={("Source", 0): 3})
    assert replay(str(tmp_path / "a"), None, "", selection=only, dry_run=True).found == 4 * ROUNDS - 3
    with pytest.raises(OptionError, match="ending offset of Nope/0 is 3, but .* does not hold Nope"):
        replay(str(tmp_path / "a"), None, "", selection=Selection(ending_offsets={("Nope", 0): 3}), dry_run=True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--starting-offsets", '{"Source": {"0": -1}}'], "-1 (latest) for Source/0, where nothing would be read"),
        (["--ending-offsets", '{"Source": {"0": -2}}'], "-2 (earliest) for Source/0, where nothing would be read"),
        (["--starting-offsets", '{"Nope": {"0": 1}}'], "the starting offset of Nope/0 is 1, but"),
        (["--starting-offsets", '{"Nope": {"0": -2}}'], "the starting offset of Nope/0 is 0, but"),
        (["--starting-offsets", '{"Source": {"broker-a": {"0": 1}}}'], "names brokers for Source, and a log does not"),
        (["--rate", "-1"], "--rate"),
    ],
)
def test_a_replay_that_would_find_something_else_is_refused(store: str, words: list[str], text: str) -> None:
    done = run("replay", "--from", store, "--dry-run", *words)
    assert done.exit_code == 2
    assert text in done.stderr


def test_earliest_and_latest_mean_all_that_is_there(store: str) -> None:
    bounds = [
        "--starting-offsets",
        '{"Source": {"0": -2, "1": 2}}',
        "--ending-offsets",
        '{"Source": {"0": -1, "2": 4}}',
    ]
    done = run("replay", "--from", store, "--dry-run", "--json", *bounds)
    assert json.loads(done.stdout)["found"] == 4 * ROUNDS - 2 - 1


def test_a_topic_that_the_source_does_not_hold_is_told(store: str, tmp_path: Path) -> None:
    archive(store, str(tmp_path / "a"), ONE)
    for source in (store, str(tmp_path / "a")):
        done = run("replay", "--from", source, "--dry-run", "--json", "--topics", "Source,Nope,Neither")
        assert json.loads(done.stdout) == {"found": 4 * ROUNDS, "sent": 0, "skipped": 0}
        assert done.stderr == f"warning: {source} holds nothing of Neither, Nope: check the names\n"
    quiet = run("replay", "--from", store, "--dry-run", "--json", "--topics", "Source")
    assert quiet.stderr == ""


@pytest.mark.parametrize("rate", [-1, float("nan")])
def test_a_rate_below_none_is_refused(store: str, rate: float) -> None:
    with pytest.raises(OptionError, match=f"the rate is {rate:g} messages a second: give more than 0, or 0"):
        replay(store, None, "", per_second=rate, dry_run=True)
    with pytest.raises(OptionError, match="the rate is"):
        redrive("g", "nobody:1", per_second=rate)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--property", "foo"], "--property is 'foo' without a name or value: give name=value"),
        (["--property", "=x"], "--property is '' without a name or value: give name=value"),
        (["--client", "accessKey"], "--client is 'accessKey' without a name or value: give name=value"),
        (["--rate", "-0.5"], "--rate"),
    ],
)
def test_a_redrive_that_would_find_nothing_is_refused(
    words: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    done = run("redrive", "--group", "g", "-n", "nobody:1", *words)
    assert done.exit_code == 2
    assert text in done.stderr


def put_letters(cluster: LocalCluster, group: str, topic: str, message_ids: list[str]) -> None:
    """Dead letters with these message ids in one queue, for a topic that is made too; bodies count them."""
    settings = SinkSettings(cluster.namesrv)
    with QueueReader(namesrv=cluster.namesrv) as client, Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(topic, queues=2)
        sender = Sender(client, settings)
        for number, message_id in enumerate(message_ids):
            letter = make_message({"topic": dlq_topic(group), "body": f"{number}"}, settings, f"{group}-{number}")
            letter.properties |= {"RETRY_TOPIC": topic, Property.UNIQUE_KEY: message_id}
            sender.add(letter, {"queueId": 0})
        sender.flush()


def arrived(cluster: LocalCluster, topic: str) -> int:
    with QueueReader(namesrv=cluster.namesrv) as reader:
        return sum(reader.max_offset(queue) for queue in reader.queues(topic))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster) -> Callable[[str], list[tuple[float, int]]]:
    """Time stands still but for a job's pauses: at which time each began, and how many messages had arrived then."""

    def watch(topic: str) -> list[tuple[float, int]]:
        now_s, seen = [0.0], []

        def sleep(seconds: float) -> None:
            seen.append((now_s[0], arrived(cluster, topic)))
            now_s[0] += seconds

        monkeypatch.setattr(job, "Pace", partial(Pace, clock=lambda: now_s[0], sleep=sleep))
        return seen

    return watch


@pytest.mark.parametrize("kind", ["replay", "redrive"])
def test_messages_arrive_at_the_rate_and_not_when_a_batch_is_full(
    cluster: LocalCluster, tmp_path: Path, pauses: Callable[[str], list[tuple[float, int]]], kind: str
) -> None:
    """Three hundred at fifty a second: by each pause all that was allowed has arrived, each queue in its order."""
    topic = f"Paced_{kind}"
    seen = pauses(topic)
    if kind == "replay":
        source = filled(tmp_path, [(number % 2, Message("Fast", b"%d" % number)) for number in range(300)])
        with Admin(namesrv=cluster.namesrv) as admin:
            admin.create_topic(topic, queues=2)
        assert replay(source, topic, cluster.namesrv, per_second=50).sent == 300
    else:
        put_letters(cluster, "paced", topic, [f"PACED{number:027}" for number in range(300)])
        assert redrive("paced", cluster.namesrv, per_second=50).sent == 300
    assert seen[-1][0] == pytest.approx(300 / 50, abs=0.1)
    assert [(time_s, count) for time_s, count in seen if not 0 <= round(time_s * 50, 6) - count <= 1] == []
    rows = read_topic(cluster, topic)
    assert len(rows) == 300
    by_queue: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        by_queue.setdefault((row["brokerName"], row["queueId"]), []).append(int(row["body"]))
    assert all(bodies == sorted(bodies) for bodies in by_queue.values())


def test_a_letter_that_its_queue_holds_twice_is_sent_once(cluster: LocalCluster) -> None:
    """The second is found while the first still waits in the sender, where the broker's index cannot see it."""
    one, other = "TWICE" + "0" * 27, "TWICE" + "1" * 27
    put_letters(cluster, "twice", "Once", [one, other, one])
    assert redrive("twice", cluster.namesrv, dry_run=True) == ReplayResult(3, 0, 1)
    assert redrive("twice", cluster.namesrv) == ReplayResult(3, 2, 1)
    assert sorted(row["body"] for row in read_topic(cluster, "Once")) == [b"0", b"1"]
    assert redrive("twice", cluster.namesrv) == ReplayResult(3, 0, 3)


def test_the_command_says_that_redrives_of_a_group_run_one_at_a_time() -> None:
    said = " ".join(run("redrive", "--help").stdout.split())
    assert "Run one at a time for a group." in said
