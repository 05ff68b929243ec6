"""JSON as Java's fastjson writes and reads it, where that differs from JSON.

RocketMQ's bodies and files hold three forms that no standard parser takes:

    {0:"10.0.0.2:10911"}                                             names that are bare numbers or words
    {{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5}}     names that are objects
    {'a':1,}                                                         single quotes, trailing commas

Reading: `decode_body` tries the C decoder first and only when the text is not JSON rewrites it with `to_standard_json`,
in which an object used as a name becomes that object's text as a string. Writing: whatever has to look like Java is
placed as raw text into an otherwise ordinary struct (`queue_table`, `bare_keys`). We never emit the third form.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar, cast

import msgspec

from contrailmq.message import MessageQueue
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.header import UNREADABLE

__all__ = [
    "Body",
    "MessageQueueBody",
    "bare_keys",
    "decode_body",
    "decode_queue_table",
    "encode_body",
    "loads_fastjson",
    "new_dict",
    "new_list",
    "queue_table",
    "to_standard_json",
    "written",
]

T = TypeVar("T")
V = TypeVar("V")

# Bounds for bodies that are not JSON and come from anybody; each is worth about 30 ms of the loop's time at worst.
SLOW_BYTES_MAX: Final = 32 * 1024  # rewritten token by token
QUICK_BYTES_MAX: Final = 4 * 1024 * 1024  # searched for bare names
BARE_NAMES_MAX: Final = 20_000  # quoted
DEPTH_MAX: Final = 64  # the deepest body of the protocol has 7 levels

encode_body: Final = msgspec.json.Encoder().encode


class Body(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Root of all JSON bodies. Fields stand in alphabetical order, as Java writes them; None is not written.

    A field whose default must still be written has `written(default)`.
    """

    # Kinds that may have objects as names: for them, which tools read, a body of any size is rewritten.
    may_have_object_names: ClassVar[bool] = False


def written(default: V) -> V:
    """A default that is written too, as Java does. msgspec compares constants with defaults, but not factories.

    The factory is a method written in C: a peer that leaves all members out pays for calls of functions, dearly.
    """
    value: V = msgspec.field(default_factory=itertools.repeat(default).__next__)
    return value


if TYPE_CHECKING:

    def new_list() -> list[V]:
        """An empty list that is written (msgspec would leave out one made by `list` itself)."""

    def new_dict() -> dict[V, T]:
        """An empty map that is written."""

else:
    new_list, new_dict = [].copy, {}.copy


