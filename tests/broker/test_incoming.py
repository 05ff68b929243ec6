"""A message on its way into the log."""

from __future__ import annotations

from contrailmq.broker.state.incoming import IncomingMessage
from contrailmq.message import SysFlag, encode_host
from contrailmq.message.codec import decode_record, encode_record


def test_a_copy_leaves_the_address_flags_to_the_hosts_it_is_stored_with() -> None:
    """Stored on an IPv6 broker, put again on an IPv4 one: with the old flag the record would be read 12 bytes off."""
    v4, v6 = encode_host("10.0.0.1", 10911), encode_host("fd00::1", 10911)
    record = encode_record(
        "T", b"x", b"", queue_id=0, queue_offset=0, physical_offset=0, born_host=v4, store_host=v6, born_time_ms=1,
        store_time_ms=2, sys_flag=SysFlag.COMPRESSED,
    )  # fmt: skip
    stored = decode_record(record)
    assert stored.sys_flag == SysFlag.COMPRESSED | SysFlag.STORE_HOST_V6
    copy = IncomingMessage.copy_of(stored, topic="U", queue_id=1, store_host=v4)
    assert copy.sys_flag == SysFlag.COMPRESSED
