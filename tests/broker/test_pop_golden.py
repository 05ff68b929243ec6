"""The POP exchanges of Apache's 5.5.0 broker and clients, replayed against ours and held against its answers.

Each request is sent again, in its order and at its time, with the handles that our broker gave where the captured ones
name Apache's pop times. Answers must agree in code, remark, every ext field and every message. What may differ: times,
addresses, places in the log, the number of the revive queue (a counter), and where a scan of the queues began (a random
number, which is chosen here as Apache's fell). The captures hold at most four exchanges of a kind, so messages that
were sent are taken from the answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.harness import Link, records
from broker.pop_bench import PopBench
from contrailmq.message import StoredMessage
from contrailmq.store.base.clock import ManualClock
from contrailmq.wire.fastjson import loads_fastjson
from contrailmq.wire.frame import FrameParser
from contrailmq.wire.header import Command

GOLDEN = Path(__file__).parents[1] / "golden" / "wire-pop"
HEART_BEAT, UNREGISTER, POP, ACK, PEEK, CHANGE, NOTIFICATION, POLLING_INFO, BATCH_ACK = (
    34, 35, 200050, 200051, 200052, 200053, 200054, 200055, 200151,
)  # fmt: skip
TOPICS = {"GoldenPop": 2, "GoldenWait": 1, "GoldenFifo": 1, "GoldenMode": 4}
# Our texts say more: which part of a handle is wrong, what of an expression cannot be parsed.
OWN_WORDS = {
    "012-ACK_MESSAGE", "013-ACK_MESSAGE", "014-ACK_MESSAGE", "027-POP_MESSAGE", "035-BATCH_ACK_MESSAGE",
    "037-BATCH_ACK_MESSAGE",
}  # fmt: skip
BORN = 1794945639000


class Exchange:
    def __init__(self, path: Path) -> None:
        data = json.loads(path.read_text())
        self.name = path.stem
        self.code: int = data["code"]
        self.step: str = data["step"]
        (self.request,) = FrameParser().feed(bytes.fromhex(data["request_hex"]))
        self.answer: Command | None = None
        if data["response_hex"]:
            (self.answer,) = FrameParser().feed(bytes.fromhex(data["response_hex"]))

    def __repr__(self) -> str:
        return f"{self.name} ({self.step})"


EXCHANGES = [Exchange(path) for path in sorted(GOLDEN.glob("[0-9]*.json"))]
BY_NAME = {one.name[:3]: one for one in EXCHANGES}


class Replay:
    """One broker, and what Apache's said at each step."""

    def __init__(self, path: Path) -> None:
        self.bench = PopBench(
            path,
            clock=ManualClock(BORN),
            settings={
                "brokerName": "golden-p",
                "brokerClusterName": "GoldenCluster",
                "popPollingSize": "2",
                "autoCreateTopicEnable": "false",
                "autoCreateSubscriptionGroup": "false",
            },
        )
        bench = self.bench
        bench.node.set_address("127.0.0.1", 35_911)
        for topic, queues in TOPICS.items():
            fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues}
            more = {"perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false"}
            assert bench.ask(17, {name: str(value) for name, value in (fields | more).items()}).code == 0
        groups = {one.request.ext.get("consumerGroup", "") for one in EXCHANGES} | {"Golden_push", "Golden_share"}
        for group in sorted(groups - {"", "no_such_group"}):
            assert bench.ask(200, None, json.dumps({"groupName": group}).encode()).code == 0
        self.link = Link(47_084)
        self.link.peer = ("127.0.0.1", 47_084)
        self.times: dict[str, str] = {}  # Apache's pop time -> ours
        self.sent: set[tuple[str, int, int]] = set()

    def send(self, message: StoredMessage) -> None:
        """One of the messages that Apache's broker had, once."""
        place = (message.topic, message.queue_id, message.queue_offset)
        if place in self.sent:
            return
        self.sent.add(place)
        properties = {
            name: value for name, value in message.properties.items() if name not in ("CLUSTER", "MSG_REGION")
        }
        answer = self.bench.send(
            message.topic, message.body, e=message.queue_id, g=message.born_time_ms, properties=properties
        )
        assert (answer.code, int(answer.ext["queueOffset"])) == (0, message.queue_offset), place

    def exchange(self, one: Exchange) -> Command | None:
        """Our answer."""
        ext = dict(one.request.ext)
        born_ms = int(ext.get("bornTime", 0))
        if "too much" not in str(one.answer.remark if one.answer else ""):
            self.at(born_ms)
        if one.code == POP and one.answer is not None and one.answer.ext.get("startOffsetInfo"):
            mark, queue_id, _ = one.answer.ext["startOffsetInfo"].split(";")[0].split(" ")
            self.bench.begin = int(queue_id) + 60 if mark == "0" else 50
            if mark == "0":
                queues = TOPICS[ext["topic"]]
                self.bench.begin = next(number for number in range(60, 100) if number % queues == int(queue_id))
        if "extraInfo" in ext:
            ext["extraInfo"] = " ".join(self.times.get(part, part) for part in ext["extraInfo"].split(" "))
        body = one.request.body
        for golden, ours in self.times.items():
            body = body.replace(golden.encode(), ours.encode())
        answers = self.bench.tell(one.code, ext, body, link=self.link)
        return answers[0] if answers else None

    def at(self, time_ms: int) -> None:
        """Let time pass up to then, if it lies ahead."""
        ahead = time_ms - self.bench.clock.now_ms()
        if ahead > 0:
            self.bench.passes(ahead, step_ms=100)

    def until_answered(self, time_ms: int) -> Command:
        for _ in range(time_ms // 20 + 10):
            answers = self.link.take()
            if answers:
                return answers[0]
            self.bench.passes(20)
        raise AssertionError("no answer came")

    def compare(self, one: Exchange, answer: Command) -> None:
        golden = one.answer
        assert golden is not None
        assert answer.code == golden.code, (one, answer.code, answer.remark)
        if one.name not in OWN_WORDS:
            assert (answer.remark or "") == (golden.remark or ""), one
        ours, theirs = dict(answer.ext), dict(golden.ext)
        if theirs.get("popTime", "0") != "0":
            self.times[theirs.pop("popTime")] = ours.pop("popTime")
        if one.request.ext.get("extraInfo", "").split(" ")[3:4] == ["999"] and theirs.get("reviveQid") == "999":
            ours.pop("invisibleTime"), theirs.pop("invisibleTime")  # from the pop to now
        elif theirs.get("reviveQid", "0") != "999" and (one.code == POP or theirs.get("reviveQid", "0") != "0"):
            ours.pop("reviveQid", ""), theirs.pop("reviveQid", "")
        assert ours == theirs, one
        if one.code in (POP, PEEK):
            self.compare_messages(one, answer.body, golden.body)

    def compare_messages(self, one: Exchange, ours: bytes, theirs: bytes) -> None:
        mine, expected = records(ours), records(theirs)
        assert len(mine) == len(expected), one
        for own, message in zip(mine, expected, strict=True):
            for name in (
                "topic", "queue_id", "queue_offset", "body", "flag", "sys_flag", "reconsume_times", "born_time_ms",
            ):  # fmt: skip
                assert getattr(own, name) == getattr(message, name), (one, name)
            properties = dict(message.properties)
            for name in ("POP_CK", "1ST_POP_TIME"):
                if name in properties:
                    parts = [self.times.get(part, part) for part in properties[name].split(" ")]
                    found = own.properties[name].split(" ")
                    if name == "POP_CK":
                        parts[3], found[3] = "", ""
                    assert parts == found, (one, name)
                    own.properties[name] = properties[name]
            assert own.properties == properties, one


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    made = Replay(tmp_path)
    yield made
    made.bench.close()


def send_all_of(replay: Replay, *topics: str) -> None:
    """The messages of these topics that any answer holds, in the order of their queues."""
    found: dict[tuple[str, int, int], StoredMessage] = {}
    for one in EXCHANGES:
        if one.answer is not None and one.code in (POP, PEEK):
            for message in records(one.answer.body):
                if message.topic in topics and "POP_CK" not in message.properties and "%" not in message.topic:
                    found.setdefault((message.topic, message.queue_id, message.queue_offset), message)
    for place in sorted(found):
        replay.send(found[place])


def run(replay: Replay, names: range) -> None:
    for number in names:
        one = BY_NAME[f"{number:03}"]
        answer = replay.exchange(one)
        assert answer is not None, one
        replay.compare(one, answer)


def test_pop_ack_change_filters_and_refusals(replay: Replay) -> None:
    send_all_of(replay, "GoldenPop")
    run(replay, range(7, 38))


def test_what_comes_again_is_as_apaches_broker_gives_it(replay: Replay) -> None:
    send_all_of(replay, "GoldenPop")
    run(replay, range(38, 40))
    waiting = BY_NAME["040"]
    assert replay.exchange(waiting) is None
    replay.compare(waiting, replay.until_answered(8000))
    replay.bench.passes(100)
    run(replay, range(41, 44))


def test_fifo(replay: Replay) -> None:
    """Without exchange 49: Apache's broker forgets an acknowledgement under the handle of an earlier answer to the same
    attempt, and ours does not (docs/pop.md). test_pop_fifo.py has what it does."""
    send_all_of(replay, "GoldenFifo")
    run(replay, range(44, 49))
    run(replay, range(50, 61))
    waiting = BY_NAME["061"]
    assert replay.exchange(waiting) is None
    replay.compare(waiting, replay.until_answered(15_000))
    run(replay, range(62, 66))


def test_waiting_notification_polling_and_peek(replay: Replay) -> None:
    """Exchanges 2 to 6 and 66 to 87: those that wait are answered as captured, by an arrival or when time is over."""
    send_all_of(replay, "GoldenPop")
    run(replay, range(2, 3))
    timed_out, woken = BY_NAME["003"], BY_NAME["005"]
    assert replay.exchange(timed_out) is None
    replay.compare(timed_out, replay.until_answered(2000))
    assert replay.exchange(woken) is None
    arriving = [message for number in ("005", "071", "073", "075") for message in records(BY_NAME[number].answer.body)]  # type: ignore[union-attr]
    replay.send(arriving[0])
    replay.compare(woken, replay.until_answered(100))
    run(replay, range(6, 7))
    run(replay, range(66, 69))
    assert replay.exchange(BY_NAME["069"]) is None
    replay.compare(BY_NAME["069"], replay.until_answered(2000))
    assert replay.exchange(BY_NAME["070"]) is None
    replay.send(arriving[1])
    replay.compare(BY_NAME["070"], replay.until_answered(100))
    run(replay, range(71, 72))
    assert replay.exchange(BY_NAME["074"]) is None  # a tag that matches
    replay.send(arriving[2])
    replay.compare(BY_NAME["074"], replay.until_answered(100))
    run(replay, range(73, 74))
    replay.send(arriving[3])
    run(replay, range(75, 78))
    replay.bench.begin = 50
    for number in range(78, 81):
        assert replay.exchange(BY_NAME[f"{number:03}"]) is None
    run(replay, range(81, 88))


def test_a_notification_with_a_tag_is_not_woken_by_another_tag(replay: Replay) -> None:
    waiting = BY_NAME["072"]
    assert replay.exchange(waiting) is None
    (message,) = records(BY_NAME["005"].answer.body)  # type: ignore[union-attr]
    replay.send(message)
    assert replay.link.take() == []


def assignment(answer: Command) -> object:
    data = loads_fastjson(answer.body)
    assert isinstance(data, dict)
    entries = data.get("messageQueueAssignments")
    return None if entries is None else sorted(json.dumps(entry, sort_keys=True) for entry in entries)


def test_modes_and_assignments(replay: Replay) -> None:
    """Exchanges 88 to 167, without the pops of the push consumers; clients come by Apache's own heartbeats."""
    links: dict[str, Link] = {}
    for one in EXCHANGES[87:]:
        if one.code in (POP, ACK, CHANGE) or one.answer is None or one.name == "162-CODE_3442":
            continue
        client = json.loads(one.request.body)["clientID"] if one.code == HEART_BEAT else one.request.ext.get("clientID")
        link = links.setdefault(client, Link(41_000 + len(links))) if client else replay.link
        group = json.loads(one.request.body).get("consumerGroup") if one.code == 400 else None
        if group == "Golden_share" and one.step.startswith(("four push", "shutdown")):
            continue  # while clients come and go: the captures do not hold every step of it
        if one.code == 400 and "%RETRY%" in one.request.body.decode():
            continue  # its retry topic comes with a heartbeat that is not kept
        (answer,) = replay.bench.tell(one.code, dict(one.request.ext), one.request.body, link=link)
        assert (answer.code, answer.remark or "") == (one.answer.code, one.answer.remark or ""), one
        if one.code == 400:
            assert assignment(answer) == assignment(one.answer), one
        elif one.code == 402:
            assert loads_fastjson(answer.body) == loads_fastjson(one.answer.body), one
