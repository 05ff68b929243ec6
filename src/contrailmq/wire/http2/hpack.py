"""HPACK (RFC 7541): header blocks to fields, and the few blocks that we send.

    block   := (indexed | literal | table size)*
    indexed := 1iiiiiii              a field of the static table (1 to 61), or the dynamic one (from 62, newest first)
    literal := 01iiiiii name? value        and the field enters the dynamic table
             | 000xiiii name? value        it does not; the name is text where its index is 0
    size    := 001sssss                    of the dynamic table, from here on
    name, value := Hlllllll bytes          H: a Huffman string

Numbers that do not fit into their bits go on in the bytes behind them, 7 bits each.

A field is looked at once, when it is read as a literal: its name decides what it is (`kind`), and whether it may be
there at all. One that comes from a table costs a look into a list. Clients send most fields of a call from the table,
and one or two literals, such as the time limit.

We write without a dynamic table and without Huffman: answers are constant blocks, made once.
"""

from __future__ import annotations

from typing import Final

from contrailmq.wire.http2.huffman import HuffmanError, decode_huffman

__all__ = [
    "AUTHORITY",
    "LIST_BYTES_MAX",
    "MALFORMED",
    "METHOD",
    "PATH",
    "REGULAR",
    "SCHEME",
    "TABLE_BYTES_MAX",
    "Field",
    "HeaderDecoder",
    "HeaderListTooLarge",
    "HpackError",
    "indexed",
    "literal",
]

TABLE_BYTES_MAX: Final = 4096  # of the dynamic table: HTTP/2's default
LIST_BYTES_MAX: Final = 32 * 1024  # of the fields of one block, unpacked; grpcio has 16 KiB
FIELD_EXTRA_BYTES: Final = 32  # that a field counts beyond its text, by the RFC
NUMBER_MAX: Final = 1 << 28  # what four bytes more can say; no length or index is near it
STATIC_COUNT: Final = 61
_COMPACT_AFTER: Final = 128  # evicted fields before the list lets go of their places

# What a field is.
REGULAR: Final = 0
METHOD: Final = 1
PATH: Final = 2
SCHEME: Final = 3
AUTHORITY: Final = 4
MALFORMED: Final = 5  # nothing that a request may have: the call ends, and not the connection

_KINDS: Final = {":method": METHOD, ":path": PATH, ":scheme": SCHEME, ":authority": AUTHORITY}
_OF_HTTP_1: Final = ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade")
_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class HpackError(Exception):
    """A block that cannot be read: the tables of both sides differ from here on, so the connection ends."""


class HeaderListTooLarge(HpackError):
    """Its fields are larger than LIST_BYTES_MAX."""


class Field:
    """A header field."""

    __slots__ = ("kind", "name", "size_bytes", "value")

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value
        self.size_bytes = len(name) + len(value) + FIELD_EXTRA_BYTES
        self.kind: int = _kind(name, value)


def _kind(name: str, value: str) -> int:
    if "\r" in value or "\n" in value or "\0" in value:
        return MALFORMED
    if name[:1] == ":":
        return _KINDS.get(name, MALFORMED)
    if not name or not _TOKEN.issuperset(name) or name in _OF_HTTP_1 or (name == "te" and value != "trailers"):
        return MALFORMED
    return REGULAR


_STATIC_TEXT: Final = """\
:authority=|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|:status=200|:status=204|\
:status=206|:status=304|:status=400|:status=404|:status=500|accept-charset=|accept-encoding=gzip, deflate|\
accept-language=|accept-ranges=|accept=|access-control-allow-origin=|age=|allow=|authorization=|cache-control=|\
content-disposition=|content-encoding=|content-language=|content-length=|content-location=|content-range=|\
content-type=|cookie=|date=|etag=|expect=|expires=|from=|host=|if-match=|if-modified-since=|if-none-match=|if-range=|\
if-unmodified-since=|last-modified=|link=|location=|max-forwards=|proxy-authenticate=|proxy-authorization=|range=|\
referer=|refresh=|retry-after=|server=|set-cookie=|strict-transport-security=|transfer-encoding=|user-agent=|vary=|\
via=|www-authenticate="""
_STATIC: Final = [Field(*text.rsplit("=", 1)) for text in ("=", *_STATIC_TEXT.split("|"))]  # from 1 on
assert len(_STATIC) == STATIC_COUNT + 1


