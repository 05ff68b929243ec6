"""What the numbers of a store's settings may be.

A wait of 0 would be a loop without a pause, a negative one would fail far from its cause, and a transfer of 0 messages
would leave consumers waiting for ever. Each is refused when the setting is read, with its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_YEAR_MS: Final = 366 * 86_400_000  # threads cannot wait for as long as a long can say

_WAIT: Final = (1, _YEAR_MS, " ms")
_SPAN: Final = (0, _YEAR_MS, " ms")
_PERCENT: Final = (0, 100, " %")
_OTHER: Final = (0, _LONG_MAX, "")  # every number that is not named

# field -> (lowest, highest, unit)
RANGES: Final[Mapping[str, tuple[int, int, str]]] = {
    "access_message_in_memory_max_ratio": _PERCENT,
    "clean_resource_interval": _WAIT,
    "commit_commit_log_thorough_interval": _SPAN,
    "commit_interval_commit_log": _WAIT,
    "delete_file_batch_max": (1, _INT_MAX, " files"),
    "destroy_maped_file_interval_forcibly": _SPAN,
    "disk_max_used_space_ratio": _PERCENT,
    "disk_space_clean_forcibly_ratio": _PERCENT,
    "disk_space_warning_level_ratio": _PERCENT,
    "file_reserved_time": (0, _INT_MAX, " hours"),
    "flush_commit_log_thorough_interval": _SPAN,
    "flush_consume_queue_thorough_interval": _SPAN,
    "flush_delay_offset_interval": _WAIT,
    "flush_interval_commit_log": _WAIT,
    "flush_interval_consume_queue": _WAIT,
    "ha_housekeeping_interval": _WAIT,
    "ha_listen_port": (0, 65_535, ""),
    "ha_max_gap_not_in_sync": (1, _LONG_MAX, " bytes"),
    "ha_send_heartbeat_interval": _WAIT,
    "ha_transfer_batch_size": (1024, 1024 * 1024, " bytes"),  # a slave of Apache's gathers blocks in 4 MiB
    "in_sync_replicas": (1, 1000, " copies, the master's included"),
    "max_ha_transfer_byte_in_second": (4096, _LONG_MAX, " bytes"),
    "max_msgs_num_batch": (1, _INT_MAX, " messages"),
    "max_transfer_bytes_on_message_in_disk": (1, _INT_MAX, " bytes"),
    "max_transfer_bytes_on_message_in_memory": (1, _INT_MAX, " bytes"),
    "max_transfer_count_on_message_in_disk": (1, _INT_MAX, " messages"),
    "max_transfer_count_on_message_in_memory": (1, _INT_MAX, " messages"),
    "min_in_sync_replicas": (1, 1000, " copies, the master's included"),
    "os_page_cache_busy_time_out_mills": _WAIT,
    "redelete_hanged_file_interval": _WAIT,
    "slave_timeout": _WAIT,
    "sync_flush_timeout": _WAIT,
    "timer_flush_interval_ms": _WAIT,
    "timer_max_delay_sec": (0, _INT_MAX, " s"),
    "timer_precision_ms": (1, _INT_MAX, " ms"),
    "transient_store_pool_size": (1, _INT_MAX, " buffers"),
}


def refusal(name: str, value: int) -> str:
    """What is allowed, when a number is not; nothing when it is."""
    low, high, unit = RANGES.get(name, _OTHER)
    if low <= value <= high:
        return ""
    if value < 0 and low == 0:
        return f"must not be negative: {low} to {high}{unit}"
    return f"{low} to {high}{unit}"
