"""Java's hash of a text, bit for bit, because consume queues and index files hold it.

A loop over the characters is slow when interpreted, so there are two other ways below. When compiled (`make compile`)
it is the fastest: 0.1 us for 32 characters.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

# A Java hash is the text read as a number in base 31. int() parses base 31 in C, but only digits below 31: so each unit
# is split into two digits, unit = 31 * high + low, which two translations do. 0.9 us for 32 characters, where a sum of
# products takes 2.6 us and a loop 3.7 us.
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_HIGH: Final = bytes(_DIGITS[unit // 31] for unit in range(256))
_LOW: Final = bytes(_DIGITS[unit % 31] for unit in range(256))
_BLOCK_UNITS: Final = 256
_POWERS: Final = [pow(31, k, 1 << 32) for k in range(_BLOCK_UNITS + 1)]
# Of unique ids each unit is one digit more than "0", so one translation does: half the time.
_ZERO: Final = ord("0")
_ABOVE_ZERO: Final = bytes(_DIGITS[unit - _ZERO] if 0 <= unit - _ZERO < 31 else ord("?") for unit in range(256))
_ID_UNITS: Final = 32
_ZEROS: Final = [sum(_ZERO * power for power in _POWERS[:count]) for count in range(_BLOCK_UNITS + 1)]


def java_hash(text: str, *, seed: int = 0) -> int:
    """Java's `String.hashCode`: 31 * h + unit over UTF-16 units, wrapped to a signed 32-bit number.

    `seed` is the hash of the text before this one: `java_hash(b, seed=java_hash(a)) == java_hash(a + b)`.
    """
    count = len(text)
    if _IS_COMPILED and text.isascii():
        return _hash_by_loop(text.encode(), seed)
    if 0 < count <= _BLOCK_UNITS and text.isascii():
        units = text.encode()
        hashed = seed * _POWERS[count] + 31 * int(units.translate(_HIGH), 31) + int(units.translate(_LOW), 31)
    else:
        hashed = seed
        data = text.encode("utf-16-be", "surrogatepass")
        for unit in struct.unpack(f">{len(data) // 2}H", data):
            hashed = (31 * hashed + unit) & 0xFFFFFFFF
    hashed &= 0xFFFFFFFF
    return hashed - 0x100000000 if hashed & 0x80000000 else hashed


def java_hash_of_id(text: str, *, seed: int = 0) -> int:
    """As `java_hash`, sooner for digits and the capitals up to N, of which unique ids consist; others take longer."""
    count = len(text)
    if _IS_COMPILED or not 0 < count <= _BLOCK_UNITS or not text.isascii():
        return java_hash(text, seed=seed)
    try:
        hashed = seed * _POWERS[count] + _ZEROS[count] + int(text.encode().translate(_ABOVE_ZERO), 31)
    except ValueError:
        return java_hash(text, seed=seed)
    hashed &= 0xFFFFFFFF
    return hashed - 0x100000000 if hashed & 0x80000000 else hashed


def java_hash_within(data: bytes, begin: int, end: int, *, seed: int) -> int:
    """As `java_hash`, of the UTF-8 text in data[begin:end]; compiled, no text is made of it."""
    if not _IS_COMPILED:
        text = str(data[begin:end], "utf-8", "replace")
        return java_hash_of_id(text, seed=seed) if len(text) == _ID_UNITS else java_hash(text, seed=seed)
    hashed: i64 = seed
    place: i64 = begin
    stop: i64 = end
    while place < stop:
        unit: i64 = data[place]
        if unit >= 0x80:
            return java_hash(str(data[begin:end], "utf-8", "replace"), seed=seed)
        hashed = (31 * hashed + unit) & 0xFFFFFFFF
        place += 1
    hashed &= 0xFFFFFFFF
    return hashed - 0x100000000 if hashed & 0x80000000 else hashed


def _hash_by_loop(units: bytes, seed: int) -> int:
    hashed: i64 = seed
    place: i64 = 0
    count: i64 = len(units)
    while place < count:  # iterating would make an object of each unit
        unit: i64 = units[place]
        hashed = (31 * hashed + unit) & 0xFFFFFFFF
        place += 1
    hashed &= 0xFFFFFFFF
    return hashed - 0x100000000 if hashed & 0x80000000 else hashed


_IS_COMPILED: Final = not isinstance(_hash_by_loop, FunctionType)


@lru_cache(maxsize=4096)
def tags_code(tags: str | None) -> int:
    """The number a consume queue keeps for a tag: 0 for none, else its Java hash."""
    return java_hash(tags) if tags else 0
