from __future__ import annotations

import struct
import time
import tracemalloc
import zlib

import pytest

from contrailmq.namesrv.registration import TOPICS_MAX, ReadRegistration, check_crc, is_light, read_registration
from contrailmq.namesrv.routes import queue_data
from contrailmq.namesrv.slices import cut_table
from contrailmq.wire.bodies import RegisterBrokerBody, TopicConfigWrapper, decode_body, encode_body
from contrailmq.wire.body_bounds import FREE_BYTES, JSON_BYTES_MAX
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.frame import FRAME_BYTES_MAX


def read(body: bytes, *, is_compressed: bool, version: int = 479) -> ReadRegistration:
    return read_registration(
        body,
        is_compressed=is_compressed,
        version=version,
        to_queues=lambda config: queue_data("a", config, must_not_write=False),
    )


def piece(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


VERSION = piece(b'{"counter":3,"stateVersion":0,"timestamp":7}')
TOPICS = [b"T 4 8 6 SINGLE_TAG", b'U 1 1 7 MULTI_TAG {"+queue.type":"BatchCQ"}', b"V 1 2 2 SINGLE_TAG {}"]
FILTERS = piece(b'["f:1"]')
MAPPING = piece(b'{"bname":"a","currIdMap":{0:1},"epoch":5,"topic":"T","totalQueues":8}')
PLAIN = VERSION + struct.pack(">i", 3) + b"".join(map(piece, TOPICS)) + FILTERS
WITH_MAPPINGS = PLAIN + struct.pack(">i", 1) + MAPPING


@pytest.mark.parametrize("is_compressed", [True, False], ids=["said", "sniffed"])
def test_a_compressed_registration_is_read(is_compressed: bool) -> None:
    body, queues = read(zlib.compress(WITH_MAPPINGS, 9), is_compressed=is_compressed)
    wrapper = body.topic_config_serialize_wrapper
    assert (wrapper.data_version.counter, wrapper.data_version.timestamp) == (3, 7)
    assert list(queues) == ["T", "U", "V"]
    assert (queues["T"].broker_name, queues["T"].read_queue_nums, queues["T"].write_queue_nums) == ("a", 4, 8)
    assert [queues[topic].perm for topic in "TUV"] == [6, 7, 2]
    assert wrapper.topic_queue_mapping_info_map is not None
    assert wrapper.topic_queue_mapping_info_map["T"].curr_id_map == {0: 1}
    assert body.filter_server_list == ["f:1"]


def test_senders_before_5_0_have_no_mappings() -> None:
    body, _ = read(zlib.compress(PLAIN), is_compressed=True, version=399)
    assert body.topic_config_serialize_wrapper.topic_queue_mapping_info_map == {}


def test_a_very_old_sender_sends_the_bare_topic_table() -> None:
    wrapper = encode_body(TopicConfigWrapper())
    assert read(wrapper, is_compressed=False, version=36) == (RegisterBrokerBody(), {})
    assert read(b"", is_compressed=False) == (RegisterBrokerBody(), {})


def test_every_cut_of_a_compressed_registration_is_the_peers_fault_or_a_registration() -> None:
    for size in range(len(WITH_MAPPINGS)):
        data = zlib.compress(WITH_MAPPINGS[:size])
        try:
            read(data, is_compressed=True, version=479)
        except RemoteProtocolError:
            continue
        assert size in (len(PLAIN) - len(FILTERS), len(PLAIN))


@pytest.mark.parametrize(
    "data",
    [
        b"x\x9cnonsense",
        zlib.compress(PLAIN)[:-6],
        zlib.compress(VERSION + struct.pack(">i", -1)),
        zlib.compress(VERSION + struct.pack(">i", 1) + piece(b"T four 8 6 SINGLE_TAG")),
        zlib.compress(VERSION + struct.pack(">i", 1) + piece(b"T 4")),
        zlib.compress(VERSION + struct.pack(">i", 2**31 - 1)),
        zlib.compress(VERSION + struct.pack(">i", 1) + piece(b"\xff\xff")),
    ],
)
def test_a_registration_that_lies_is_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(data, is_compressed=True, version=479)


def test_a_body_must_match_its_crc_when_one_is_given() -> None:
    check_crc(b"hello", 907060870)
    check_crc(b"hello", None)
    check_crc(b"hello", 0)
    with pytest.raises(RemoteProtocolError, match="crc32 not match"):
        check_crc(b"hellp", 907060870)


def test_inflating_stops_at_a_frames_worth() -> None:
    """64 KiB that would inflate to 64 MiB: neither time nor memory goes beyond the bound."""
    bomb = zlib.compress(bytes(64 * 1024 * 1024), 9)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="inflates beyond 16777216 bytes"):
            read(bomb, is_compressed=True, version=479)
        assert tracemalloc.get_traced_memory()[1] < 40 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (zlib.compress(VERSION + struct.pack(">i", TOPICS_MAX + 1)), "100001 topics, the limit is 100000"),
        (zlib.compress(piece(b'{"counter":%b1}' % (b" " * JSON_BYTES_MAX))), "is above the limit of 2097152"),
        (zlib.compress(VERSION + struct.pack(">i", 0) + piece(b"[" * 70_000)), "70000 objects and arrays"),
        (b'{"x":"%b"}' % (b" " * FRAME_BYTES_MAX), "is above the limit of 16777216"),
        (b'{"x":1%b}' % (b',"x":1' * 1_000_000), "1000001 members.* set enableSplitRegistration=true"),
        (b'{"x":[%b{}]}' % (b"{}," * 200_100), "200103 objects and arrays, the limit is 200100"),
        (b'{"filterServerList":[%b"a"]}' % (b'"a",' * 400_000), "400000 commas, the limit is 50000"),
        (b'{"filterServerList":[%b"a"]}' % (b'"a",' * 3_900_000), "is above the limit of 2097152"),
        (b'{"unknown":[%b1]}' % (b"1," * 900_000), "900000 commas, the limit is 50000"),
        (b'{"unknown":[%b1]}' % (b"1," * 8_000_000), "is above the limit of 2097152"),
        (
            b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"unknown":[%b1]}}}}' % (b"1," * 900_000),
            "900000 commas, the limit is 50000",
        ),
        (zlib.compress(VERSION + struct.pack(">i", 0) + piece(b"[%b1]" % (b"1," * 900_000))), "900000 commas"),
    ],
)
def test_a_registration_that_would_take_too_long_is_refused_before_it_is_decoded(body: bytes, cause: str) -> None:
    with pytest.raises(RemoteProtocolError, match=cause):
        read(body, is_compressed=body[:1] == b"x", version=479)


