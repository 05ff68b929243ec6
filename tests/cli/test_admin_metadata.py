"""`contrailmq admin export` and `import`: a file says what a cluster should have; only what differs is changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec.yaml
import pytest
from admin_command import run, run_json

from contrailmq import Admin, Message, MessageQueue, Producer
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig

ALLOWED = {"allowRemoteConfig": "fileReservedTime"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, config=ALLOWED) as made:
        yield made


@pytest.fixture
def other() -> Iterator[LocalCluster]:
    """One for each test that changes it."""
    with LocalCluster(brokers=2, config=ALLOWED) as made:
        yield made


@pytest.fixture(scope="module")
def filled(cluster: LocalCluster) -> LocalCluster:
    """Topics and groups of every kind, some on one broker only, some different on each."""
    with Admin(namesrv=cluster.namesrv) as admin:
        first, second = sorted(admin.masters())
        admin.create_topic("Everywhere", queues=4)
        admin.create_topic("Here", queues=2, broker=first)
        admin.create_topic("Uneven", queues=1, broker=first)
        admin.create_topic("Uneven", queues=5, broker=second)
        admin.create_topic("Ordered", queues=3, order=True, attributes={"message.type": "FIFO"})
        admin.create_group("plain")
        admin.create_group(SubscriptionGroupConfig(group_name="odd", retry_max_times=3, consume_enable=False))
        admin.put_kv("shop", "colour", "blue")
        address = admin.masters()[first]
        admin.update_broker_config(address, {"fileReservedTime": "48"})
    return cluster


def exported(cluster: LocalCluster, file: Path) -> str:
    run(cluster, "export", "--to", str(file), "--kv", "shop", "--yes")
    return file.read_text()


def names(cluster: LocalCluster) -> list[str]:
    with Admin(namesrv=cluster.namesrv) as admin:
        return sorted(admin.masters())


def test_a_file_says_once_what_is_the_same_on_every_broker(filled: LocalCluster) -> None:
    first, second = names(filled)
    document = msgspec.yaml.decode(run(filled, "export", "--kv", "shop"))
    topics = [(topic["name"], topic.get("brokers"), topic["write_queues"]) for topic in document["topics"]]
    assert topics == [
        ("Everywhere", None, 4),
        ("Here", [first], 2),
        ("Ordered", None, 3),
        ("Uneven", [first], 1),
        ("Uneven", [second], 5),
    ]
    assert document["topics"][0] == {"name": "Everywhere", "read_queues": 4, "write_queues": 4}, "no defaults"
    assert document["groups"] == [{"name": "odd", "retries": 3, "consume": False}, {"name": "plain"}]
    assert document["kv"] == {"shop": {"colour": "blue"}}, "what follows from an order topic is not said again"
    assert document["settings"][first]["fileReservedTime"] == 48
    assert run_json(filled, "export", "--kv", "shop")["topics"] == document["topics"]


def test_a_file_makes_another_cluster_the_same_and_a_second_import_finds_nothing(
    filled: LocalCluster, other: LocalCluster, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    text = exported(filled, file)
    shown = run(other, "import", str(file), "--dry-run", code=3)
    assert "+ topic Ordered on" in shown
    assert "    fileReservedTime" not in shown
    assert f"~ setting fileReservedTime on {names(other)[0]}\n    value: 72 -> 48" in shown
    refused = run(other, "import", str(file), code=1)
    assert "apply" in refused
    assert "--yes" in refused
    assert run_json(other, "topic", "list") == [], "neither a dry run nor a question without answer changes anything"
    told = run_json(other, "import", str(file), "--yes")
    assert told["is_applied"] is True
    assert told["failed"] == []
    assert exported(other, tmp_path / "other.yaml") == text
    assert run(other, "import", str(file), "--dry-run") == "the cluster is as the file says\n"
    with Admin(namesrv=other.namesrv) as admin:
        first, second = names(other)
        assert admin.get_kv("ORDER_TOPIC_CONFIG", "Ordered") == f"{first}:3;{second}:3"


def test_what_the_file_lacks_is_deleted_only_with_prune(
    filled: LocalCluster, other: LocalCluster, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    exported(filled, file)
    run(other, "import", str(file), "--yes")
    first, second = names(other)
    with Admin(namesrv=other.namesrv) as admin:
        admin.create_topic("Extra", queues=1)
        admin.create_topic("Here", queues=2, broker=second)
        admin.create_group("extra")
        admin.put_kv("shop", "size", "m")
    assert "6 of the cluster's entries are not in the file, and stay" in run(other, "import", str(file), "--yes")
    told = run_json(other, "import", str(file), "--prune", "--yes")
    assert [(change["kind"], change["name"], change["where"]) for change in told["changes"]] == [
        ("topic", "Extra", first),
        ("topic", "Extra", second),
        ("topic", "Here", second),
        ("group", "extra", first),
        ("group", "extra", second),
        ("kv", "size", "shop"),
    ]
    assert exported(other, tmp_path / "after.yaml") == file.read_text()
    with Admin(namesrv=other.namesrv) as admin:
        assert "Extra" not in admin.topics()
        assert list(admin.topic_holders("Here")) == [first]


def test_only_what_differs_is_changed_and_fields_are_named(other: LocalCluster, tmp_path: Path) -> None:
    with Admin(namesrv=other.namesrv) as admin:
        admin.create_topic("Changing", queues=2, attributes={"message.type": "NORMAL"})
        admin.create_group("changing")
    document = {
        "topics": [{"name": "Changing", "read_queues": 2, "write_queues": 3, "attributes": {"message.type": "NORMAL"}}],
        "groups": [{"name": "changing", "retries": 5}],
    }
    file = tmp_path / "cluster.yaml"
    file.write_bytes(msgspec.yaml.encode(document))
    changes = run_json(other, "import", str(file), "--yes")["changes"]
    assert {(change["kind"], change["action"], change["name"]) for change in changes} == {
        ("topic", "change", "Changing"),
        ("group", "change", "changing"),
    }
    assert changes[0]["fields"] == {"write_queues": {"old": 2, "new": 3}}
    with Admin(namesrv=other.namesrv) as admin:
        assert {config.write_queue_nums for config in admin.topic_holders("Changing").values()} == {3}
        assert {config.retry_max_times for config in admin.group_config("changing").values()} == {5}


def test_queues_with_unread_messages_are_taken_away_only_by_force(other: LocalCluster, tmp_path: Path) -> None:
    _, second = names(other)
    with Admin(namesrv=other.namesrv) as admin, Producer("filler", namesrv=other.namesrv) as producer:
        admin.create_topic("Shrunk", queues=2)
        producer.send(Message("Shrunk", b"unread"), queue=MessageQueue("Shrunk", second, 1))
    text = "topics: [{name: Shrunk, read_queues: 1, write_queues: 1}]"
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    said = run(other, "import", str(file), "--yes", code=1)
    assert f"1 message of topic Shrunk on {second} that not every group has consumed" in said
    with Admin(namesrv=other.namesrv) as admin:
        assert {config.read_queue_nums for config in admin.topic_holders("Shrunk").values()} == {2}
    run(other, "import", str(file), "--yes", "--force")


def test_a_change_that_a_broker_refuses_is_told_of_and_the_others_are_made(other: LocalCluster, tmp_path: Path) -> None:
    first, _ = names(other)
    file = tmp_path / "cluster.yaml"
    file.write_text(
        f"topics: [{{name: Made, read_queues: 1, write_queues: 1}}]\nsettings: {{{first}: {{deleteWhen: '05'}}}}\n"
    )
    said = run(other, "import", str(file), "--yes", code=1)
    assert f"1 change failed: setting deleteWhen on {first}" in " ".join(said.split())
    with Admin(namesrv=other.namesrv) as admin:
        assert sorted(admin.topic_holders("Made")) == names(other)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("topics: [{name: A}]", "missing required field `read_queues`"),
        ("topcs: []", "unknown field `topcs`"),
        ("topics: [{name: A, read_queues: 1, write_queues: 1, brokers: [brokr-a]}]", "did you mean broker-1?"),
        ("topics: [{name: A, read_queues: many, write_queues: 1}]", "Expected `int`, got `str`"),
        ("groups: [{name: g}, {name: g}]", "has group g twice for broker broker-0"),
        ("settings: {nobody: {deleteWhen: 4}}", "no broker nobody is registered"),
        ("format: 7", "has format 7, this version reads format 1"),
        ("{", "is no file of `contrailmq admin export`"),
        ("- a", "is no file of `contrailmq admin export`"),
    ],
    ids=str,
)
def test_a_file_that_is_wrong_is_one_sentence_and_changes_nothing(
    cluster: LocalCluster, tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    said = run(cluster, "import", str(file), "--yes", code=1)
    assert reason in said
    assert len(said.splitlines()) == 1


def test_a_file_that_is_not_there_is_one_sentence(cluster: LocalCluster, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in run(cluster, "import", str(tmp_path / "none.yaml"), code=1)
    assert "cannot be written" in run(cluster, "export", "--to", str(tmp_path / "no" / "x"), code=1)
