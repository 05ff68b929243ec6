"""Every `contrailmq admin` command is on its page, and answers with `--json` what the page says; `--watch` too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_command import run
from typer.testing import CliRunner

from contrailmq import Admin, ConsumeFromWhere, ConsumeResult, Message, Producer, PushConsumer
from contrailmq.cli import app
from contrailmq.cli.admin import watching
from contrailmq.cli.admin.answers import ANSWERS, Answer, Shape
from contrailmq.testing import LocalCluster
from waiting_for import until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(slaves=1, config={"traceTopicEnable": "true"}) as made:
        yield made


@pytest.fixture(scope="module")
def place(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A topic with messages, a member that gave one up and traced another, and what commands are told of them."""
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("Orders", queues=1)
        admin.create_topic("Spare", queues=1)
        admin.create_topic("Rooms", queues=1, attributes={"message.type": "LITE"})
        admin.create_group("spare")
        consumer = PushConsumer(
            "billing", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, trace=True
        )
        consumer.subscribe("Orders")
        consumer.listen(
            lambda found: ConsumeResult.RETRY.with_details(delay_level=-1) if found[0].body == b"bad" else None
        )
        with consumer, Producer("shop", namesrv=cluster.namesrv, trace=True) as producer:
            good = producer.send(Message("Orders", b"good", tags="t", keys=["k"]))
            producer.send(Message("Orders", b"bad", tags="t", keys=["k"]))
            until(lambda: bool(admin.dead_letters("billing")) and admin.lag("billing") == 0)
            until(lambda: len(admin.trace(good.message_id)) >= 2)
            file = tmp_path_factory.mktemp("answers") / "cluster.yaml"
            run(cluster, "export", "--to", str(file))
            yield {
                "ID": good.message_id,
                "ADDRESS": cluster.broker_addresses[0],
                "FILE": str(file),
                "OUT": str(file.with_name("letters.jsonl")),
            }


# In an order in which each finds what it needs. Words in capitals are of the fixture `place`.
CALLS: dict[str, str] = {
    "topic list": "",
    "topic create": "Made --queues 1",
    "topic update": "Made --queues 2",
    "topic status": "Orders",
    "topic lite": "Rooms",
    "topic lite-status": "Rooms room1",
    "topic route": "Orders",
    "topic groups": "Orders",
    "topic delete": "Made --yes",
    "group list": "",
    "group create": "made",
    "group update": "made --retries 3",
    "group delete": "made --yes",
    "group progress": "billing",
    "group members": "billing",
    "group reset": "billing Orders --to latest --dry-run",
    "group skip": "billing --dry-run",
    "message get": "Orders ID",
    "message by-key": "Orders k",
    "message by-time": "Orders",
    "message send": "Orders body",
    "message tail": "Orders",
    "message trace": "ID",
    "message resend": "Orders ID --yes",
    "message resend --group": "Orders ID --group billing --yes",
    "offset reset": "billing Orders --to latest --dry-run",
    "offset clone": "billing spare Orders",
    "dlq list": "billing",
    "dlq resend --dry-run": "billing",
    "dlq resend": "billing",
    "dlq export": "billing --to OUT",
    "cluster list": "",
    "broker status": "ADDRESS",
    "broker pending": "ADDRESS",
    "broker damage": "ADDRESS",
    "broker config": "ADDRESS",
    "broker set": "ADDRESS maxFilterMessageSize=15000",
    "ha status": "",
    "migrate plan": "",
    "producers": "",
    "export": "",
    "export --to": "OUT --yes",
    "import": "FILE --dry-run",
    "check": "",
}
EMPTY = {"broker pending", "broker damage"}  # nothing waits and nothing is damaged here
FLAGS = {"message resend --group", "export --to"}  # their variant's flag is among the words already, or goes before
KINDS: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "number": (int, float),
    "flag": bool,
    "list": list,
    "object": dict,
    "any": object,
}


