"""One record by its place in the log, seen without decoding it: what ending a transaction reads.

A sound record of the common shape is found with one pass over its bytes (message/record_runs.py): 2 us, where checking,
decoding and checking its body again took 20. Every doubt is for `Reader`, which knows the reasons and notes damage.
"""

from __future__ import annotations

from librt.strings import read_i32_be

from contrailmq.message import SysFlag
from contrailmq.message.codec import decode_record
from contrailmq.message.record import RECORD_BYTES_MIN, SYS_FLAG_AT, RecordView, view_record
from contrailmq.message.record_runs import sound_run
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.reading.reader import Reader


def view_sound(reader: Reader, files: MappedFileQueue, physical_offset: int) -> RecordView | None:
    """The record that begins there, over a copy of its bytes; None when none does, or its body is damaged."""
    file = files.find(physical_offset) if physical_offset >= 0 else None
    data = None if file is None else _common_record(file, physical_offset)
    if data is None:
        data = reader.read_record(physical_offset, None)
        if data is None or not reader.is_sound(decode_record(data)):
            return None
    return view_record(data)


def _common_record(file: MappedFile, physical_offset: int) -> bytes | None:
    """A copy of the record that begins there, if it is whole, sound and of the common shape."""
    begin = physical_offset - file.base
    room = file.read_position - begin
    if room < RECORD_BYTES_MIN or not file.is_available:
        return None
    try:
        size_bytes: int = read_i32_be(file.mapping[begin : begin + 4], 0)
        if not RECORD_BYTES_MIN <= size_bytes <= room:
            return None
        data: bytes = file.mapping[begin : begin + size_bytes]
    except ValueError:  # closed just now
        return None
    is_sound = sound_run(data, physical_offset) == (size_bytes, 0)
    return data if is_sound and not read_i32_be(data, SYS_FLAG_AT) & SysFlag.LOST else None
