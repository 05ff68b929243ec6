"""Rows to batches without Spark: the plain way makes what messages make, and queues keep their order."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, DoubleType, StringType, StructField, StructType

from contrailmq.client.blocking.raw import PostedBatch, RawSent
from contrailmq.client.blocking.raw_connection import Pieces
from contrailmq.client.errors import ContrailError
from contrailmq.client.errors import SendFailedError as ClientSendFailedError
from contrailmq.message import Message, MessageError, MessageQueue, Property, decode_properties
from contrailmq.message.batch import split_batch
from contrailmq.spark.columns import OptionError
from contrailmq.spark.options import Options
from contrailmq.spark.sinks import sending
from contrailmq.spark.sinks.packing import DEDUP_PROPERTY, pack_parts
from contrailmq.spark.sinks.sending import Sender, SendFailedError, SendRefusedError, SinkSettings, make_message
from contrailmq.spark.sinks.sink import parse_sink
from contrailmq.spark.sources.rocketmq import KNOWN_OPTIONS
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError

QUEUES = [MessageQueue("Out", "broker-a", number) for number in range(2)]


class FakeBroker:
    """Takes batches and answers them; `failures` says which answers, by their number, fail after storing nothing."""

    def __init__(
        self, failures: set[int] | None = None, *, is_quick: bool = True, queues: list[MessageQueue] = QUEUES
    ) -> None:
        self.failures = failures or set()
        self.queues = queues
        self.is_quick = is_quick  # has answered before it is asked
        self.stored: dict[MessageQueue, list[bytes]] = {}
        self.on_the_way: dict[int, tuple[MessageQueue, bytes]] = {}
        self.most_on_the_way: dict[MessageQueue, int] = {}
        self.refusal: ContrailError | None = None  # what failing answers say
        self._number = 0

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        return [queue._replace(topic=topic) for queue in self.queues]

    def forget_routes(self) -> None:
        """There are none."""

    def post_batch(self, body: Pieces, queue: MessageQueue, *, producer_group: str = "") -> PostedBatch:
        self._number += 1
        self.on_the_way[self._number] = queue, b"".join(body)
        now = sum(other == queue for other, _ in self.on_the_way.values())
        self.most_on_the_way[queue] = max(now, self.most_on_the_way.get(queue, 0))
        return PostedBatch(queue, "here", None, self._number)  # type: ignore[arg-type]

    def is_answered(self, _posted: PostedBatch) -> bool:
        return self.is_quick

    def batch_answer(self, posted: PostedBatch) -> RawSent:
        queue, body = self.on_the_way.pop(posted.opaque)
        if posted.opaque in self.failures:
            raise self.refusal or ContrailError(f"answer {posted.opaque} failed")
        self.stored.setdefault(queue, []).append(body)
        return RawSent(queue, 0)

    def parts(self) -> list[tuple[MessageQueue, int, bytes, dict[str, str]]]:
        return [
            (queue, part.flag, part.body, decode_properties(part.properties))
            for queue, bodies in self.stored.items()
            for body in bodies
            for part in split_batch(body)
        ]


def send(rows: list[dict[str, Any]], broker: FakeBroker, settings: SinkSettings, schema: pa.Schema) -> None:
    sender = Sender(broker, settings, sleep=lambda _: None)  # type: ignore[arg-type]
    sending._add_rows(sender, pa.RecordBatch.from_pylist(rows, schema=schema), settings, "job-", 0)
    sender.flush()


PLAIN = pa.schema(
    [
        ("body", pa.binary()),
        ("topic", pa.string()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("flag", pa.int32()),
        ("queueId", pa.int32()),
        ("shardingKey", pa.string()),
    ]
)
# A column of delay levels, all null, sends the same rows through messages.
THROUGH_MESSAGES = PLAIN.append(pa.field("delayLevel", pa.int32()))
ROWS = [
    {"body": b"1", "topic": "Out", "queueId": 1},
    {"body": b"2", "topic": "Out", "tags": "red", "keys": "a b", "flag": -7, "queueId": 0},
    {"body": b"3", "topic": "Other", "tags": "", "keys": "", "shardingKey": "customer-7"},
    {"body": b"4", "topic": "Out", "keys": "größe", "shardingKey": "", "queueId": 1},
    {"body": bytes(5000), "topic": "Other", "shardingKey": "customer-8"},
]


def key_of(number: int, held: str, body: bytes) -> str:
    """The key of a row of the write "job": its number, and the CRC-32 of all it holds."""
    return f"job-{number}-{zlib.crc32(held.encode() + body):08x}"


# What the rows above hold but their bodies, as it is sent: topic, queue id, flag, properties.
HELD = [
    "{}\x021\x020\x02WAIT\x01true\x02",
    "{}\x020\x02-7\x02TAGS\x01red\x02KEYS\x01a b\x02WAIT\x01true\x02",
    "{}\x02\x020\x02WAIT\x01true\x02__SHARDINGKEY\x01customer-7\x02",
    "{}\x021\x020\x02KEYS\x01größe\x02WAIT\x01true\x02__SHARDINGKEY\x01\x02",
    "{}\x02\x020\x02WAIT\x01true\x02__SHARDINGKEY\x01customer-8\x02",
]


@pytest.mark.parametrize(
    "settings",
    [
        SinkSettings("x"),
        SinkSettings("x", topic="Fixed"),
        SinkSettings("x", dedup_column="topic"),
        SinkSettings("x", dedup_column="number"),
    ],
)
@pytest.mark.parametrize("times", [1, 13])  # bodies of a few bytes are packed in another way than long ones
def test_rows_become_the_same_messages_by_the_plain_way_and_through_messages(
    settings: SinkSettings, times: int
) -> None:
    plain, through = FakeBroker(), FakeBroker()
    rows = [{**row, "body": row["body"] * times, "number": 7 + n} for n, row in enumerate(ROWS)]
    numbers = pa.field("number", pa.int64())
    send(rows, plain, settings, PLAIN.append(numbers))
    send(rows, through, settings, THROUGH_MESSAGES.append(numbers))

    def without_ids(broker: FakeBroker) -> list[Any]:
        found = [(queue, flag, body, list(own.items())) for queue, flag, body, own in broker.parts()]
        assert all(own.pop()[0] == Property.UNIQUE_KEY for *_, own in found)
        assert all(own[-1][0] == DEDUP_PROPERTY for *_, own in found)
        return sorted(found)

    assert without_ids(plain) == without_ids(through)
    assert len({own[Property.UNIQUE_KEY] for *_, own in plain.parts()}) == len(ROWS)
    keys = sorted(own[DEDUP_PROPERTY] for *_, own in plain.parts())
    if settings.dedup_column is None:
        of = [
            key_of(n, HELD[n].format(settings.topic or row["topic"]), row["body"] * times) for n, row in enumerate(ROWS)
        ]
    else:
        of = [str(row[settings.dedup_column]) for row in rows]
    assert keys == sorted(of)


def test_no_row_carries_the_key_of_another_one_when_a_repeated_batch_deals_them_otherwise() -> None:
    """Two rows at one place that differ in one thing only; found as messages lost behind keys of others."""
    row = {"body": b"x", "topic": "Out", "tags": "t", "keys": "k", "flag": 1, "queueId": 0, "shardingKey": "s"}
    others = [{}, {"body": b"y"}, {"topic": "Other"}, {"tags": None}, {"keys": "kk"}, {"flag": 2}, {"queueId": 1}]
    others += [{"shardingKey": None}, {"queueId": None}, {"tags": "k", "keys": "t"}, {"body": b"xx"}]
    for schema in (PLAIN, THROUGH_MESSAGES):
        keys = []
        for other in others:
            broker = FakeBroker()
            send([{**row, **other}], broker, SinkSettings("x"), schema)
            keys += [own[DEDUP_PROPERTY] for *_, own in broker.parts()]
        assert len(set(keys)) == len(others)
        assert all(key.startswith("job-0-") for key in keys)


MAPS = [None, {}, {"region": "eu"}, {"größe": "ü b", "a": "1", "b": "2"}, {"a": "3"}, None]


@pytest.mark.parametrize("rows", [slice(None), slice(2, 5), slice(3, 4), slice(0, 2)])
def test_properties_of_rows_become_the_same_by_the_plain_way_and_through_messages(rows: slice) -> None:
    field = pa.field("properties", pa.map_(pa.string(), pa.string()))
    given = [
        {"body": b"%d" % number, "topic": "Out", "tags": "red", "queueId": 0, "properties": own and list(own.items())}
        for number, own in enumerate(MAPS)
    ]
    found = []
    for schema in (PLAIN.append(field), THROUGH_MESSAGES.append(field)):
        broker, settings = FakeBroker(), SinkSettings("x")
        sender = Sender(broker, settings)  # type: ignore[arg-type]
        batch = pa.RecordBatch.from_pylist(given, schema=schema)[rows]
        is_packed = pack_parts(batch, topic=None, key_prefix="", first_row=0, dedup_column=None) is not None
        assert is_packed == ("delayLevel" not in schema.names)
        sending._add_rows(sender, batch, settings, "job-", 0)
        sender.flush()
        found.append([(body, list(own.items())[:-1]) for _, _, body, own in broker.parts()])
    assert found[0] == found[1]
    assert [{name: text for name, text in own if name in ("region", "größe", "a", "b")} for _, own in found[0]] == [
        own or {} for own in MAPS[rows]
    ]


@pytest.mark.parametrize("schema", [PLAIN, THROUGH_MESSAGES])
def test_an_id_that_several_brokers_have_is_always_the_same_queue_and_ids_take_turns_at_brokers(
    schema: pa.Schema,
) -> None:
    """Whatever the order in which the NameServer names the brokers. The id 3 is the third broker's alone."""
    queues = [MessageQueue("Out", f"broker-{name}", number) for name in "ab" for number in range(3)]
    queues.append(MessageQueue("Out", "broker-c", 3))
    rows = [{"body": b"%d" % number, "topic": "Out", "queueId": number % 4} for number in range(8)]
    for known in (queues, queues[::-1]):
        broker = FakeBroker(queues=known)
        send(rows, broker, SinkSettings("x"), schema)
        assert sorted((body, queue.broker_name, queue.queue_id) for queue, _, body, _ in broker.parts()) == [
            (b"%d" % number, "broker-" + "abac"[number % 4], number % 4) for number in range(8)
        ]


