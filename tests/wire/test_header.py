"""Headers of peers that do not write them the way Java does."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.wire.admin_requests import CreateTopic, RegisterBroker
from contrailmq.wire.codes import (
    LANGUAGES,
    RequestCode,
    request_name,
    response_name,
    version_name,
    version_number,
    widen_binary_code,
)
from contrailmq.wire.errors import LocalProtocolError, RemoteProtocolError
from contrailmq.wire.frame import FrameParser
from contrailmq.wire.header import BINARY, JSON, Command, decode_header, encode_header, to_ext
from contrailmq.wire.requests import GetMaxOffset, PullMessage, SendMessageResponse, SendMessageV2, UnregisterClient
from how_many import examples

ROUTE_JSON = (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"PYTHON","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
ROUTE_BINARY = bytes.fromhex(
    "0069 03 01df 00000007 00000000 00000000 00000014 0005 746f706963 00000009 546f70696354657374"
)


def of_frame(header: bytes) -> Command:
    """A binary header as a connection reads it: hot requests get their typed fields there."""
    (command,) = FrameParser().feed(struct.pack(">iI", 4 + len(header), BINARY << 24 | len(header)) + header)
    return command


@pytest.mark.parametrize(("serialize_type", "data"), [(JSON, ROUTE_JSON), (BINARY, ROUTE_BINARY)])
def test_the_worked_example_of_the_format_is_written_and_read(serialize_type: int, data: bytes) -> None:
    header = encode_header(105, {"topic": "TopicTest"}, opaque=7, flag=0, serialize_type=serialize_type)
    assert header == data
    command = decode_header(data, serialize_type)
    assert (command.code, command.opaque, command.language, command.version) == (105, 7, "PYTHON", 479)
    assert command.ext == {"topic": "TopicTest"}
    assert not command.is_response
    assert not command.is_oneway


@pytest.mark.parametrize(
    ("language", "name"),
    [(b'"GO"', "GO"), (b"9", "GO"), (b'"KOTLIN"', "KOTLIN"), (b"77", "OTHER"), (b"-1", "OTHER"), (b"null", "OTHER")],
)
def test_a_language_may_be_a_name_an_ordinal_or_unheard_of(language: bytes, name: str) -> None:
    command = decode_header(b'{"code":34,"language":%b,"opaque":1}' % language, JSON)
    assert command.language == name
    assert command.opaque == 1


def test_members_may_be_missing_unknown_null_or_numbers_in_quotes() -> None:
    assert decode_header(b"{}", JSON).code == 0
    command = decode_header(
        b' {"flag":null,"opaque":"12","code":"105","new":[{}],"version":3.0,"remark":null,"extFields":null} ', JSON
    )
    assert (command.code, command.opaque, command.version, command.flag, command.remark) == (105, 12, 3, 0, None)
    assert command.ext == {}


def test_ext_values_of_the_cpp_client_are_read_as_text_and_as_numbers() -> None:
    header = (
        b'{"code":310,"extFields":{"AccessKey":"","a":"g","b":"T","c":"TBW102","d":4,"e":0,"f":0,"g":1700000000000,'
        b'"h":0,"i":null,"j":0,"k":false,"l":16,"m":true,"x":1.5},"flag":0,"language":"CPP","opaque":1,"version":333}'
    )
    command = decode_header(header, JSON)
    send = command.header(SendMessageV2)
    assert (send.producer_group, send.default_topic_queue_nums, send.properties) == ("g", 4, None)
    assert (send.born_timestamp, send.batch, send.unit_mode) == (1700000000000, True, False)
    assert command.ext["d"] == "4"
    assert command.ext["m"] == "true"
    assert command.ext["x"] == "1.5"
    assert "i" not in command.ext


def test_the_hot_path_and_the_slow_path_give_equal_headers() -> None:
    fields = b'"a":"g","b":"T","c":"TBW102","d":"4","e":"0","f":"0","g":"1","h":"0","k":"false"'
    hot = decode_header(b'{"code":310,"extFields":{%b},"opaque":1}' % fields, JSON)
    reordered = decode_header(b'{"opaque":1,"extFields":{%b},"code":310}' % fields, JSON)
    sloppy = decode_header(b'{"code":310,"extFields":{%b,"i":null},"opaque":1,"language":3}' % fields, JSON)
    binary = of_frame(encode_header(310, hot.ext, opaque=1, flag=0, serialize_type=BINARY))
    assert hot.header(SendMessageV2) == reordered.header(SendMessageV2) == sloppy.header(SendMessageV2)
    assert binary.header(SendMessageV2) == hot.header(SendMessageV2)
    assert hot.ext == reordered.ext == sloppy.ext == binary.ext
    assert isinstance(hot.ext_fields, SendMessageV2)  # typed at once
    assert isinstance(binary.ext_fields, SendMessageV2)


def test_a_hot_code_with_other_fields_still_gives_its_ext() -> None:
    command = decode_header(b'{"code":310,"extFields":{"topic":"T"},"opaque":1}', JSON)
    assert command.ext == {"topic": "T"}
    with pytest.raises(RemoteProtocolError, match="ext field a is missing"):
        command.header(SendMessageV2)


def test_a_longer_code_that_starts_like_a_hot_one_is_not_taken_for_it() -> None:
    command = decode_header(b'{"code":3101,"extFields":{"topic":"T","queueId":"2"},"opaque":1}', JSON)
    assert command.code == 3101
    assert command.header(GetMaxOffset).queue_id == 2


@pytest.mark.parametrize(
    ("ext", "field", "text"),
    [
        (b'{"topic":"T"}', "queueId", r"GET_MAX_OFFSET\(30\): ext field queueId is missing"),
        (b'{"topic":"T","queueId":"four"}', "queueId", "ext field queueId is 'four'"),
        (b'{"queueId":"4"}', "topic", "ext field topic is missing"),
        (b'{"topic":"T","queueId":""}', "queueId", "ext field queueId is missing"),
    ],
)
def test_a_wrong_or_missing_ext_field_is_named(ext: bytes, field: str, text: str) -> None:
    command = decode_header(b'{"code":30,"extFields":%b}' % ext, JSON)
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        command.header(GetMaxOffset)
    assert caught.value.field == field


def test_booleans_follow_java_what_is_not_true_is_false() -> None:
    for text, expected in ((b'"TRUE"', True), (b'"true"', True), (b'"no"', False), (b'"False"', False)):
        command = decode_header(b'{"code":30,"extFields":{"topic":"T","queueId":"0","committed":%b}}' % text, JSON)
        assert command.header(GetMaxOffset).committed is expected


def test_empty_text_is_kept_for_text_and_absent_for_numbers() -> None:
    command = decode_header(b'{"code":35,"extFields":{"clientID":"c","producerGroup":"","consumerGroup":"g"}}', JSON)
    assert command.header(UnregisterClient).producer_group == ""
    pull = decode_header(
        b'{"code":11,"extFields":{"consumerGroup":"g","topic":"T","queueId":"0","queueOffset":"5","maxMsgNums":"32",'
        b'"sysFlag":"0","commitOffset":"0","suspendTimeoutMillis":"15000","subscription":"","subVersion":"0",'
        b'"maxMsgBytes":""}}',
        JSON,
    ).header(PullMessage)
    assert (pull.subscription, pull.max_msg_bytes) == ("", None)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"code":[1]}',
        b'{"code":"many"}',
        b'{"opaque":{}}',
        b'{"remark":[]}',
        b'{"code":1e999}',
        b'{"code":NaN}',
        b"\xff\xfe",
        b'{"remark":"\xff"}',
        b"[" * 100_000,
        b'{"x":' * 100_000,
    ],
)
def test_what_cannot_be_understood_is_the_peers_fault(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_header(header, JSON)


@pytest.mark.parametrize("ext", [b"[]", b'"text"', b"5", b'{"a":{}}', b'{"a":[]}'])
def test_ext_fields_that_are_no_object_of_scalars_are_the_peers_fault(ext: bytes) -> None:
    command = decode_header(b'{"code":30,"extFields":%b}' % ext, JSON)
    with pytest.raises(RemoteProtocolError, match="extFields must be an object"):
        _ = command.ext
    with pytest.raises(RemoteProtocolError):
        command.header(GetMaxOffset)


def test_the_peer_cannot_set_what_is_ours() -> None:
    header = b'{"code":1,"body":"AAAA","serialize_type":1,"raw_header":"AAAA","_ext":null,"extFields":{"a":"b"}}'
    command = decode_header(header, JSON)
    assert (command.serialize_type, command.raw_header, command.ext) == (JSON, header, {"a": "b"})
    forged = decode_header(b'{"code":1,"_ext":{"fields":{"a":"forged"}},"extFields":{"a":"b"}}', JSON)
    assert forged.ext == {"a": "b"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        ROUTE_BINARY[:20],
        ROUTE_BINARY[:-1],
        ROUTE_BINARY[:13] + b"\x7f\xff\xff\xff" + ROUTE_BINARY[17:],
        ROUTE_BINARY[:13] + b"\xff\xff\xff\xff" + ROUTE_BINARY[17:],
        ROUTE_BINARY[:17] + b"\xff\xff\xff\xff" + ROUTE_BINARY[21:],
        ROUTE_BINARY[:21] + b"\xff\xff" + ROUTE_BINARY[23:],
        ROUTE_BINARY[:28] + b"\xff\xff\xff\xff" + ROUTE_BINARY[32:],
        ROUTE_BINARY[:-1] + b"\xff",
    ],
)
def test_a_binary_header_whose_lengths_lie_is_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_header(data, BINARY)


def test_an_unknown_serialize_type_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="serialize type 2 is unknown"):
        decode_header(ROUTE_JSON, 2)


def test_pop_codes_cut_by_a_binary_header_are_widened_and_never_sent() -> None:
    assert widen_binary_code(3442) == RequestCode.POP_MESSAGE
    assert widen_binary_code(3543) == RequestCode.BATCH_ACK_MESSAGE
    assert widen_binary_code(310) == 310
    cut = ROUTE_BINARY.replace(b"\x00\x69", (3442).to_bytes(2, "big"), 1)
    assert decode_header(cut, BINARY).code == 200050
    with pytest.raises(LocalProtocolError, match="16 bits"):
        encode_header(200050, {}, opaque=0, flag=0, serialize_type=BINARY)


def test_to_ext_writes_text_only_and_leaves_none_out() -> None:
    header = CreateTopic(
        topic="T",
        default_topic="TBW102",
        read_queue_nums=4,
        write_queue_nums=8,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        order=True,
    )
    assert to_ext(header) == {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "8",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "true",
    }
    assert to_ext({"a": 1, "b": False, "c": None, "d": "x"}) == {"a": "1", "b": "false", "d": "x"}


def test_fields_that_java_names_oddly_keep_their_names() -> None:
    response = SendMessageResponse(msg_id="1", queue_id=0, queue_offset=3, msg_region="DefaultRegion", trace_on=True)
    assert to_ext(response)["MSG_REGION"] == "DefaultRegion"
    assert to_ext(response)["TRACE_ON"] == "true"
    register = RegisterBroker(
        broker_name="b", broker_addr="a:1", cluster_name="c", broker_id=0, ha_server_addr="h:2", body_crc32=5
    )
    assert to_ext(register)["bodyCrc32"] == "5"


def test_negative_opaques_and_unicode_survive_both_encodings() -> None:
    ext = {"topic": "τόπος 😀", "p": "a\x01b\x02", "q": '"\\\n'}
    for serialize_type in (JSON, BINARY):
        data = encode_header(1, ext, opaque=-5, flag=1, remark="грешка\n", serialize_type=serialize_type)
        command = decode_header(data, serialize_type)
        assert (command.opaque, command.ext, command.remark, command.is_response) == (-5, ext, "грешка\n", True)


def test_names_of_codes_and_versions() -> None:
    assert request_name(310) == "SEND_MESSAGE_V2(310)"
    assert request_name(12345) == "request code 12345"
    assert response_name(2) == "SYSTEM_BUSY(2)"
    assert response_name(777) == "response code 777"
    assert [version_name(n) for n in (213, 317, 401, 413, 441, 479, 478, 612)] == [
        "V4_0_0",
        "V4_5_2",
        "V4_9_4",
        "V5_0_0",
        "V5_1_4",
        "V5_3_3",
        "V5_3_3_SNAPSHOT",
        "HIGHER_VERSION",
    ]
    said = ("4.0.0", "4.9.4", "v5.1.4", "5.3.3-SNAPSHOT", "5.10.0", "3.2.6", "")
    assert [version_number(text) for text in said] == [213, 401, 441, 479, None, None, None]
    assert LANGUAGES[9] == "GO"
    assert Command().language == "OTHER"


NAMES = st.text(max_size=3) | st.sampled_from(["a", "b", "é", "queueId", "consumerGroup"])


@given(st.lists(st.tuples(NAMES, st.text(max_size=40)), max_size=6))
def test_every_entry_of_a_binary_header_is_read_whatever_the_length_of_its_name(pairs: list[tuple[str, str]]) -> None:
    """Names of one letter are read another way than the others. Of equal names the last one counts, as in Java's map;
    an empty value is the same as an absent one."""
    entries = b"".join(
        struct.pack(">h", len(name.encode())) + name.encode() + struct.pack(">i", len(text.encode())) + text.encode()
        for name, text in pairs
    )
    header = struct.pack(">hBhiiii", 310, 0, 479, 7, 0, 0, len(entries)) + entries
    expected = {name: text for name, text in pairs if text}
    assert decode_header(header, BINARY).ext == of_frame(header).ext == expected


_SEND_NAMES = [field.encode_name for field in msgspec.structs.fields(SendMessageV2)]
_VALUES = st.one_of(
    st.sampled_from(["0", "4", "-1", "1763165000123", "true", "false", "x", " 7", "1.5", "1e3", "9" * 30]),
    st.text(max_size=40).filter(lambda text: text.isprintable() or "\x01" in text),
    st.sampled_from([31, 32, 255, 256, 65_535, 65_536]).map(lambda size: "p" * size),
)


def _typed(command: Command) -> object:
    try:
        return command.header(SendMessageV2)
    except RemoteProtocolError as exc:
        return str(exc)


@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
@given(st.dictionaries(st.sampled_from([*_SEND_NAMES, "other", "ä" * 200]), _VALUES), st.booleans())
def test_typed_fields_are_the_same_in_both_encodings(changed: dict[str, str], is_whole: bool) -> None:
    """Hot binary headers go through MessagePack; JSON ones do not. An empty value does not exist in binary."""
    usual = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1763165000123", "h": "0", "j": "0"}
    ext = (usual if is_whole else {}) | {name: value for name, value in changed.items() if value}
    for code in (310, 320, 999):
        binary = of_frame(encode_header(code, ext, opaque=7, flag=0, serialize_type=BINARY))
        plain = decode_header(encode_header(code, ext, opaque=7, flag=0), JSON)
        assert _typed(binary) == _typed(plain)
        assert binary.ext == ext
        assert (binary.code, binary.opaque, binary.flag) == (code, 7, 0)
        assert (binary.language, binary.version) == (plain.language, plain.version)


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_hot_binary_header_with_a_wrong_length_is_refused_and_not_guessed(cut: int) -> None:
    whole = encode_header(310, {"a": "p", "b": "T", "i": "p" * 300}, opaque=7, flag=0, serialize_type=BINARY)
    with pytest.raises(RemoteProtocolError, match="binary header"):
        of_frame(whole[:-cut])
