"""The checkpoint file: six numbers, or zeros when it cannot be believed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from contrailmq.store import Files
from contrailmq.store.recovery.checkpoint import Checkpoint, CheckpointValues, read_checkpoint
from golden_stores import expected, unpack


def test_what_is_flushed_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(path, Files())
    checkpoint.physic_msg_time_ms = 10_000
    checkpoint.logics_msg_time_ms = 9_000
    checkpoint.logics_physical_offset = 77
    checkpoint.flush()
    assert path.stat().st_size == 4096
    again = Checkpoint(path, Files())
    assert again.load() == CheckpointValues(10_000, 9_000, 0, 0, 0, 77)


def test_apaches_file_is_read(tmp_path: Path) -> None:
    values = read_checkpoint(unpack("kill9-recovered", tmp_path) / "checkpoint", Files())
    assert list(values) == list(expected("kill9-recovered")["checkpointFound"].values())


@pytest.mark.parametrize(
    "content", [b"", bytes(40), struct.pack(">6q", -1, 0, 0, 0, 0, 0), struct.pack(">6q", 2**62, 0, 0, 0, 0, 0)]
)
def test_a_damaged_file_reads_as_zeros(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    assert read_checkpoint(path, Files()) == CheckpointValues()


def test_a_missing_file_reads_as_zeros(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "checkpoint", Files()) == CheckpointValues()
