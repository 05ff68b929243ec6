"""HPACK against another implementation, and against the examples of its RFC."""

from __future__ import annotations

import random
import string

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.wire.http2.hpack import (
    LIST_BYTES_MAX,
    MALFORMED,
    REGULAR,
    TABLE_BYTES_MAX,
    Field,
    HeaderDecoder,
    HeaderListTooLarge,
    HpackError,
    indexed,
    literal,
)
from contrailmq.wire.http2.huffman import HuffmanError, decode_huffman
from how_many import examples

NAMES = st.sampled_from([":path", "grpc-timeout", "content-type", "x-a", "x-b", "authorization", "cookie"]) | st.text(
    string.ascii_lowercase + "-", min_size=1, max_size=20
)
VALUES = st.binary(max_size=60).map(lambda data: data.decode("latin-1"))
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


def pairs(fields: list[Field]) -> list[tuple[str, str]]:
    return [(field.name, field.value) for field in fields]


def encoded(encoder: hpack.Encoder, fields: list[tuple[str, str]], *, huffman: bool) -> bytes:
    as_bytes = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    return bytes(encoder.encode(as_bytes, huffman=huffman))


@settings(max_examples=examples(1000), deadline=None)
@given(blocks=st.lists(st.tuples(LISTS, st.booleans(), st.sampled_from([None, 0, 40, 200, 4096])), max_size=12))
def test_what_another_encoder_writes_is_read(
    blocks: list[tuple[list[tuple[str, str]], bool, int | None]],
) -> None:
    """Over many blocks of one connection: the dynamic table, its size and its evictions are the same on both sides."""
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for fields, huffman, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        assert pairs(decoder.decode(encoded(encoder, fields, huffman=huffman))) == fields
        assert decoder.table_bytes <= TABLE_BYTES_MAX


@settings(max_examples=examples(500), deadline=None)
@given(fields=LISTS)
def test_what_we_write_is_read_by_another_decoder(fields: list[tuple[str, str]]) -> None:
    block = indexed(8) + b"".join(literal(name, value) for name, value in fields)
    read = hpack.Decoder().decode(block, raw=True)
    assert [(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in read] == [
        (":status", "200"),
        *fields,
    ]


@settings(max_examples=examples(2000), deadline=None)
@given(data=st.binary(max_size=80))
def test_any_bytes_are_read_as_the_other_decoder_reads_them_or_refused(data: bytes) -> None:
    other = hpack.Decoder()
    try:
        wanted = [(bytes(n).decode("latin-1"), bytes(v).decode("latin-1")) for n, v in other.decode(data, raw=True)]
    except hpack.HPACKError:
        with pytest.raises(HpackError):
            HeaderDecoder().decode(data)
    else:
        assert pairs(HeaderDecoder().decode(data)) == wanted


def test_long_texts_and_every_byte_go_through_huffman() -> None:
    text = "".join(map(chr, range(256))) * 3
    coded = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    ).encode(text.encode("latin-1"))
    assert decode_huffman(coded, 0, len(coded)) == text
    assert decode_huffman(b"ab" + coded + b"cd", 2, 2 + len(coded)) == text


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x1f\xff", b"\xfe", b"\x00\x00"[:1] + b"\x7f\xff"])
def test_padding_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(HuffmanError):
        decode_huffman(data, 0, len(data))


# RFC 7541, C.4 (requests with Huffman) and C.6 (answers with Huffman, whose table of 256 bytes evicts).
C4 = [
    ("828684418cf1e3c2e5f23a6ba0ab90f4ff", [("GET", "http", "/", "www.example.com")]),
    ("828684be5886a8eb10649cbf", [("GET", "http", "/", "www.example.com")]),
    ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", [("GET", "https", "/index.html", "www.example.com")]),
]


def test_requests_of_the_rfc() -> None:
    decoder = HeaderDecoder()
    extra: list[list[tuple[str, str]]] = [[], [("cache-control", "no-cache")], [("custom-key", "custom-value")]]
    for (block, [(method, scheme, path, authority)]), more in zip(C4, extra, strict=True):
        wanted = [(":method", method), (":scheme", scheme), (":path", path), (":authority", authority), *more]
        assert pairs(decoder.decode(bytes.fromhex(block))) == wanted
    assert decoder.table_bytes == 164  # as the RFC says


def test_literals_of_the_rfc() -> None:
    """C.2: indexed, without indexing, never indexed, and a field of the static table."""
    for block, wanted, table_bytes in (
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", ("custom-key", "custom-header"), 55),
        ("040c2f73616d706c652f70617468", (":path", "/sample/path"), 0),
        ("100870617373776f726406736563726574", ("password", "secret"), 0),
        ("82", (":method", "GET"), 0),
    ):
        decoder = HeaderDecoder()
        assert pairs(decoder.decode(bytes.fromhex(block))) == [wanted]
        assert decoder.table_bytes == table_bytes


def test_answers_of_the_rfc_evict_from_a_small_table() -> None:
    decoder = HeaderDecoder()
    first = (
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3"
    )
    assert decoder.decode(b"\x3f\xe1\x01" + bytes.fromhex(first))[3].value == "https://www.example.com"
    assert decoder.table_bytes == 222
    assert pairs(decoder.decode(bytes.fromhex("4883640effc1c0bf")))[0] == (":status", "307")
    assert decoder.table_bytes == 222


def test_a_list_that_grows_out_of_a_small_block_is_refused() -> None:
    """A compression bomb: a large field of the table, again and again in one byte each."""
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01a" + b"\x7f\x81\x1e" + b"x" * 3968)
    with pytest.raises(HeaderListTooLarge, match=str(LIST_BYTES_MAX)):
        decoder.decode(b"\xbe" * 20)


@pytest.mark.parametrize(
    "block",
    [b"\x80", b"\xc0", b"\x7f", b"\x00", b"\x00\x05ab", b"\x3f\xff\xff\xff\xff\x7f", b"\x82\x20", b"\x3f\xe2\x1f"],
)
def test_blocks_that_cannot_be_read_are_refused(block: bytes) -> None:
    with pytest.raises(HpackError):
        HeaderDecoder().decode(block)


def test_fields_that_no_request_may_have_are_marked() -> None:
    bad = [("Upper", "x"), ("a b", "x"), ("", "x"), ("x", "a\r\nb"), (":status", "200"), ("connection", "close")]
    assert [Field(*pair).kind for pair in [*bad, ("te", "gzip")]] == [MALFORMED] * 7
    assert [Field(*pair).kind for pair in [("te", "trailers"), ("x-a", "B c")]] == [REGULAR] * 2


def test_a_table_that_evicts_for_long_keeps_its_order() -> None:
    encoder, decoder, random_ = hpack.Encoder(), HeaderDecoder(), random.Random(1)
    for number in range(2000):
        fields = [("x-a", f"value {number}"), ("x-b", f"value {number - random_.randrange(30)}")]
        assert pairs(decoder.decode(encoded(encoder, fields, huffman=True))) == fields
