"""Sending: both paths to the log, every check, batches, synchronous flush."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.harness import Bench, Link, records, send_fields
from contrailmq.broker.requests.send import _has_special
from contrailmq.broker.state.incoming import IncomingMessage, Refusal
from contrailmq.broker.state.topics import Topic
from contrailmq.client.records import decode_messages
from contrailmq.message import decode_properties, parse_offset_message_id
from contrailmq.message.codec import BatchPart, encode_batch
from contrailmq.wire.codes import ResponseCode

KEY = "C0A8000A00002A9F00000000000003E8"
ORDINARY = {"UNIQ_KEY": KEY, "KEYS": "k1 k2", "TAGS": "TagA", "WAIT": "true", "region": "eu"}


@pytest.fixture
def sync_bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, flush_disk_type="SYNC_FLUSH")
    yield made
    made.close()


def only_record(bench: Bench, topic: str = "T", queue_id: int = 0, offset: int = 0) -> dict[str, str]:
    (answer,) = bench.pull(topic, offset, queue_id=queue_id)
    return records(answer.body)[0].properties


def test_an_ordinary_message_is_stored_and_every_answer_field_is_there(bench: Bench) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    answer = bench.send(properties=ORDINARY, e=3, h=7)
    assert answer.code == 0
    assert answer.version >= 479
    assert answer.ext == {
        "queueId": "3",
        "transactionId": KEY,
        "msgId": "0A00000200002A9F0000000000000000",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert bench.send(properties=ORDINARY, e=3).ext["queueOffset"] == "1"
    (pulled,) = bench.pull(queue_id=3)
    first, second = records(pulled.body)
    assert (first.body, first.flag, first.queue_id, first.queue_offset, first.born_time_ms) == (
        b"hello",
        7,
        3,
        0,
        1700000000123,
    )
    assert str(first.born_host) == "10.0.0.9:40000"
    assert str(first.store_host) == "10.0.0.2:10911"
    assert first.properties == ORDINARY | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "C"}
    assert second.queue_offset == 1
    assert parse_offset_message_id(answer.ext["msgId"])[2] == first.physical_offset


@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize("is_binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize(
    "properties",
    [
        "",
        "UNIQ_KEY\x01abc",
        "UNIQ_KEY\x01abc\x02TAGS\x01t",
        "MYTAGS\x01x\x02TAGS\x01t\x02UNIQ_KEY\x01abc\x02",
        "TRACE_ON\x01false\x02UNIQ_KEY\x01abc\x02",
        "POP_CK\x01gone\x02UNIQ_KEY\x01abc\x02",
        "UNIQ_KEY\x01abc\x02MSG_REGION\x01other\x02",
        "name\x01中文\x02UNIQ_KEY\x01abc",
        "__RMQ.TRANSIENT.X\x011\x02UNIQ_KEY\x01abc\x02",
    ],
    ids=["none", "no-end", "two", "look-alike", "ours", "pop", "region", "unicode", "transient"],
)
def test_both_paths_store_the_same_properties(bench: Bench, code: int, is_binary: bool, properties: str) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    fields = send_fields(properties=properties)
    if code == 10:
        names = dict(zip("abcdefghijkm", V1_NAMES, strict=True))
        fields = {names[letter]: value for letter, value in fields.items()}
    answer = bench.ask(code, fields, b"x", is_binary=is_binary)
    assert answer.code == 0
    stored = only_record(bench)
    assert stored["MSG_REGION"] == "DefaultRegion"
    assert stored["TRACE_ON"] == "true"
    assert stored["CLUSTER"] == "C"
    assert "POP_CK" not in stored
    assert "__RMQ.TRANSIENT.X" not in stored
    assert stored["UNIQ_KEY"] == ("abc" if properties else answer.ext["transactionId"])
    assert len(stored["UNIQ_KEY"]) >= 3
    if "TAGS\x01t" in properties:
        assert stored["TAGS"] == "t"
    if "name" in properties:
        assert stored["name"] == "中文"


V1_NAMES = [
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "batch",
]


def test_an_unknown_topic_is_made_from_the_template(bench: Bench) -> None:
    assert bench.send("New").code == 0
    topic = bench.node.topics.get("New")
    assert topic is not None
    assert topic.write_queues == 4


@pytest.mark.parametrize(
    ("fields", "code", "hint"),
    [
        ({"b": "bad topic"}, ResponseCode.INVALID_PARAMETER, "forbidden characters"),
        ({"b": "T" * 128}, ResponseCode.INVALID_PARAMETER, "limit is 127"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"b": "Unknown", "c": "nothing"}, ResponseCode.TOPIC_NOT_EXIST, "create it"),
        ({"b": "T", "e": "4"}, ResponseCode.INVALID_PARAMETER, "queueId 4 of topic T"),
        ({"b": "ReadOnly"}, ResponseCode.NO_PERMISSION, "perm=4"),
        ({"b": "%RETRY%nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "nobody"),
        ({"e": "abc"}, ResponseCode.INVALID_PARAMETER, "ext field e"),
        ({"i": "A\x01" + "x" * 40_000}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
    ],
)
def test_what_may_not_be_sent_is_refused_with_code_and_reason(
    bench: Bench, fields: dict[str, str], code: int, hint: str
) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    bench.node.topics.put(Topic("ReadOnly", perm=4))
    answer = bench.ask(310, send_fields() | fields, b"x")
    assert (answer.code, hint in (answer.remark or "")) == (code, True), answer.remark
    if "ext field" not in hint:
        assert answer.ext.get("MSG_REGION") == "DefaultRegion" or code == ResponseCode.MESSAGE_ILLEGAL


def test_a_missing_required_field_is_named(bench: Bench) -> None:
    fields = send_fields()
    del fields["g"]
    answer = bench.ask(310, fields, b"x")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "ext field g is missing" in (answer.remark or "")


def test_a_body_over_the_limit_is_refused_with_the_number(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_message_size=1000)
    answer = bench.send(body=b"x" * 1001)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "1000" in (answer.remark or "")
    bench.close()


@pytest.mark.parametrize("queue_id", [-1, 0])
def test_a_topic_without_queues_takes_no_message_that_nobody_could_read(bench: Bench, queue_id: int) -> None:
    answer = bench.send("Empty", d=0, e=queue_id)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark == "topic Empty has no queues to write: give it some (code 17, updateTopic)"
    assert ("Empty", 0) not in bench.store.queues()


def test_a_negative_queue_id_takes_any_queue(bench: Bench) -> None:
    bench.node.topics.put(Topic("T", read_queues=2, write_queues=2))
    assert {bench.send(e=-1).ext["queueId"] for _ in range(64)} == {"0", "1"}


def test_a_oneway_send_is_stored_and_never_answered(bench: Bench) -> None:
    assert bench.tell(310, send_fields(), b"x", is_oneway=True) == []
    assert bench.tell(310, send_fields("bad topic"), b"x", is_oneway=True) == []
    assert bench.store.max_offset("T", 0) == 1


def test_a_stopping_broker_and_a_broker_not_yet_open_refuse(bench: Bench) -> None:
    bench.send()
    bench.node.is_accepting = False
    answer = bench.send()
    assert (answer.code, "stopping" in (answer.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    bench.node.is_accepting = True
    bench.config.start_accept_send_request_time_stamp = bench.clock.now_ms() + 1000
    bench.send_processor.configure()
    assert bench.send().code == ResponseCode.SYSTEM_ERROR
    bench.clock.advance(1000)
    assert bench.send().code == 0


def test_a_slave_takes_no_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, broker_role="SLAVE")
    answer = bench.send()
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert (answer.remark or "").startswith("[REJECTREQUEST]")
    bench.close()


def test_a_closed_store_says_so(bench: Bench) -> None:
    bench.send()
    bench.store.close()
    answer = bench.send()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "closed" in (answer.remark or "")


def test_transactions_can_be_rejected(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"rejectTransactionMessage": "true"})
    answer = bench.send(properties={"TRAN_MSG": "true", "PGROUP": "pg"})
    assert answer.code == ResponseCode.NO_PERMISSION
    bench.close()


def test_rewrites_change_or_refuse_what_is_out_of_the_ordinary_and_see_nothing_else(bench: Bench) -> None:
    seen: list[str] = []

    def rewrite(message: IncomingMessage) -> Refusal | None:
        seen.append(message.properties["DELAY"])
        if message.properties["DELAY"] == "99":
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, "too long")
        message.topic, message.queue_id = "SCHEDULE_TOPIC_XXXX", 2
        message.answer_fields["recallHandle"] = "h"
        return None

    bench.node.rewrites[:] = [rewrite]
    bench.send(properties=ORDINARY)
    answer = bench.send(properties={"DELAY": "3"}, e=1)
    assert (answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["recallHandle"]) == ("1", "0", "h")
    assert bench.send(properties={"DELAY": "99"}).code == ResponseCode.MESSAGE_ILLEGAL
    assert seen == ["3", "99"]
    assert bench.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1


def test_a_consumers_own_retry_goes_to_the_dead_letters_when_its_tries_are_used_up(bench: Bench) -> None:
    bench.heartbeat("T")
    assert bench.send("%RETRY%g", j=16, l=16).code == 0
    assert bench.store.max_offset("%RETRY%g", 0) == 1
    assert bench.send("%RETRY%g", j=17, l=16, properties={"DELAY": "3"}).code == 0
    assert bench.store.max_offset("%DLQ%g", 0) == 1
    dead = bench.node.topics.get("%DLQ%g")
    assert dead is not None
    assert (dead.perm, dead.write_queues) == (6, 1)
    assert "DELAY" not in only_record(bench, "%DLQ%g")


def batch_body(count: int) -> bytes:
    return encode_batch(
        [BatchPart(0, b"m%d" % n, f"UNIQ_KEY\x01u{n}\x02TAGS\x01t{n}\x02".encode()) for n in range(count)]
    )


@pytest.mark.parametrize("code", [310, 320])
def test_a_batch_becomes_one_record_for_each_item_with_its_own_properties(bench: Bench, code: int) -> None:
    answer = bench.ask(code, send_fields(properties="UNIQ_KEY\x01batch\x02", m="true"), batch_body(3))
    assert answer.code == 0
    assert answer.ext["queueOffset"] == "0"
    assert answer.ext["transactionId"] == "batch"
    ids = answer.ext["msgId"].split(",")
    (pulled,) = bench.pull()
    found = records(pulled.body)
    assert [message.offset_message_id for message in found] == ids
    assert [message.body for message in found] == [b"m0", b"m1", b"m2"]
    assert found[1].properties == {"UNIQ_KEY": "u1", "TAGS": "t1"}
    assert [message.queue_offset for message in found] == [0, 1, 2]


def test_a_batch_to_a_topic_of_batch_queues_is_one_record_that_consumers_take_apart(bench: Bench) -> None:
    bench.node.topics.put(Topic("Batch", read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"}))
    fields = send_fields("Batch", properties="UNIQ_KEY\x01batch\x02TAGS\x01t\x02", m="true")
    answers = [bench.ask(320, fields, batch_body(count)) for count in (3, 2)]
    assert [(answer.code, answer.ext["queueOffset"], answer.ext["batchUniqId"]) for answer in answers] == [
        (0, "0", "batch"),
        (0, "3", "batch"),
    ]
    assert bench.send(topic="Batch", body=b"alone").ext["queueOffset"] == "5"
    (pulled,) = bench.pull("Batch")
    assert (pulled.ext["nextBeginOffset"], pulled.ext["maxOffset"]) == ("6", "6")
    first, second, alone = records(pulled.body)
    assert (first.properties["INNER_NUM"], second.properties["INNER_BASE"]) == ("3", "3")
    assert (first.body, alone.body) == (batch_body(3), b"alone")
    found = decode_messages(pulled.body, broker_name="b")
    assert [(one.queue_offset, one.body, one.broker_name) for one in found] == [
        (0, b"m0", "b"), (1, b"m1", "b"), (2, b"m2", "b"), (3, b"m0", "b"), (4, b"m1", "b"), (5, b"alone", "b"),
    ]  # fmt: skip
    assert found[1].properties == {"UNIQ_KEY": "u1", "TAGS": "t1"}


def test_a_batch_without_an_id_of_its_own_is_split_also_for_batch_queues(bench: Bench) -> None:
    bench.node.topics.put(Topic("Batch", read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"}))
    assert bench.ask(320, send_fields("Batch", properties="", m="true"), batch_body(2)).code == 0
    (pulled,) = bench.pull("Batch")
    assert [message.body for message in records(pulled.body)] == [b"m0", b"m1"]


TWICE = "TAGS\x01a\x02KEYS\x01k1\x02UNIQ_KEY\x01u1\x02TAGS\x01b\x02KEYS\x01k2\x02UNIQ_KEY\x01u2\x02"


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(TWICE, id="fast"),
        pytest.param(TWICE + "TAGS\x01\x02", id="an empty one counts for nothing"),
        pytest.param(TWICE + "MYTAGS\x01c\x02MYKEYS\x01k3\x02MYUNIQ_KEY\x01u3\x02", id="other names"),
        pytest.param(TWICE + "CLUSTER\x01x\x02", id="plain"),
    ],
)
def test_of_equal_names_the_last_counts_for_queue_index_and_answer(bench: Bench, properties: str) -> None:
    for offset in range(2):  # the first one makes the topic, and so takes the plain path
        answer = bench.ask(310, send_fields(properties=properties), b"x")
        assert (answer.code, answer.ext["transactionId"]) == (0, "u2")
        assert bench.store.read_units("T", 0, offset, 1)[0][2] == ord("b")
    stored = only_record(bench, offset=1)
    assert (stored["TAGS"], stored["KEYS"], stored["UNIQ_KEY"]) == ("b", "k2", "u2")
    index = bench.store._index
    assert index is not None
    found = {key: len(index.query("T", key, 9, 0, 2**62)) for key in ("k1", "k2", "u1", "u2", "T#a", "T#b")}
    assert found == {"k1": 0, "k2": 2, "u1": 0, "u2": 2, "T#a": 0, "T#b": 2}


SPECIAL = [
    "TRAN_MSG", "TRACE_ON", "__RMQ.TRANSIENT.x", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY",
    "CLUSTER", "MSG_REGION", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "POP_CK",
]  # fmt: skip
ORDINARY_NAMES = ["TAGS", "KEYS", "UNIQ_KEY", "MYTAGS", "TAGS2", "WAIT", "v", ""]


@given(
    st.lists(
        st.sampled_from([*SPECIAL, *ORDINARY_NAMES, "\x01", "\x01", "\x01", "\x02", "\x02", "\x02"]), max_size=24
    ).map("".join)
)
def test_the_fast_path_passes_over_no_property_that_needs_the_plain_one(text: str) -> None:
    known = decode_properties(text)
    if not known.keys().isdisjoint(SPECIAL):
        assert _has_special(text)


def test_a_sender_cannot_say_where_a_batch_stands_in_a_batch_queue(bench: Bench) -> None:
    bench.node.topics.put(Topic("Batch", read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"}))
    body = encode_batch([BatchPart(0, b"x" * 40, b"INNER_NUM\x013\x02INNER_BASE\x0170\x02")])
    answer = bench.ask(320, send_fields("Batch", properties="", m="true", f="128"), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "sysFlag 0x80" in (answer.remark or "")
    assert [bench.send(topic="Batch", body=b"m%d" % number).ext["queueOffset"] for number in range(2)] == ["0", "1"]
    (pulled,) = bench.pull("Batch")
    assert [message.body for message in records(pulled.body)] == [b"m0", b"m1"]


@pytest.mark.parametrize("body", [b"", b"\x00\x00\x00\x05x", b"\xff" * 64, batch_body(2)[:-1]])
def test_a_broken_batch_is_refused_whole(bench: Bench, body: bytes) -> None:
    answer = bench.ask(320, send_fields(m="true"), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.store.max_offset("T", 0) == 0


def test_a_batch_to_a_retry_topic_is_refused(bench: Bench) -> None:
    bench.heartbeat("T")
    assert bench.ask(320, send_fields("%RETRY%g", m="true"), batch_body(1)).code == ResponseCode.MESSAGE_ILLEGAL


def test_with_synchronous_flush_the_answer_waits_until_the_record_is_durable(sync_bench: Bench) -> None:
    bench = sync_bench
    bench.store.request_flush = lambda: None  # type: ignore[method-assign]
    assert bench.tell(310, send_fields(), b"x") == []
    assert len(bench.node.parked) == 1
    bench.node.durable(0)
    assert bench.link.take() == []
    bench.node.durable(bench.store.log_max_offset)
    (answer,) = bench.link.take()
    assert answer.code == 0
    assert answer.ext["queueOffset"] == "0"


LOOK_ALIKES = [
    "NOWAIT\x01false\x02",
    "XWAIT\x01false\x02",
    "WAIT\x01falsely\x02",
    "WAIT\x01false\x02WAIT\x01true\x02",
]
KINDS = {"fast": (310, "", "false"), "plain": (310, "DELAY\x010\x02", "false"), "batch": (320, "", "true")}


@pytest.mark.parametrize("is_binary", [False, True], ids=["JSON", "binary"])
@pytest.mark.parametrize("kind", KINDS)
class TestWaiting:
    """Who waits for the disk under SYNC_FLUSH, whatever the way to the log and the form of the header."""

    def send(self, bench: Bench, kind: str, properties: str, *, is_binary: bool) -> tuple[int, int]:
        """How many answers came at once, and how many flushes were asked for."""
        bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
        asked: list[None] = []
        bench.store.request_flush = lambda: asked.append(None)  # type: ignore[method-assign]
        code, special, is_batch = KINDS[kind]
        body = batch_body(2) if code == 320 else b"x"
        fields = send_fields(properties=properties + special, m=is_batch)
        answers = bench.tell(code, fields, body, is_binary=is_binary)
        assert all(answer.code == 0 for answer in answers)
        return len(answers), len(asked)

    @pytest.mark.parametrize("properties", ["", "WAIT\x01true\x02", *LOOK_ALIKES])
    def test_a_sender_is_answered_after_the_sync(
        self, sync_bench: Bench, kind: str, is_binary: bool, properties: str
    ) -> None:
        assert self.send(sync_bench, kind, properties, is_binary=is_binary) == (0, 1)
        sync_bench.node.durable(sync_bench.store.log_max_offset)
        assert [answer.code for answer in sync_bench.link.take()] == [0]

    @pytest.mark.parametrize("properties", ["WAIT\x01false\x02", "WAIT\x01true\x02WAIT\x01false\x02"])
    def test_one_that_does_not_want_to_wait_is_answered_at_once_and_asks_for_no_flush(
        self, sync_bench: Bench, kind: str, is_binary: bool, properties: str
    ) -> None:
        assert self.send(sync_bench, kind, properties, is_binary=is_binary) == (1, 0)

    def test_without_synchronous_flush_nobody_asks_for_one(self, bench: Bench, kind: str, is_binary: bool) -> None:
        assert self.send(bench, kind, "WAIT\x01true\x02", is_binary=is_binary) == (1, 0)


def test_the_id_of_a_batch_is_a_property_too(bench: Bench) -> None:
    properties = "UNIQ_KEY\x01mine\x02MYUNIQ_KEY\x01not\x02"
    assert bench.ask(320, send_fields(properties=properties, m="true"), batch_body(1)).ext["transactionId"] == "mine"


def test_a_name_that_only_ends_like_an_id_makes_no_inner_batch(bench: Bench) -> None:
    bench.node.topics.put(Topic("Batch", read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"}))
    fields = send_fields("Batch", properties="MYUNIQ_KEY\x01b\x02", m="true")
    assert "batchUniqId" not in bench.ask(320, fields, batch_body(2)).ext
    (pulled,) = bench.pull("Batch")
    assert [message.body for message in records(pulled.body)] == [b"m0", b"m1"]


def test_a_late_flush_is_told_as_such_and_a_failed_one_is_no_acknowledgement(sync_bench: Bench) -> None:
    bench = sync_bench
    bench.store.request_flush = lambda: None  # type: ignore[method-assign]
    bench.tell(310, send_fields(), b"x")
    bench.node.parked.expire(bench.clock.monotonic_ms() + 4999)
    assert bench.link.take() == []
    bench.node.parked.expire(bench.clock.monotonic_ms() + 5000)
    (late,) = bench.link.take()
    assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert late.ext["msgId"]
    bench.tell(320, send_fields(m="true"), batch_body(2))
    bench.tell(310, send_fields(), b"x", is_oneway=True)
    bench.node.durable(-1)
    (failed,) = bench.link.take()
    assert failed.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_each_connection_keeps_its_own_born_host(bench: Bench) -> None:
    bench.send(link=Link(1))
    bench.send(link=Link(2))
    (pulled,) = bench.pull()
    assert [str(message.born_host) for message in records(pulled.body)] == ["10.0.0.9:1", "10.0.0.9:2"]


def test_unknown_codes_are_answered_as_not_supported(bench: Bench) -> None:
    for code in (9999, 200056, 200072):
        answer = bench.ask(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


@pytest.mark.parametrize("special", ["", "DELAY\x010\x02"], ids=["fast", "plain"])
@pytest.mark.parametrize("flags", [0x10, 0x20, 0x30, 0x31])
def test_a_senders_claim_about_hosts_does_not_break_the_record(bench: Bench, flags: int, special: str) -> None:
    assert bench.send(f=flags, properties=special).code == 0
    assert bench.send(body=b"next").code == 0
    (answer,) = bench.pull()
    first, second = records(answer.body)
    assert (first.sys_flag, first.stored_body, second.body) == (flags & 1, b"hello", b"next")


@pytest.mark.parametrize("fields", [{"f": 2**40}, {"h": 2**40}, {"g": 2**70}, {"j": 2**40}])
def test_numbers_that_no_record_can_hold_are_refused(bench: Bench, fields: dict[str, int]) -> None:
    answer = bench.send(**fields)
    assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER), answer.remark
    assert bench.send().code == 0


def test_a_sender_with_an_ipv6_address_is_stored_with_it(bench: Bench) -> None:
    link = Link(9)
    link.peer = ("::1", 9)
    assert bench.send(link=link).code == 0
    assert bench.ask(320, send_fields(m="true"), batch_body(2), link=link).code == 0
    (answer,) = bench.pull()
    assert [str(message.born_host) for message in records(answer.body)] == ["[::1]:9"] * 3


def test_what_the_store_refuses_is_counted_once_whichever_way_it_came(bench: Bench) -> None:
    bench.store.set_disk_full("the disk is full")
    sends = [
        lambda: bench.send(),
        lambda: bench.send(properties={"TRANSIENT": "x"}),  # not the short way
        lambda: bench.ask(320, send_fields(m="true"), batch_body(2)),
    ]
    for number, send in enumerate(sends, 1):
        answer = send()
        assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full")
        assert bench.node.statistics.put_failed == number