class HeaderDecoder:
    """Owner of the dynamic table that the peer fills. One for each connection, fed with its blocks in their order."""

    def __init__(self, *, list_bytes_max: int = LIST_BYTES_MAX) -> None:
        self._list_bytes_max = list_bytes_max
        self._table: list[Field] = []  # oldest first
        self._first = 0  # of the table that is not evicted
        self._table_bytes = 0
        self._table_bytes_max = TABLE_BYTES_MAX  # as the peer has it now
        self._at = 0  # in the block

    @property
    def table_bytes(self) -> int:
        return self._table_bytes

    def decode(self, block: bytes) -> list[Field]:
        """The fields of a block. HpackError when it cannot be read, and then the connection has to end."""
        fields: list[Field] = []
        left_bytes = self._list_bytes_max
        end = len(block)
        self._at = 0
        while self._at < end:
            first = block[self._at]
            if first >= 0x80:
                field = self._field(self._number(block, end, first, 0x7F))
            elif first >= 0x40:
                field = self._literal(block, end, self._number(block, end, first, 0x3F))
                self._keep(field)
            elif first >= 0x20:
                self._resize(self._number(block, end, first, 0x1F), is_allowed=not fields)
                continue
            else:
                field = self._literal(block, end, self._number(block, end, first, 0x0F))
            left_bytes -= field.size_bytes
            if left_bytes < 0:
                raise HeaderListTooLarge(f"the header fields are larger than {self._list_bytes_max} bytes")
            fields.append(field)
        return fields

    def _field(self, index: int) -> Field:
        if 0 < index <= STATIC_COUNT:
            return _STATIC[index]
        place = len(self._table) - (index - STATIC_COUNT)
        if index == 0 or place < self._first:
            raise HpackError(f"no field has the index {index}: {len(self._table) - self._first} are in the table")
        return self._table[place]

    def _literal(self, block: bytes, end: int, index: int) -> Field:
        name = self._field(index).name if index else self._text(block, end)
        return Field(name, self._text(block, end))

    def _text(self, block: bytes, end: int) -> str:
        if self._at >= end:
            raise HpackError("the block ends before a text")
        first = block[self._at]
        size = self._number(block, end, first, 0x7F)
        start = self._at
        stop = start + size
        if stop > end:
            raise HpackError(f"a text of {size} bytes goes beyond the end of its block")
        if size > self._list_bytes_max:
            raise HeaderListTooLarge(f"a text of {size} bytes, the header fields may have {self._list_bytes_max}")
        self._at = stop
        if first >= 0x80:
            try:
                return decode_huffman(block, start, stop)
            except HuffmanError as exc:
                raise HpackError(f"a Huffman text cannot be read: {exc}") from None
        return block[start:stop].decode("latin-1")

    def _number(self, block: bytes, end: int, first: int, mask: int) -> int:
        """The number that begins in the byte `first`, at `_at`; leaves `_at` behind it."""
        at = self._at + 1
        number = first & mask
        if number == mask:
            shift = 0
            while True:
                if at >= end:
                    raise HpackError("the block ends inside a number")
                byte = block[at]
                at += 1
                number += (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 21:
                    raise HpackError(f"a number is larger than {NUMBER_MAX}")
        self._at = at
        return number

    def _keep(self, field: Field) -> None:
        self._table.append(field)
        self._table_bytes += field.size_bytes
        if self._table_bytes > self._table_bytes_max:
            self._evict()

    def _evict(self) -> None:
        while self._table_bytes > self._table_bytes_max:
            self._table_bytes -= self._table[self._first].size_bytes
            self._first += 1
        if self._first >= _COMPACT_AFTER:
            del self._table[: self._first]
            self._first = 0

    def _resize(self, bytes_max: int, *, is_allowed: bool) -> None:
        if not is_allowed or bytes_max > TABLE_BYTES_MAX:
            raise HpackError(f"the dynamic table cannot become {bytes_max} bytes here, the limit is {TABLE_BYTES_MAX}")
        self._table_bytes_max = bytes_max
        self._evict()


def indexed(index: int) -> bytes:
    """A field of the static table."""
    return bytes((0x80 | index,))


def literal(name: str, value: str) -> bytes:
    """A field that no table keeps."""
    return b"\0" + _plain(name) + _plain(value)


def _plain(text: str) -> bytes:
    data = text.encode("latin-1")
    size = len(data)
    if size < 0x7F:
        return bytes((size,)) + data
    head = bytearray((0x7F,))
    size -= 0x7F
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + data