def test_long_columns_are_cut_into_batches_of_1_mib_and_what_is_larger_travels_alone() -> None:
    sizes = [700_000, 300_000, 300_000, 3_000_000, 1, 900_000, 200_000]
    rows = [{"body": bytes([number]) * size, "topic": "Out"} for number, size in enumerate(sizes)]
    broker = FakeBroker()
    send(rows, broker, SinkSettings("x"), PLAIN)
    batches = [[part.body for part in split_batch(body)] for bodies in broker.stored.values() for body in bodies]
    assert sorted(batches) == [
        [rows[0]["body"], rows[1]["body"]],
        [rows[2]["body"]],
        [rows[3]["body"]],
        [rows[4]["body"], rows[5]["body"]],
        [rows[6]["body"]],
    ]


def test_rows_that_name_no_queue_go_round_batch_by_batch() -> None:
    broker = FakeBroker()
    rows = [{"body": b"%d" % number, "topic": "Out"} for number in range(40)]
    send(rows, broker, SinkSettings("x", batch_count=5), PLAIN)
    assert {queue: len(bodies) for queue, bodies in broker.stored.items()} == dict.fromkeys(QUEUES, 4)
    assert sorted(int(body) for _, _, body, _ in broker.parts()) == list(range(40))


@pytest.mark.parametrize("word", ["größe", "größer und größer"])
def test_a_slice_of_a_batch_and_bodies_of_text_are_packed_as_they_read(word: str) -> None:
    rows = [{"body": f"{word} {number}", "keys": f"k{number}" if number % 3 else None} for number in range(20)]
    schema = pa.schema([("body", pa.string()), ("keys", pa.string())])
    settings, broker = SinkSettings("x", topic="Out"), FakeBroker()
    sender = Sender(broker, settings)  # type: ignore[arg-type]
    sending._add_rows(sender, pa.RecordBatch.from_pylist(rows, schema=schema).slice(7, 9), settings, "job-", 100)
    sender.flush()
    found = [(body.decode(), own.get("KEYS"), own[DEDUP_PROPERTY]) for _, _, body, own in broker.parts()]
    wanted = []
    for number in range(7, 16):
        body, keys = rows[number]["body"], rows[number]["keys"]
        held = f"Out\x02\x020\x02{f'KEYS{chr(1)}{keys}{chr(2)}' if keys else ''}WAIT\x01true\x02"
        wanted.append((body, keys, key_of(93 + number, held, body.encode())))
    assert found == wanted


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"body": None, "topic": "Out"}, "a row has no body"),
        ({"body": b"", "topic": "Out"}, "the body is empty"),
        ({"body": b"x", "topic": None}, "a row has no topic"),
        ({"body": b"x", "topic": "not a topic"}, "topic"),
        ({"body": b"x", "topic": "Out", "tags": "a\x01b"}, "holds a separator"),
        ({"body": b"x", "topic": "Out", "keys": "k" * 40_000}, "the limit is 32767"),
        ({"body": b"x", "topic": "Out", "queueId": 9}, "topic Out has no queue 9"),
    ],
)
def test_a_row_that_cannot_be_sent_is_refused_by_the_plain_way_too(row: dict[str, Any], error: str) -> None:
    broker = FakeBroker()
    with pytest.raises((OptionError, MessageError), match=error):
        send([{"body": b"good", "topic": "Out"}, row], broker, SinkSettings("x"), PLAIN)
    assert broker.stored == {}  # the task failed before its batch was full


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        ([("KEYS", "x")], "is RocketMQ's own"),
        ([("a", " ")], "blank name or value"),
        ([(" ", "a")], "blank name or value"),
        ([("a", None)], "values are text"),
        ([("a", "b\x02c")], "holds a separator"),
    ],
)
def test_a_property_that_cannot_be_sent_is_refused_by_the_plain_way_too(pairs: list[Any], error: str) -> None:
    schema = pa.schema([("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.string()))])
    rows = [{"body": b"x", "properties": [("a", "b")]}, {"body": b"x", "properties": pairs}]
    with pytest.raises(MessageError, match=error):
        send(rows, FakeBroker(), SinkSettings("x", topic="Out"), schema)


def test_of_equal_names_the_last_one_counts() -> None:
    schema = pa.schema([("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.string()))])
    broker = FakeBroker()
    rows = [{"body": b"x", "properties": [("a", "1"), ("a", "2")]}]
    send(rows, broker, SinkSettings("x", topic="Out"), schema)
    key = key_of(0, "Out\x02\x020\x02a\x012\x02WAIT\x01true\x02", b"x")
    assert [(body, own["a"], own[DEDUP_PROPERTY]) for _, _, body, own in broker.parts()] == [(b"x", "2", key)]


@pytest.mark.parametrize("column", [None, "keys"])
def test_a_key_of_the_users_own_is_kept_unless_a_column_has_one(column: str | None) -> None:
    schema = PLAIN.append(pa.field("properties", pa.map_(pa.string(), pa.string())))
    rows = [
        {"body": b"y", "keys": "k0", "properties": [(DEDUP_PROPERTY, "mine")]},
        {"body": b"z", "keys": "k1", "properties": [("a", "1")]},
    ]
    broker = FakeBroker()
    send(rows, broker, SinkSettings("x", topic="Out", dedup_column=column), schema)
    made = key_of(1, "Out\x02\x020\x02a\x011\x02KEYS\x01k1\x02WAIT\x01true\x02", b"z")
    wanted = ["mine", made] if column is None else ["k0", "k1"]
    assert [own[DEDUP_PROPERTY] for *_, own in sorted(broker.parts(), key=lambda part: part[2])] == wanted


@pytest.mark.parametrize(("keys", "state"), [(None, "no"), ("", "a blank"), (" ", "a blank")])
def test_a_row_without_its_deduplication_key_is_refused(keys: str | None, state: str) -> None:
    row = {"body": b"x", "topic": "Out", "keys": keys}
    with pytest.raises(OptionError, match=f"a row has {state} keys, by which repeats are to be known"):
        send([row], FakeBroker(), SinkSettings("x", dedup_column="keys"), PLAIN)


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"id": BinaryType()}, {"dedupKeyColumn": "id"}, "dedupKeyColumn names 'id', which is binary: cast it"),
        ({"id": DoubleType()}, {"dedupKeyColumn": "id"}, "which is double: cast it to string"),
        ({"keys": ArrayType(StringType())}, {"dedupKeyColumn": "keys"}, "which is array<string>: cast it"),
        ({}, {"producerGroup": "a b!"}, "producerGroup: group 'a b!' has forbidden characters ' !'"),
        ({}, {"topic": "a b"}, "option topic: topic 'a b' has forbidden characters ' '"),
        ({}, {"topic": ""}, "option topic: .* blank"),
        ({"topic": StringType()}, {"topic": " "}, "option topic: .* blank"),
    ],
)
def test_keys_without_one_text_and_names_that_are_not_legal_are_refused_before_anything_is_sent(
    columns: dict[str, Any], options: dict[str, str], text: str
) -> None:
    schema = StructType([StructField(name, kind) for name, kind in {"body": StringType(), **columns}.items()])
    given = Options({"nameServer": "x:1", "topic": "T", **options}, known=KNOWN_OPTIONS)
    with pytest.raises(OptionError, match=text):
        parse_sink(given, schema, is_overwrite=False)


def test_a_queue_has_one_batch_on_its_way_and_keeps_its_order_when_one_fails() -> None:
    rows = [{"body": b"%020d" % number, "topic": "Out", "queueId": number % 2} for number in range(40)]
    broker = FakeBroker(failures={1, 3, 4, 8})
    send(rows, broker, SinkSettings("x", batch_count=3), PLAIN)
    assert broker.most_on_the_way == dict.fromkeys(QUEUES, 1)
    for queue in QUEUES:
        bodies = [int(body) for other, _, body, _ in broker.parts() if other == queue]
        assert bodies == list(range(queue.queue_id, 40, 2))


def test_no_batch_is_on_its_way_for_longer_than_a_few_arrow_batches() -> None:
    """It holds on to the buffer of a whole Arrow batch, also when its queue gets no more rows."""
    broker, settings = FakeBroker(), SinkSettings("x", topic="Out", batch_count=1)
    sender = Sender(broker, settings)  # type: ignore[arg-type]
    seen = []
    for queue_id in (0, 1, 1, 1, 1):
        rows = [{"body": b"%d" % queue_id, "queueId": queue_id}]
        sending._add_rows(sender, pa.RecordBatch.from_pylist(rows, schema=PLAIN), settings, "job-", 0)
        seen.append([queue.queue_id for queue, _ in broker.on_the_way.values()])
    assert seen == [[0], [0, 1], [0, 1], [0, 1], [1]]


def test_batches_wait_for_a_slow_broker_in_their_order_while_rows_are_taken() -> None:
    broker, settings = FakeBroker(failures={2}, is_quick=False), SinkSettings("x", topic="Out", batch_count=1)
    rows = [{"body": b"%d" % number, "queueId": number % 2} for number in range(12)]
    sender = Sender(broker, settings, sleep=lambda _: None)  # type: ignore[arg-type]
    sending._add_rows(sender, pa.RecordBatch.from_pylist(rows, schema=PLAIN), settings, "job-", 0)
    assert broker.stored == {}  # nobody waited for an answer
    assert broker.most_on_the_way == dict.fromkeys(QUEUES, 1)
    sender.flush()
    for queue in QUEUES:
        bodies = [int(body) for other, _, body, _ in broker.parts() if other == queue]
        assert bodies == list(range(queue.queue_id, 12, 2))


def test_what_waits_for_a_slow_broker_has_a_bound() -> None:
    broker, settings = FakeBroker(is_quick=False), SinkSettings("x", topic="Out", batch_count=1)
    rows = [{"body": bytes(1 << 20), "queueId": 0} for _ in range(20)]
    sender = Sender(broker, settings)  # type: ignore[arg-type]
    sending._add_rows(sender, pa.RecordBatch.from_pylist(rows, schema=PLAIN), settings, "job-", 0)
    assert len(broker.stored[QUEUES[0]]) == 4  # one is on its way, and fifteen megabytes wait


def test_a_batch_is_tried_again_with_the_same_keys_until_it_is_acknowledged() -> None:
    broker, pauses = FakeBroker(failures={1, 2, 3}), list[float]()
    sender = Sender(broker, SinkSettings("x", topic="Out"), sleep=pauses.append)  # type: ignore[arg-type]
    for number in range(3):
        sender.add(make_message({"body": f"b{number}"}, SinkSettings("x", topic="Out"), f"k-{number}"), {})
    sender.flush()
    assert [own[DEDUP_PROPERTY] for *_, own in broker.parts()] == ["k-0", "k-1", "k-2"]
    assert pauses == [0.2, 0.4, 0.8]


def test_a_batch_that_is_never_acknowledged_fails_the_write() -> None:
    with pytest.raises(SendFailedError, match="Out/broker-a/1 did not acknowledge after 2 tries: answer 2 failed"):
        send(ROWS[:1], FakeBroker(failures={1, 2}), SinkSettings("x", tries=2), PLAIN)


def refusal(code: int) -> ResponseError:
    return ResponseError(code, "because", request_code=RequestCode.SEND_BATCH_MESSAGE, address="here:1")


@pytest.mark.parametrize(
    "name", ["MESSAGE_ILLEGAL", "NO_PERMISSION", "INVALID_PARAMETER", "REQUEST_CODE_NOT_SUPPORTED"]
)
def test_what_no_further_try_mends_fails_the_write_at_once_with_the_brokers_words(name: str) -> None:
    broker, pauses = FakeBroker(failures={1}), list[float]()
    broker.refusal = refusal(ResponseCode[name])
    sender = Sender(broker, SinkSettings("x", topic="Out"), sleep=pauses.append)  # type: ignore[arg-type]
    sender.add(make_message({"body": "b"}, SinkSettings("x", topic="Out"), "k"), {"queueId": 1})
    text = rf"^Out/broker-a/1 refused rows, .* answered {name}\({ResponseCode[name].value}\): because"
    with pytest.raises(SendRefusedError, match=text) as raised:
        sender.flush()
    assert not raised.value.retriable
    assert (pauses, broker.stored) == ([], {})


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        777,
    ],
)
def test_what_may_pass_is_tried_again(code: int) -> None:
    broker = FakeBroker(failures={1, 2, 3})
    broker.refusal = refusal(code)
    send(ROWS[:1], broker, SinkSettings("x"), PLAIN)
    assert [body for _, _, body, _ in broker.parts()] == [b"1"]


def test_a_delayed_row_that_is_refused_for_good_is_sent_once() -> None:
    """The client that sends it wraps the broker's answer."""
    sent = []

    class Refusing:
        def send(self, message: Message, *, queue: MessageQueue) -> None:
            sent.append(queue)
            cause = refusal(ResponseCode.NO_PERMISSION)
            raise ClientSendFailedError(message.topic, tries=1, elapsed_s=0.1, brokers=["b"], cause=cause)

    settings = SinkSettings("x", topic="Out")
    sender = Sender(FakeBroker(), settings, sleep=lambda _: None)  # type: ignore[arg-type]
    sender._producer = Refusing()  # type: ignore[assignment]
    row = {"body": "b", "delayLevel": 3, "queueId": 0}
    with pytest.raises(SendRefusedError, match=r"NO_PERMISSION\(16\): because"):
        sender.add(make_message(row, settings, "k"), row)
    assert sent == QUEUES[:1]