class MessageQueueBody(Body, kw_only=True):
    """A MessageQueue with its members in Java's order."""

    broker_name: str
    queue_id: int
    topic: str

    @classmethod
    def of(cls, queue: MessageQueue) -> MessageQueueBody:
        return cls(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


def decode_body(data: bytes, kind: type[T]) -> T:
    """`data` as `kind`, in JSON or in fastjson's form of it. RemoteProtocolError says what is wrong with it."""
    try:
        decoder: msgspec.json.Decoder[T] = _decoder(kind)
        try:
            value: T = decoder.decode(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            is_trusted = isinstance(kind, type) and issubclass(kind, Body) and kind.may_have_object_names
            value = decoder.decode(to_standard_json(data, is_bounded=not is_trusted))
    except UNREADABLE as exc:
        raise RemoteProtocolError(f"body of {len(data)} bytes is not a {kind.__name__}: {exc}") from exc
    return value


_DECODERS: Final[dict[object, msgspec.json.Decoder[object]]] = {}


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind, strict=False)
    return cast("msgspec.json.Decoder[T]", decoder)


def loads_fastjson(data: bytes, *, is_trusted: bool = False) -> object:
    """Plain Python values. Names are always strings: a bare 0 is "0", an object used as a name is its JSON text.

    With `is_trusted` a body that is not JSON is rewritten whatever its size (a master's offsets, a tool's tables).
    """
    try:
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            return msgspec.json.decode(to_standard_json(data, is_bounded=not is_trusted))
    except UNREADABLE as exc:
        raise RemoteProtocolError(f"body of {len(data)} bytes is not JSON: {exc}") from exc


# ------------------------------------------------------------------------------------------------------------- writing


def queue_table(table: Mapping[MessageQueue, object]) -> msgspec.Raw:
    """A map from queues as Java writes it, with objects as names; put it into a field of type Raw."""
    entries = (encode_body(MessageQueueBody.of(queue)) + b":" + encode_body(table[queue]) for queue in table)
    return msgspec.Raw(b"{" + b",".join(entries) + b"}")


def bare_keys(table: Mapping[int, object]) -> msgspec.Raw:
    """A map from numbers with bare names, as Java's default writer leaves them."""
    return msgspec.Raw(b"{" + b",".join(b"%d:%b" % (key, encode_body(value)) for key, value in table.items()) + b"}")


def decode_queue_table(raw: msgspec.Raw, kind: type[V]) -> dict[MessageQueue, V]:
    """A map from queues that came in a Raw field of a decoded body."""
    if not raw:
        return {}
    table = decode_body(bytes(raw), dict[str, kind])  # type: ignore[valid-type]
    return {decode_body(name.encode(), MessageQueueBody).queue: value for name, value in table.items()}


# ------------------------------------------------------------------------------------------------------------- reading

_TOKEN: Final = re.compile(
    rb"""\s*(?:
      (?P<string>"[^"\\]*(?:\\.[^"\\]*)*")
    | (?P<single>'[^'\\]*(?:\\.[^'\\]*)*')
    | (?P<mark>[{}\[\]:,])
    | (?P<word>[^\s{}\[\]:,"']+)
    )""",
    re.VERBOSE | re.DOTALL,
)


class _Level:
    """An object or array that is open. `key_start` is where the object that serves as a name began in the output."""

    __slots__ = ("closer", "expects_name", "key_start")

    def __init__(self, opener: bytes) -> None:
        self.closer = b"}" if opener == b"{" else b"]"
        self.expects_name = opener == b"{"
        self.key_start: int | None = None


_BARE_NAME: Final = re.compile(rb"([{,]\s*)(-?[\w.$-]+)(?=\s*:)")
_NOT_QUICK: Final = re.compile(rb"\}\s*:|,\s*[}\]]")  # an object as a name, a trailing comma


def to_standard_json(data: bytes, *, is_bounded: bool = False) -> bytes:
    """Rewrite fastjson's text as JSON. What stays wrong is left for the JSON parser to refuse.

    Bare names alone are quoted at the speed of C; everything else goes token by token. With `is_bounded` a body that
    would take too long either way is refused.
    """
    size_bytes = len(data)
    if not is_bounded or size_bytes <= QUICK_BYTES_MAX:
        quick = _quote_bare_names(data, names_max=BARE_NAMES_MAX if is_bounded else 0)
        if quick is not None:
            return quick
    if is_bounded and size_bytes > SLOW_BYTES_MAX:
        raise RemoteProtocolError(f"body of {size_bytes} bytes is not JSON, and too large to be read as fastjson's")
    return _rewrite(data)


def _quote_bare_names(data: bytes, *, names_max: int = 0) -> bytes | None:
    """The text with its bare names quoted; None when it has anything else to mend, or more than `names_max` of them.

    Without escapes every second piece between double quotes lies outside of strings, so one substitution over the
    outside pieces, joined, cannot touch a string.
    """
    if b"\\" in data or b"'" in data or b"\0" in data:
        return None
    pieces = data.split(b'"')
    outside = b'"'.join(pieces[::2])
    if len(pieces) % 2 == 0 or _NOT_QUICK.search(outside):
        return None
    quoted, count = _BARE_NAME.subn(rb"\1\0\2\0", outside, count=names_max + 1 if names_max else 0)
    if names_max and count > names_max:
        return None
    pieces[::2] = quoted.split(b'"')
    return b'"'.join(pieces).replace(b"\0", b'"')


def _rewrite(data: bytes) -> bytes:
    out: list[bytes] = []
    levels: list[_Level] = []
    position, end = 0, len(data.rstrip())
    while position < end:
        match = _TOKEN.match(data, position)
        if match is None:
            raise RemoteProtocolError(f"body is not JSON: byte {position} starts no token")
        position = match.end()
        kind, token = match.lastgroup, match.group(match.lastindex or 0)
        if kind == "mark":
            _mark(token, out, levels)
        elif kind == "single":
            text = token[1:-1].replace(b"\\'", b"'").decode(errors="surrogateescape")
            out.append(json.dumps(text.replace('\\"', '"')).encode())
        elif kind == "word" and levels and levels[-1].expects_name:
            out.append(b'"%b"' % token)
        else:
            out.append(token)
    return b"".join(out)


def _mark(token: bytes, out: list[bytes], levels: list[_Level]) -> None:
    top = levels[-1] if levels else None
    if token in (b"{", b"["):
        if len(levels) >= DEPTH_MAX:
            raise RemoteProtocolError(f"body is nested deeper than {DEPTH_MAX} levels")
        if top is not None and top.expects_name:
            # Escaping such a name inside another would double its size at every level.
            if token == b"[" or any(level.key_start is not None for level in levels):
                raise RemoteProtocolError("body has an array, or an object within an object, as a name")
            top.key_start = len(out)
        levels.append(_Level(token))
        out.append(token)
    elif token in (b"}", b"]"):
        if top is None or top.closer != token:
            raise RemoteProtocolError(f"body has a {token.decode()} that closes nothing")
        if out[-1] == b",":
            out.pop()
        out.append(token)
        levels.pop()
        if levels and levels[-1].key_start is not None:
            parent = levels[-1]
            name = b"".join(out[parent.key_start :]).decode(errors="replace")
            del out[parent.key_start :]
            out.append(json.dumps(name).encode())
            parent.key_start = None
    else:
        if top is not None and top.closer == b"}":
            top.expects_name = token == b","
        out.append(token)
