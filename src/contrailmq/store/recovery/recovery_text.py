"""What opening a store found and did, as sentences for the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contrailmq.store.recovery.recovery import RecoveryReport


def recovery_text(report: RecoveryReport, *, seconds: float) -> str:
    """How the last run ended, what the log holds, what was cut and mended, and how long that took."""
    ended = "closed cleanly" if report.was_clean_exit else "not closed cleanly (a crash or a kill)"
    held = ["the log is empty"]
    if report.physical_offset_max:
        held = [
            f"the log holds offsets {report.physical_offset_min:,} to {report.physical_offset_max:,}",
            f"{_counted(report.records_walked, 'record')} from offset {report.walked_from:,} on read with checksums",
        ]
    parts = [f"it was {ended}", *held, _cut_text(report), *_mended(report)]
    return f"{'; '.join(parts)}; that took {seconds:.1f} s"


def _cut_text(report: RecoveryReport) -> str:
    if not report.cut_bytes and not report.cut_files:
        return "nothing was cut"
    files = f" and {_counted(report.cut_files, 'file')}" if report.cut_files else ""
    return f"{_counted(report.cut_bytes, 'byte')}{files} past the end cut ({report.reason or 'no record begins there'})"


def _mended(report: RecoveryReport) -> list[str]:
    counts = (
        (report.units_added, "queue unit", "added from the log"),
        (report.units_corrected, "queue unit", "corrected by the log"),
        (report.units_cut, "queue unit", "without a record cut"),
        (report.index_entries_added, "index entry", "added from the log"),
        (len(report.queues_rebuilt), "damaged queue", "made again"),
    )
    said = [f"{_counted(count, noun)} {what}" for count, noun, what in counts if count]
    if report.index_rebuilt:
        said.append(f"index files made again: {', '.join(report.index_rebuilt)}")
    return said


def _counted(count: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"1 {noun}" if count == 1 else f"{count:,} {plural}"
