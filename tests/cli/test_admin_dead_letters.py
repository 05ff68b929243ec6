"""`contrailmq admin dlq resend`: each dead letter goes back once, and only those that were chosen."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest
from admin_command import run, run_json

from contrailmq import (
    Admin,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    StoredMessage,
)
from contrailmq.client import LetterChoice
from contrailmq.testing import LocalCluster
from waiting_for import until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        yield made


@pytest.fixture(scope="module")
def without_index() -> Iterator[LocalCluster]:
    with LocalCluster(config={"messageIndexEnable": "false"}) as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"Letters{next(_numbers)}"


def give_up(cluster: LocalCluster, group: str, *bodies: bytes) -> list[StoredMessage]:
    """Make dead letters of these messages, one after the other."""

    def refuse(messages: list[StoredMessage]) -> object:
        return ConsumeResult.RETRY.with_details(delay_level=-1)

    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic(group, queues=1)
        consumer = PushConsumer(group, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe(group)
        consumer.listen(refuse)
        with consumer, Producer(group, namesrv=cluster.namesrv) as producer:
            for number, body in enumerate(bodies, 1):
                producer.send(
                    Message(group, body, tags="t", keys=[f"k-{body.decode(errors='replace')}"], properties={"p": "q"})
                )
                until(lambda number=number: len(admin.dead_letters(group)) == number)
        return admin.dead_letters(group)


def copies(cluster: LocalCluster, group: str) -> list[StoredMessage]:
    """What was sent back to the group, whoever sent it."""
    with Admin(namesrv=cluster.namesrv) as admin:
        if f"%RETRY%{group}" not in admin.topics():
            return []
        found = admin.messages_by_time(f"%RETRY%{group}", begin_ms=0, end_ms=2**62)
    return [message for message in found if "DLQ_RESENT_FROM" in message.properties]


def bodies(cluster: LocalCluster, group: str) -> list[bytes]:
    return [message.body for message in copies(cluster, group)]


def test_each_letter_goes_back_once_however_often_the_command_is_run(cluster: LocalCluster, group: str) -> None:
    give_up(cluster, group, b"1", b"2", b"3")
    assert run_json(cluster, "dlq", "resend", group, "--max", "1") == {
        "group": group,
        "sent": 1,
        "sent_before": 0,
        "has_more": True,
        "message_ids": [copies(cluster, group)[0].message_id],
    }
    assert run_json(cluster, "dlq", "resend", group)["sent"] == 2
    assert run_json(cluster, "dlq", "resend", group)["sent"] == 0
    assert bodies(cluster, group) == [b"1", b"2", b"3"]


def test_what_was_sent_back_is_an_offset_of_a_group_of_its_own(cluster: LocalCluster, group: str) -> None:
    give_up(cluster, group, b"1", b"2")
    run(cluster, "dlq", "resend", group, "--max", "1")
    (row,) = run_json(cluster, "group", "progress", "contrailmq_dlq_resend", "--topic", f"%DLQ%{group}")
    assert (row["consumer_offset"], row["broker_offset"], row["lag"]) == (1, 2, 1)


def test_a_copy_keeps_body_topic_properties_and_where_it_came_from(cluster: LocalCluster, group: str) -> None:
    (letter,) = give_up(cluster, group, b"kept")
    run(cluster, "dlq", "resend", group)
    (copy,) = copies(cluster, group)
    assert (copy.body, copy.tags, copy.keys, copy.message_id) == (b"kept", "t", ["k-kept"], letter.message_id)
    assert copy.properties["p"] == "q"
    assert copy.properties["RETRY_TOPIC"] == group
    assert copy.properties["ORIGIN_MESSAGE_ID"] == letter.properties["DLQ_ORIGIN_MESSAGE_ID"]
    assert copy.properties["DLQ_RESENT_FROM"] == letter.offset_message_id
    assert copy.reconsume_times == 0


def test_letters_are_chosen_by_id_key_and_time_and_those_before_them_wait(cluster: LocalCluster, group: str) -> None:
    letters = give_up(cluster, group, b"1", b"2", b"3", b"4", b"5")
    run(cluster, "dlq", "resend", group, "--id", letters[1].message_id)
    run(cluster, "dlq", "resend", group, "--id", letters[1].properties["DLQ_ORIGIN_MESSAGE_ID"])
    assert bodies(cluster, group) == [b"2"]
    run(cluster, "dlq", "resend", group, "--key", "k-4", "--key", "k-none")
    assert bodies(cluster, group) == [b"2", b"4"]
    since = str(letters[4].store_time_ms)
    run(cluster, "dlq", "resend", group, "--since", since)
    assert bodies(cluster, group) == [b"2", b"4", b"5"]
    assert run_json(cluster, "dlq", "resend", group, "--since", "-1h", "--until", "-30m")["sent"] == 0
    assert run_json(cluster, "dlq", "resend", group)["sent_before"] == 3
    assert bodies(cluster, group) == [b"2", b"4", b"5", b"1", b"3"]


def test_an_id_that_is_no_dead_letter_is_an_error_and_nothing_is_sent(cluster: LocalCluster, group: str) -> None:
    (letter,) = give_up(cluster, group, b"1")
    said = run(cluster, "dlq", "resend", group, "--id", letter.message_id, "--id", "AB" * 16, code=1)
    assert f"group {group} has no dead letter {'AB' * 16}" in said
    assert copies(cluster, group) == []


def test_a_dry_run_shows_what_would_go_and_sends_and_remembers_nothing(cluster: LocalCluster, group: str) -> None:
    give_up(cluster, group, b"1", b"2")
    assert [row["body"] for row in run_json(cluster, "dlq", "resend", group, "--dry-run")] == ["1", "2"]
    assert "2 dead letters would be sent" in run(cluster, "dlq", "resend", group, "--dry-run")
    assert copies(cluster, group) == []
    assert run_json(cluster, "dlq", "resend", group)["sent"] == 2


def test_all_sends_from_the_oldest_again_and_does_not_forget(cluster: LocalCluster, group: str) -> None:
    give_up(cluster, group, b"1", b"2")
    run(cluster, "dlq", "resend", group)
    assert run_json(cluster, "dlq", "resend", group, "--all", "--max", "1")["sent"] == 1
    assert run_json(cluster, "dlq", "resend", group)["sent"] == 0
    assert bodies(cluster, group) == [b"1", b"2", b"1"]


def test_a_kill_after_a_send_and_before_its_commit_repeats_nothing(cluster: LocalCluster, group: str) -> None:
    letters = give_up(cluster, group, b"1", b"2")
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.resend_dead_letter(group, letters[0])  # and here the process ends
        report = admin.resend_dead_letters(group)
    assert (len(report.results), report.sent_before) == (1, 1)
    assert bodies(cluster, group) == [b"1", b"2"]


def test_without_an_index_such_a_kill_repeats_that_one_letter(without_index: LocalCluster, group: str) -> None:
    letters = give_up(without_index, group, b"1", b"2", b"3")
    with Admin(namesrv=without_index.namesrv) as admin:
        admin.resend_dead_letters(group, LetterChoice(max_count=1))
        admin.resend_dead_letter(group, letters[1])
        assert len(admin.resend_dead_letters(group).results) == 2
        assert admin.resend_dead_letters(group).results == []
        (queue,) = admin.queues(f"%DLQ%{group}")
        assert admin.offset("contrailmq_dlq_resend", queue) == 3
    assert bodies(without_index, group) == [b"1", b"2", b"2", b"3"]


def test_a_letter_that_fails_again_is_a_new_letter_and_can_go_back_again(cluster: LocalCluster, group: str) -> None:
    give_up(cluster, group, b"1")
    run(cluster, "dlq", "resend", group)
    consumer = PushConsumer(group, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(group)
    consumer.listen(lambda messages: ConsumeResult.RETRY.with_details(delay_level=-1))
    with consumer, Admin(namesrv=cluster.namesrv) as admin:
        until(lambda: len(admin.dead_letters(group)) == 2)
    assert run_json(cluster, "dlq", "resend", group)["sent"] == 1
    assert run_json(cluster, "dlq", "resend", group)["sent"] == 0


def test_what_was_sent_back_and_not_consumed_yet_counts_as_lag(cluster: LocalCluster, group: str) -> None:
    """The group never had an offset in its retry topic: nothing was in it while it was connected."""
    give_up(cluster, group, b"1", b"2", b"3")
    assert run_json(cluster, "group", "progress", group)[-1]["lag"] == 0
    assert run_json(cluster, "dlq", "resend", group)["sent"] == 3
    waiting = [row for row in run_json(cluster, "group", "progress", group) if row["lag"]]
    assert [(row["topic"], row["lag"]) for row in waiting] == [(f"%RETRY%{group}", 3)]
    listed = {row["group"]: row["lag"] for row in run_json(cluster, "group", "list")}
    assert listed[group] == 3


def test_letters_are_exported_whole_as_json_lines_or_parquet(cluster: LocalCluster, group: str, tmp_path: Path) -> None:
    letters = give_up(cluster, group, b"one", b"\xff\x00")
    lines = [json.loads(line) for line in run(cluster, "dlq", "export", group).splitlines()]
    assert [line["message_id"] for line in lines] == [letter.message_id for letter in letters]
    assert [(line["body"], line["body_encoding"]) for line in lines] == [("one", "utf-8"), ("/wA=", "base64")]
    file = tmp_path / "letters.parquet"
    told = run_json(cluster, "dlq", "export", group, "--to", str(file))
    assert told == {"group": group, "file": str(file), "format": "parquet", "letters": 2}
    table = pyarrow.parquet.read_table(file).to_pylist()
    assert [row["body"] for row in table] == [b"one", b"\xff\x00"]
    assert [row["keys"] for row in table] == [letter.keys for letter in letters]
    assert run(cluster, "dlq", "export", group, "--until", "-1h") == ""


def test_an_export_replaces_a_file_only_when_told_to_and_never_leaves_half_of_one(
    cluster: LocalCluster, group: str, tmp_path: Path
) -> None:
    give_up(cluster, group, b"one")
    file = tmp_path / "letters.jsonl"
    file.write_text("kept")
    assert "replace the file" in run(cluster, "dlq", "export", group, "--to", str(file), code=1)
    assert file.read_text() == "kept"
    run(cluster, "dlq", "export", group, "--to", str(file), "--yes")
    assert json.loads(file.read_text())["body"] == "one"
    assert "cannot be written" in run(cluster, "dlq", "export", group, "--to", str(tmp_path / "no" / "x"), code=1)
    assert "Parquet needs a file" in run(cluster, "dlq", "export", group, "--format", "parquet", code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.jsonl"]
