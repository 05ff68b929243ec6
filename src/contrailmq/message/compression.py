"""System flag bits of a record, and the body compressions that three of them name."""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

import lz4.frame
import zstandard

from contrailmq.message.errors import MessageError

DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024  # 64 x the body limit: nobody compresses better, a bomb does
_ZSTD_STEP_BYTES: Final = 1024  # unfolds to 32 MiB at worst


class SysFlag:
    """Bits of a record's system flag. The transaction type is a two-bit value: compare it, never test single bits."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_NONE: Final = 0x0
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    TRANSACTION_ROLLBACK: Final = 0xC
    TRANSACTION_MASK: Final = 0xC
    BORN_HOST_V6: Final = 0x10
    STORE_HOST_V6: Final = 0x20
    NEED_UNWRAP: Final = 0x40  # consumers take the inner batch apart
    INNER_BATCH: Final = 0x80
    COMPRESSION_MASK: Final = 0x700
    LOST: Final = 0x10000  # ours, with ROLLBACK: it replaces a damaged record (store/queues/placeholder.py)


class Compression(IntEnum):
    """Kinds of body compression, as the three sysFlag bits store them."""

    ZLIB_OLD = 0x000  # clients before 4.9.4 leave the bits 0
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def compress(body: bytes, kind: Compression, level: int = 5) -> bytes:
    """Compress a body as RocketMQ's clients do: a zlib stream, an LZ4 frame or a Zstandard frame."""
    if kind is Compression.LZ4:
        data: bytes = lz4.frame.compress(body, compression_level=level)
        return data
    if kind is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=level).compress(body)
    return zlib.compress(body, level)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as the sender gave it: unchanged unless the flag says compressed."""
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    try:
        if kind in (Compression.ZLIB, Compression.ZLIB_OLD):
            inflater = zlib.decompressobj()
            data = inflater.decompress(body, DECOMPRESSED_BYTES_MAX)
            whole = inflater.eof
        elif kind == Compression.LZ4:
            reader = lz4.frame.LZ4FrameDecompressor()
            data = reader.decompress(body, max_length=DECOMPRESSED_BYTES_MAX)
            whole = reader.eof
        elif kind == Compression.ZSTD:
            data, whole = _unpack_zstd(body)
        else:
            raise MessageError(
                f"compression kind {kind:#x} is unknown: 0, 0x100, 0x200 and 0x300 are", field="sys_flag"
            )
    except (zlib.error, RuntimeError, zstandard.ZstdError) as exc:
        raise MessageError(
            f"body of {len(body)} bytes does not decompress as kind {kind:#x}: {exc}", field="body", size=len(body)
        ) from exc
    if not whole:
        raise MessageError(
            f"compressed body of {len(body)} bytes is cut short or unfolds to over {DECOMPRESSED_BYTES_MAX} bytes",
            field="body",
            size=len(body),
            limit=DECOMPRESSED_BYTES_MAX,
        )
    return data


def _unpack_zstd(body: bytes) -> tuple[bytes, bool]:
    """The content of a frame, and whether it was whole and within the limit.

    The library unfolds all that it is given at once, and 4 bytes can unfold to 128 KiB: feed it little by little, so
    that a bomb is noticed while it is small.
    """
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    pieces: list[bytes] = []
    total = 0
    for start in range(0, len(body), _ZSTD_STEP_BYTES):
        pieces.append(unpacker.decompress(body[start : start + _ZSTD_STEP_BYTES]))
        total += len(pieces[-1])
        if unpacker.eof or total > DECOMPRESSED_BYTES_MAX:
            break
    return b"".join(pieces), unpacker.eof and total <= DECOMPRESSED_BYTES_MAX
