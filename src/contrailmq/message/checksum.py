"""CRC-32, as zip and Java's `CRC32` compute it. Everything on disk and on the wire is checked with this one function.

ISA-L computes it with the processor's carry-less multiplication: 0.13 us for 1 KiB, where zlib takes 1 us. A put
computes one and recovery one for each record, so it is worth a dependency; where there is no wheel of it, zlib serves.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # the same function, eight times slower
    from zlib import crc32

__all__ = ["crc32"]
