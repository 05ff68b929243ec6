from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest

from contrailmq.namesrv.registration import TOPICS_MAX, check_crc, decode_registration, is_light
from contrailmq.wire.bodies import RegisterBrokerBody, TopicConfigWrapper, encode_body
from contrailmq.wire.body_bounds import FREE_BYTES, JSON_BYTES_MAX
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.frame import FRAME_BYTES_MAX


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
    body = decode_registration(zlib.compress(WITH_MAPPINGS, 9), is_compressed=is_compressed, version=479)
    wrapper = body.topic_config_serialize_wrapper
    assert (wrapper.data_version.counter, wrapper.data_version.timestamp) == (3, 7)
    assert list(wrapper.topic_config_table) == ["T", "U", "V"]
    assert wrapper.topic_config_table["T"].write_queue_nums == 8
    assert wrapper.topic_config_table["U"].attributes == {"+queue.type": "BatchCQ"}
    assert wrapper.topic_queue_mapping_info_map is not None
    assert wrapper.topic_queue_mapping_info_map["T"].curr_id_map == {0: 1}
    assert body.filter_server_list == ["f:1"]


def test_senders_before_5_0_have_no_mappings() -> None:
    body = decode_registration(zlib.compress(PLAIN), is_compressed=True, version=399)
    assert body.topic_config_serialize_wrapper.topic_queue_mapping_info_map == {}


def test_a_very_old_sender_sends_the_bare_topic_table() -> None:
    wrapper = encode_body(TopicConfigWrapper())
    assert decode_registration(wrapper, is_compressed=False, version=36) == RegisterBrokerBody()
    assert decode_registration(b"", is_compressed=False, version=479) == RegisterBrokerBody()


def test_every_cut_of_a_compressed_registration_is_the_peers_fault_or_a_registration() -> None:
    for size in range(len(WITH_MAPPINGS)):
        data = zlib.compress(WITH_MAPPINGS[:size])
        try:
            decode_registration(data, is_compressed=True, version=479)
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
        decode_registration(data, is_compressed=True, version=479)


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
            decode_registration(bomb, is_compressed=True, version=479)
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
    ],
)
def test_a_registration_that_would_take_too_long_is_refused_before_it_is_decoded(body: bytes, cause: str) -> None:
    with pytest.raises(RemoteProtocolError, match=cause):
        decode_registration(body, is_compressed=body[:1] == b"x", version=479)


def test_a_broker_with_thirty_thousand_topics_registers() -> None:
    """Apache's NameServer takes them, so ours does."""
    topics = ",".join(
        f'"T{n}":{{"attributes":{{}},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        f'"topicName":"T{n}","topicSysFlag":0,"writeQueueNums":4}}'
        for n in range(30_000)
    )
    body = b'{"filterServerList":[],"topicConfigSerializeWrapper":{"topicConfigTable":{%b}}}' % topics.encode()
    decoded = decode_registration(body, is_compressed=False, version=479)
    assert len(decoded.topic_config_serialize_wrapper.topic_config_table) == 30_000


def test_only_small_plain_registrations_are_light() -> None:
    assert is_light(b"")
    assert is_light(b"{}")
    assert not is_light(zlib.compress(PLAIN))
    assert not is_light(bytes(FREE_BYTES + 1))
