"""The numbers of slots and units of an index file, found from its content alone."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from contrailmq.store.base.index_sizes import read_index_sizes
from contrailmq.store.files import Files


def index_file(slots: int, units: int, hashes: list[int]) -> bytes:
    """As RocketMQ's IndexFile lays it out: header, slots, units; unit 0 is never used."""
    slot_at, unit_at = [0] * slots, [struct.pack(">iqii", 0, 0, 0, 0)] * units
    for number, key_hash in enumerate(hashes, 1):
        unit_at[number] = struct.pack(">iqii", key_hash, 300 * number, 0, slot_at[key_hash % slots])
        slot_at[key_hash % slots] = number
    used = sum(1 for newest in slot_at if newest)
    header = struct.pack(">qqqqii", 1, 2, 300, 300 * len(hashes), used, len(hashes) + 1)
    return header + struct.pack(f">{slots}i", *slot_at) + b"".join(unit_at)


@pytest.mark.parametrize(("slots", "units"), [(50, 120), (50, 200), (7, 31), (500, 2000), (333, 40)])
@pytest.mark.parametrize("count", [3, 6, 20])
def test_the_sizes_of_a_small_index_are_found_whatever_its_keys_are(
    slots: int, units: int, count: int, tmp_path: Path
) -> None:
    rng = random.Random(slots * units + count)
    for round_number in range(60):
        directory = tmp_path / str(round_number)
        directory.mkdir()
        hashes = [rng.randrange(2**31) for _ in range(count)]
        (directory / "20261118063616640").write_bytes(index_file(slots, units, hashes))
        assert read_index_sizes(Files(), directory) == (slots, units), hashes