def one_topic(name: str = "T", read_queues: object = 4, write_queues: object = 4) -> list[bytes]:
    """The same topic in both encodings."""
    config = f'{{"readQueueNums":{read_queues},"writeQueueNums":{write_queues},"perm":6}}'
    text = f"{name} {read_queues} {write_queues} 6 SINGLE_TAG".encode()
    return [
        f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{"{name}":{config}}}}}}}'.encode(),
        zlib.compress(VERSION + struct.pack(">i", 1) + piece(text)),
    ]


@pytest.mark.parametrize(
    ("bodies", "cause"),
    [
        (one_topic("T" * 128), "of 128 characters, the limit is 127"),
        (one_topic("%RETRY%" + "g" * 249), "of 256 characters, the limit is 255"),
        (one_topic("T" * 1_500_000), "of 1500000 characters, the limit is 127"),
        (one_topic(read_queues=65_537), "readQueueNums 65537 for topic 'T': it takes 0 to 65536"),
        (one_topic(write_queues=-1), "writeQueueNums -1 for topic 'T': it takes 0 to 65536"),
        (
            [
                b'{"filterServerList":[%b"a"]}' % (b'"a",' * 1024),
                zlib.compress(VERSION + struct.pack(">i", 0) + piece(b'[%b"a"]' % (b'"a",' * 1024))),
            ],
            "1025 filter servers, the limit is 1024",
        ),
    ],
)
def test_names_and_numbers_beyond_their_bounds_are_refused(bodies: list[bytes], cause: str) -> None:
    for body in bodies:
        with pytest.raises(RemoteProtocolError, match=cause):
            read(body, is_compressed=body[:1] == b"x")


def test_names_and_numbers_at_their_bounds_are_taken() -> None:
    for name in ("T" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250):
        for body in one_topic(name, 65_536, 0):
            [(topic, queues)] = read(body, is_compressed=body[:1] == b"x").queues.items()
            assert (topic, queues.read_queue_nums, queues.write_queue_nums) == (name, 65_536, 0)


