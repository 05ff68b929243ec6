"""What verify says: one finding, and the report of them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

FINDINGS_LISTED_MAX: Final = 1_000  # more of them are counted, not listed


class Finding(NamedTuple):
    """One thing that is not as it should be. `offset` is physical for the log and index, a queue offset for a queue,
    None where it has no place."""

    part: str
    where: str
    offset: int | None
    problem: str


@dataclass(slots=True)
class VerifyReport:
    """`is_ok` when nothing was found. Counts are what is there and was looked at.

    With an `owner_pid` (-1: nobody knows whose) a running process has the store open: what may be on its way to the
    disk is not a finding.
    """

    path: str
    records: int = 0
    units: int = 0
    index_entries: int = 0
    log_max_offset: int = 0
    owner_pid: int = 0
    findings: list[Finding] = field(default_factory=list)
    findings_count: int = 0

    @property
    def is_ok(self) -> bool:
        return not self.findings_count

    def add(self, part: str, where: str, offset: int | None, problem: str) -> None:
        self.findings_count += 1
        if len(self.findings) < FINDINGS_LISTED_MAX:
            self.findings.append(Finding(part, where, offset, problem))
