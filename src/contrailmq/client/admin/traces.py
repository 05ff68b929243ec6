"""A message's trace, read back from the trace topic: who sent it, and who consumed it when and how.

The records are RocketMQ's (client/producing/trace.py says how they are written); Java's clients and ours write them
when tracing is on. A record that has too few fields, or no number where one belongs, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_BEGINNINGS: Final = ("sent", "consuming")  # of two steps in one millisecond, what has a sequel comes first
FIELD: Final = "\x01"
RECORD: Final = "\x02"
_CODES: Final = {"0": "success", "1": "timed out", "2": "exception", "3": "returned null", "4": "failed"}


@dataclass(frozen=True, slots=True, order=True)
class TraceStep:
    """One line of the timeline."""

    time_ms: int
    what: str
    group: str
    text: str
    is_good: bool = True


def steps_of(bodies: Iterable[bytes], message_id: str) -> list[TraceStep]:
    """What trace messages say of one message, in order of time."""
    steps: set[TraceStep] = set()
    for body in bodies:
        for record in body.decode("utf-8", "replace").split(RECORD):
            step = _step(record.lstrip("\n").split(FIELD), message_id)
            if step is not None:
                steps.add(step)
    return sorted(steps, key=lambda step: (step.time_ms, step.what not in _BEGINNINGS, step))


def _step(fields: list[str], message_id: str) -> TraceStep | None:
    kind = fields[0]
    try:
        if kind == "Pub" and fields[5] == message_id:
            is_good = fields[-1] == "true" or (len(fields) > 13 and fields[13] == "true")
            what = "sent" if is_good else "send failed"
            return TraceStep(int(fields[1]), what, fields[3], f"in {fields[10]} ms, stored by {fields[8]}", is_good)
        if kind == "SubBefore" and fields[5] == message_id:
            retries = f", retry {fields[6]}" if fields[6] not in ("0", "null") else ""
            return TraceStep(int(fields[1]), "consuming", fields[3], f"began{retries}")
        if kind == "SubAfter" and fields[2] == message_id:
            outcome = _CODES.get(fields[6] if len(fields) > 6 else "", "ended")
            is_good = fields[4] == "true"
            time_ms, group = (int(fields[7]), fields[8]) if len(fields) > 8 else (0, "")
            return TraceStep(
                time_ms, "consumed" if is_good else "not consumed", group, f"{outcome} in {fields[3]} ms", is_good
            )
        if kind == "EndTransaction" and fields[5] == message_id:
            return TraceStep(int(fields[1]), "transaction ended", fields[3], fields[11])
        if kind == "Recall" and fields[5] == message_id:
            return TraceStep(int(fields[1]), "recalled", fields[3], "")
    except (IndexError, ValueError):
        return None
    return None