def table(count: int, config: str = "") -> bytes:
    """Topics as Java writes them; `config` replaces the one of the last."""
    texts = [
        f'"T{n}":{{"attributes":{{}},"order":false,"perm":6,"readQueueNums":{n % 9},"topicFilterType":"SINGLE_TAG",'
        f'"topicName":"T{n}","topicSysFlag":0,"writeQueueNums":4}}'
        for n in range(count)
    ]
    if config:
        texts[-1] = config
    return ",".join(texts).encode()


PLAIN_BODY = (
    b'{"filterServerList":["f:1"],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"timestamp":7},'
    b'"topicConfigTable":{%b},"topicQueueMappingInfoMap":{%b}}}'
)


@pytest.mark.parametrize(
    "last",
    [
        "",
        '"X" : { "attributes" : {"+a":"}},{"} , "perm":2 }',
        '"\\"q{\\\\":{"perm":2,"attributes":{"a":"b\\""}}',
        '"T7":{"perm":2}',  # said twice: the last counts
        '"X":{"perm":2,"attributes":{"a":{"deep":{}}}}',  # cannot be cut: read in one go
        "'X':{perm:2}",
        '"X":{"perm":2,"unknown":[{"a":1},"]",{"b":[2]}]}',
    ],
    ids=["plain", "spaces and braces in text", "quotes", "twice", "deep", "fastjson", "arrays"],
)
def test_a_registration_read_in_slices_is_the_same_as_read_whole(last: str) -> None:
    body = PLAIN_BODY % (
        table(1000, last),
        b'"S":{"bname":"a","currIdMap":{"0":1},"epoch":5,"topic":"S","totalQueues":8}',
    )
    assert len(body) > FREE_BYTES
    try:
        whole = decode_body(body, RegisterBrokerBody)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            read(body, is_compressed=False)
        return
    found, queues = read(body, is_compressed=False)
    wrapper = whole.topic_config_serialize_wrapper
    assert list(queues) == list(wrapper.topic_config_table)
    for topic, config in wrapper.topic_config_table.items():
        assert (queues[topic].perm, queues[topic].read_queue_nums) == (config.perm, config.read_queue_nums)
    assert found.filter_server_list == ["f:1"]
    assert found.topic_config_serialize_wrapper.data_version == wrapper.data_version
    mappings = found.topic_config_serialize_wrapper.topic_queue_mapping_info_map
    assert mappings == wrapper.topic_queue_mapping_info_map
    assert mappings is not None
    assert list(mappings) == ["S"]


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_hundred_thousand_topics_are_read_in_slices_of_256(is_compressed: bool) -> None:
    """Each slice is one call of the decoder, which holds every thread; `after_slice` hears how large it was."""
    slices: list[int] = []
    if is_compressed:
        pieces = b"".join(piece(b"T%d 4 8 6 SINGLE_TAG" % number) for number in range(100_000))
        body = zlib.compress(VERSION + struct.pack(">i", 100_000) + pieces + FILTERS, 1)
    else:
        body = PLAIN_BODY % (table(100_000), b"")
        assert len(body) < FRAME_BYTES_MAX
    found = read_registration(
        body,
        is_compressed=is_compressed,
        version=479,
        to_queues=lambda config: queue_data("a", config, must_not_write=False),
        after_slice=slices.append,
    )
    assert len(found.queues) == sum(slices) == 100_000
    assert max(slices) <= 256
    assert not found.body.topic_config_serialize_wrapper.topic_config_table


def test_a_table_that_only_looks_like_one_does_not_take_long() -> None:
    """The expression that cuts reads each byte once, whatever comes: 4 MiB of beginnings without ends."""
    for text in (b'"T":{"a":"', b'"T":{', b'"T":{"a":{', b'"\\"', b'"T":{"a":"\\'):
        data = b'{"topicConfigTable":{' + text * (4_000_000 // len(text))
        start = time.process_time()
        assert cut_table(data, b"topicConfigTable", lambda: None) is None
        assert time.process_time() - start < 5


def test_only_small_plain_registrations_are_light() -> None:
    assert is_light(b"")
    assert is_light(b"{}")
    assert not is_light(zlib.compress(PLAIN))
    assert not is_light(bytes(FREE_BYTES + 1))