def test_each_command_has_a_schema_and_each_schema_a_call() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from admin_page import commands
    finally:
        sys.path.remove(str(ROOT / "tools"))
    paths = {path for path, _ in commands()}
    assert {name.partition(" --")[0] for name in ANSWERS} == paths
    assert set(CALLS) == set(ANSWERS)
    assert [path for path, command in commands() if not any("--json" in item.opts for item in command.params)] == []


def test_the_page_is_what_the_commands_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "admin_page.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_answer_has_the_fields_of_its_schema(cluster: LocalCluster, place: dict[str, str]) -> None:
    """One story: a topic is created before it is changed, and then deleted."""
    wrong = {}
    for name in CALLS:
        try:
            check_answer(name, cluster, place)
        except AssertionError as exc:
            wrong[name] = str(exc)
    assert wrong == {}


def check_answer(name: str, cluster: LocalCluster, place: dict[str, str]) -> None:
    path, _, flag = name.partition(" --")
    words = [place.get(word, word) for word in CALLS[name].split()]
    if flag and f"--{flag}" not in words:
        words.insert(len(words) - (name == "export --to") * len(words), f"--{flag}")
    result = CliRunner().invoke(app, ["admin", *path.split(), *words, "-n", cluster.namesrv, "--json"])
    assert result.exit_code in (0, 3, 4), result.output
    answer = ANSWERS[name]
    if answer.shape is Shape.LINES:
        rows = [json.loads(line) for line in result.output.splitlines()]
    else:
        found = json.loads(result.output)
        assert isinstance(found, list) == (answer.shape is Shape.LIST)
        rows = found if isinstance(found, list) else [found]
    assert rows or name in EMPTY
    for row in rows:
        assert holds(answer, row) == ""


def holds(answer: Answer, row: dict[str, object]) -> str:
    """What is wrong with an object, empty when nothing is."""
    if answer.shape is Shape.TABLE:
        return ""
    if list(row) != [name for name, _ in answer.fields]:
        return f"{list(row)}"
    for name, kind in answer.fields:
        value = row[name]
        is_right = isinstance(value, KINDS[kind.removesuffix("?")]) and isinstance(value, bool) <= (kind[:4] == "flag")
        if not is_right and not (value is None and kind.endswith("?")):
            return f"{name} is {value!r}, and should be {kind}"
    return ""


def test_a_table_comes_again_until_ctrl_c_and_json_is_a_line_each(
    cluster: LocalCluster, place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) % 3 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching, "pause", pause)
    lines = run(cluster, "group", "list", "--watch", "2.5", "--json").splitlines()
    assert waited == [2.5, 2.5, 2.5]
    assert [{row["group"] for row in json.loads(line)} for line in lines] == [{"billing", "spare"}] * 3
    assert run(cluster, "topic", "list", "--watch", "1").count("Orders") == 3
    assert "does not exist" in run(cluster, "topic", "status", "Nothing", "--watch", "1", code=1)


def test_a_table_that_cannot_be_asked_for_later_is_told_of_and_comes_again(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 0

    def pause(_: float) -> None:
        nonlocal rounds
        rounds += 1
        with Admin(namesrv=cluster.namesrv) as admin:
            if rounds == 1:
                admin.delete_topic("Fleeting")
            elif rounds == 2:
                admin.create_topic("Fleeting", queues=1)
            else:
                raise KeyboardInterrupt

    monkeypatch.setattr(watching, "pause", pause)
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("Fleeting", queues=1)
    said = run(cluster, "topic", "status", "Fleeting", "--watch", "1")
    assert said.count("error: topic Fleeting does not exist") == 1
    assert said.count("last_written") == 2


def test_shells_complete_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", "contrailmq admin mess")
    monkeypatch.setenv("COMP_CWORD", "2")
    result = CliRunner().invoke(app, [], env={"_CONTRAILMQ_COMPLETE": "complete_bash"}, prog_name="contrailmq")
    assert result.output.split() == ["message"]
