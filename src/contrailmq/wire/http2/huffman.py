"""Huffman strings of HPACK (RFC 7541, 5.2 and appendix B). We only read them: what we write is short or constant.

The code is canonical: ordered by length, then by symbol, each code is the one before it plus one. So the lengths say
everything. Codes of up to 8 bits, all that ordinary text is made of, are found by one look at a table of 256 places;
longer ones by their length, shortest first.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HuffmanError", "decode_huffman"]

SHORT_BITS: Final = 8
LONG_BITS: Final = 30  # of the longest code
END: Final = 256  # the symbol that no string has

# Bits of the code of each byte, then of END.
_LENGTHS_TEXT: Final = """\
13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28
6 10 10 12 13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10
13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 8 7 8 13 19 13 14 6
15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28
20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24
22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23
26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27
20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26
30
"""
_LENGTHS: Final = tuple(map(int, _LENGTHS_TEXT.split()))
assert len(_LENGTHS) == END + 1


class HuffmanError(Exception):
    """The bytes are no Huffman string."""


def _tables() -> tuple[bytes, bytes, list[int], list[int], list[int]]:
    """Of short codes: bits and symbol by the next 8 bits. Of every length: its first code, and where its symbols begin
    and end in the order of codes."""
    order = sorted(range(END + 1), key=lambda symbol: (_LENGTHS[symbol], symbol))
    bits, symbols = bytearray(1 << SHORT_BITS), bytearray(1 << SHORT_BITS)
    first, begin = [0] * (LONG_BITS + 1), [0] * (LONG_BITS + 2)
    code, length = 0, 0
    for place, symbol in enumerate(order):
        while length < _LENGTHS[symbol]:
            length += 1
            code <<= 1
            first[length], begin[length] = code, place
        if length <= SHORT_BITS:
            low = code << (SHORT_BITS - length)
            for value in range(low, low + (1 << (SHORT_BITS - length))):
                bits[value], symbols[value] = length, symbol
        code += 1
    begin[LONG_BITS + 1] = END + 1
    return bytes(bits), bytes(symbols), first, begin, order


_SHORT_BITS, _SHORT_SYMBOLS, _FIRST, _BEGIN, _ORDER = _tables()


def decode_huffman(data: bytes, start: int, end: int) -> str:
    """The text of `data[start:end]`, a character for each byte. HuffmanError when it is none."""
    short_bits, short_symbols = _SHORT_BITS, _SHORT_SYMBOLS
    text = bytearray()
    bits, count = 0, 0  # read and not used yet: `count` of them
    while True:
        while count < LONG_BITS and start < end:
            bits = (bits << 8) | data[start]
            count += 8
            start += 1
        if count >= SHORT_BITS:
            place = (bits >> (count - SHORT_BITS)) & 0xFF
        else:
            place = ((bits << (SHORT_BITS - count)) | (0xFF >> count)) & 0xFF  # as padding goes on
        length = short_bits[place]
        if length:
            if length > count:
                break
            text.append(short_symbols[place])
        else:
            length = _long_code(bits, count)
            if not length:
                break
            text.append(_ORDER[_BEGIN[length] + (bits >> (count - length)) - _FIRST[length]])
        count -= length
        bits &= (1 << count) - 1
    if count >= SHORT_BITS or bits != (1 << count) - 1:
        raise HuffmanError(f"{count} bits are left that are no padding")
    return text.decode("latin-1")


def _long_code(bits: int, count: int) -> int:
    """The length of the long code that these bits begin with; 0 when they are too few for any, as padding is."""
    for length in range(SHORT_BITS + 2, min(count, LONG_BITS) + 1):
        place = _BEGIN[length] + (bits >> (count - length)) - _FIRST[length]
        if _BEGIN[length] <= place < _BEGIN[length + 1]:
            if _ORDER[place] == END:
                raise HuffmanError("the end symbol is inside a string")
            return length
    return 0
