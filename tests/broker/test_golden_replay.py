"""Requests that Apache's clients and tools really sent, replayed against our broker and held against its answers.

The captures keep at most two exchanges of a kind, so part of the state behind them is missing (heartbeats, messages).
An exchange whose result depends on that may be answered with another code; WHERE_STATE_IS_MISSING names those codes.
Wherever the response codes agree, our answer must have every ext field and every body member of Apache's, in the
request's serialization.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from broker.harness import Bench, Link
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.fastjson import loads_fastjson
from contrailmq.wire.frame import FrameParser, encode_response
from contrailmq.wire.header import Command

GOLDEN = Path(__file__).parents[1] / "golden" / "wire"

# code -> what the captures do not hold
WHERE_STATE_IS_MISSING = {
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "the heartbeat",
    RequestCode.PULL_MESSAGE: "the heartbeat, other messages",
    RequestCode.LITE_PULL_MESSAGE: "other messages",
    RequestCode.CONSUMER_SEND_MSG_BACK: "the message at that offset",
    RequestCode.VIEW_MESSAGE_BY_ID: "the message at that offset",
    RequestCode.QUERY_MESSAGE: "the message with that key",
    RequestCode.GET_CONSUMER_CONNECTION_LIST: "the heartbeat",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "the heartbeat",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "the heartbeat",
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "the heartbeat",
    RequestCode.VIEW_BROKER_STATS_DATA: "the pulls",
    RequestCode.QUERY_CONSUMER_OFFSET: "nothing: an empty queue is answered 0 here and 22 by 5.5.0",
    RequestCode.RECALL_MESSAGE: "the setting that allows it",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: "the message at that offset",
}
# POP: each request builds on the answer to the one before; test_pop_golden.py replays whole conversations.
CONVERSATIONS = {
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.NOTIFICATION,
    RequestCode.QUERY_ASSIGNMENT,
}
# Members that Apache leaves out when the state behind them is missing, and so do we.
OPTIONAL_MEMBERS = {"subscriptionData"}


def exchanges() -> list[Path]:
    return [
        path
        for path in sorted(GOLDEN.glob("[0-9]*.json"))
        if json.loads(path.read_text())["direction"].startswith("client -> broker")
    ]


def parsed(frame: str) -> Command:
    (command,) = FrameParser().feed(bytes.fromhex(frame))
    return command


@pytest.fixture
def golden_bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, settings={"brokerName": "golden-w", "brokerClusterName": "GoldenCluster"})
    bench.node.set_address("127.0.0.1", 20_911)
    bench.send_processor.configure()
    return bench


def replay(bench: Bench, link: Link, command: Command) -> Command | None:
    async def handle() -> None:
        bench.handlers.handle(link, [command])
        await bench.handlers.drain()

    bench.run(handle())
    bench.settle()
    bench.node.held.release_all()
    answers = link.take()
    assert len(answers) == (0 if command.is_oneway else 1)
    return answers[0] if answers else None


def difference(ours: Command, theirs: Command) -> str:
    """What Apache's answer has and ours lacks; empty when it has all of it."""
    fields = set(theirs.ext) - set(ours.ext)
    if fields:
        return f"ext fields {sorted(fields)}"
    if theirs.body[:1] != b"{":
        return "" if bool(theirs.body) == bool(ours.body) or ours.code else "the body"
    expected, found = loads_fastjson(theirs.body), loads_fastjson(ours.body)
    assert isinstance(expected, dict)
    assert isinstance(found, dict)
    members = {str(name) for name in expected} - {str(name) for name in found} - OPTIONAL_MEMBERS
    return f"body members {sorted(members)}" if members else ""


def test_captured_requests_get_answers_of_the_same_shape(golden_bench: Bench) -> None:
    bench, link = golden_bench, Link()
    link.answers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = encode_response(Command())
    agreed: Counter[int] = Counter()
    wrong = []
    for path in exchanges():
        capture = json.loads(path.read_text())
        command = parsed(capture["request_hex"])
        if command.code not in bench.handlers or command.code in CONVERSATIONS:
            continue
        ours = replay(bench, link, command)
        if ours is None or not capture["response_hex"]:
            continue
        theirs = parsed(capture["response_hex"])
        assert ours.serialize_type == command.serialize_type
        if ours.code != theirs.code:
            if command.code not in WHERE_STATE_IS_MISSING:
                wrong.append(f"{path.name}: {ours.code} {ours.remark}, Apache {theirs.code} {theirs.remark}")
            continue
        agreed[command.code] += 1
        lacks = difference(ours, theirs)
        if lacks:
            wrong.append(f"{path.name} lacks {lacks}")
    bench.close()
    assert not wrong, "\n".join(wrong)
    assert len(agreed) >= 54, f"only {len(agreed)} codes agreed: {sorted(agreed)}"
    assert sum(agreed.values()) >= 130
