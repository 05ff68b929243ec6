"""`compact`, `expire` and `vacuum`: an archive kept fit for years, beside running archives.

1. Upkeep locks `_manifest/.upkeep`, alone; archives go on. It writes new files, whose names begin with its token. A
   kill leaves them unlisted: nothing counts them, and the next writer removes them.
2. It waits until no archive writes and holds it for one commit: files that were read are out, new ones in. If one that
   was read is listed no more, it commits nothing. A kill before the link leaves what 1 leaves.
3. Still holding, it brings the Delta and the Iceberg table that are there to that commit, one commit each. A kill
   leaves a table behind; the next upkeep or publishing brings it up. Until then it lists old files, which still exist.
4. Replaced files wait for those who read them. `vacuum` first brings the tables up, then commits that files older than
   the retention wait no more, then deletes them. A kill leaves files that the next writer removes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contrailmq.spark.columns import View
from contrailmq.spark.jobs.delta import bring_delta_up, check_delta, has_delta
from contrailmq.spark.jobs.iceberg import TABLE, bring_iceberg_up, check_iceberg, expire_snapshots, has_iceberg
from contrailmq.spark.jobs.manifest import ArchiveBusyError, ArchivedFile, ArchiveError, ArchiveState, Layout, Manifest
from contrailmq.spark.jobs.parquet_files import ArchiveWriter, read_rows
from contrailmq.spark.runtime.engine import Engine, LocalEngine, Progress

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TARGET_BYTES: Final = 128 * 1024 * 1024  # what Spark reads as one task by default
RETENTION_S: Final = 7 * 86_400.0  # as Delta's: longer than a query over the files takes
_MEMORY_BYTES: Final = 1024 * 1024 * 1024  # of rows that a task sorts at once
_ORDER: Final = [(name, "ascending") for name in ("topic", "brokerName", "queueId", "queueOffset")]
_NO_FLUSH: Final = 2**63 - 1
_Change = tuple[Sequence[ArchivedFile], Sequence[ArchivedFile]]  # files, and those that take their place


@dataclass(frozen=True, slots=True)
class UpkeepResult:
    """The archive before and after. `version` is the newest commit's, also if nothing was to do."""

    files_before: int
    files_after: int
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    version: int


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """What was deleted."""

    files: int
    size_bytes: int
    version: int


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that list an archive's files: those beside the manifest, or an Iceberg table of a catalog given."""

    catalog: Catalog | None = None
    name: str = TABLE

    def check(self, manifest: Manifest) -> None:
        """Refuse to begin where a table could not be brought up at the end."""
        if has_delta(manifest.archive):
            check_delta()
        if self._has_iceberg(manifest):
            check_iceberg()

    def bring_up(self, manifest: Manifest) -> None:
        """Bring those that are there to the newest commit. Hold the archive."""
        if has_delta(manifest.archive):
            bring_delta_up(manifest)
        if self._has_iceberg(manifest):
            bring_iceberg_up(manifest, self.catalog, self.name)

    def forget(self, manifest: Manifest, before_ms: int) -> None:
        """Drop snapshots whose files may be gone."""
        if self._has_iceberg(manifest):
            expire_snapshots(manifest, before_ms, self.catalog, self.name)

    def _has_iceberg(self, manifest: Manifest) -> bool:
        return self.catalog is not None or has_iceberg(manifest.archive)


class Rewrite(NamedTuple):
    """The work of one task: files of one day to write anew, without rows that were stored before a time."""

    archive: str
    files: tuple[ArchivedFile, ...]
    layout: Layout
    token: str
    begin_ms: int
    is_sorted: bool


def compact(
    target: str,
    engine: Engine | None = None,
    *,
    target_bytes: int = TARGET_BYTES,
    tables: Tables | None = None,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> UpkeepResult:
    """Join small files of a day into files of about `target_bytes`, each sorted by topic, broker, queue and offset.

    An older archive (a directory for each topic) becomes a packed one, all of it in one commit.
    """
    manifest, lists = Manifest(target), tables or Tables()
    if dry_run:
        manifest.check_archive()
        state = manifest.load()
        return _planned(state, [_joined(unit) for unit in _units(manifest, state, target_bytes)])
    with manifest.upkeep() as token:
        lists.check(manifest)
        state = manifest.load()
        units = _units(manifest, state, target_bytes)
        work = [Rewrite(str(manifest.archive), unit, "packed", token, 0, is_sorted=True) for unit in units]
        new = _run(work, engine, on_progress)
        old = [file for unit in units for file in unit]
        with manifest.held():
            gained = [file for file in manifest.load().files if file.topic and file not in old]
            if gained:  # by archives that ran meanwhile, by topic: few, and no more come while we hold it
                rest = Rewrite(str(manifest.archive), tuple(gained), "packed", token, 0, is_sorted=True)
                new, old = [*new, *rewrite(rest)], [*old, *gained]
            _check_rows(manifest, old, new)
            return _replace(manifest, old, new, lists, has_same_rows=True)


def expire(
    target: str,
    before_ms: int,
    engine: Engine | None = None,
    *,
    tables: Tables | None = None,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> UpkeepResult:
    """Drop every row that was stored before a time: files of earlier days, and rows of that day, which is rewritten."""
    manifest, lists = Manifest(target), tables or Tables()
    last = datetime.fromtimestamp((before_ms - 1) / 1000, UTC)  # the last moment that goes
    day = str(last.date())
    if dry_run:
        manifest.check_archive()
        state = manifest.load()
        return _planned(state, [([file], []) for file in state.files if file.date < day])
    with manifest.upkeep() as token:
        lists.check(manifest)
        state = manifest.load()
        work = [
            Rewrite(str(manifest.archive), (file,), state.layout, token, before_ms, is_sorted=False)
            for file in state.files
            if file.date == day
        ]
        new = _run(work, engine, on_progress)
        old = [file for file in state.files if file.date <= day]
        with manifest.held():
            return _replace(manifest, old, new, lists, has_same_rows=False, expired_before_ms=before_ms)


def vacuum(
    target: str, *, retention_s: float = RETENTION_S, tables: Tables | None = None, dry_run: bool = False
) -> VacuumResult:
    """Delete files that were replaced or expired at least `retention_s` ago, and what failed runs left."""
    manifest, lists = Manifest(target), tables or Tables()
    before_ms = time.time_ns() // 1_000_000 - round(retention_s * 1000)
    if dry_run:
        manifest.check_archive()
        return _vacuumed(manifest, manifest.load(), before_ms)
    with manifest.upkeep(), manifest.held():
        lists.check(manifest)
        state = manifest.load()
        lists.bring_up(manifest)
        result = _vacuumed(manifest, state, before_ms)
        left = [file for file in state.removed if file.time_ms > before_ms]
        if len(left) < len(state.removed):
            lists.forget(manifest, before_ms)
            state = manifest.replace_files(state, (), (), has_same_rows=True, removed=left)
        manifest.remove_leavings()
    return replace(result, version=state.version)


def _vacuumed(manifest: Manifest, state: ArchiveState, before_ms: int) -> VacuumResult:
    paths = [manifest.archive / file.path for file in state.removed if file.time_ms <= before_ms]
    there = [path for path in paths if path.exists()]
    return VacuumResult(len(there), sum(path.stat().st_size for path in there), state.version)


def _check_rows(manifest: Manifest, old: Sequence[ArchivedFile], new: Sequence[ArchivedFile]) -> None:
    """Refuse files that do not hold as many rows as those they replace."""
    expected, written = (sum(file.rows for file in files) for files in (old, new))
    if written != expected:
        raise ArchiveError(
            f"{manifest.archive}: {len(old)} files gave {written} rows, and hold {expected} by the manifest: nothing "
            "was committed; one of them was changed, restore it from a backup"
        )


def _replace(
    manifest: Manifest,
    old: Sequence[ArchivedFile],
    new: Sequence[ArchivedFile],
    tables: Tables,
    *,
    has_same_rows: bool,
    expired_before_ms: int = 0,
) -> UpkeepResult:
    """Commit new files in place of those that were read, then bring the tables up. Hold the archive."""
    state = manifest.load()
    changed = sorted({file.path for file in old} - {file.path for file in state.files})
    if changed:
        raise ArchiveBusyError(
            f"{manifest.archive}: {len(changed)} of {len(old)} files were replaced by another job meanwhile, the first "
            f"is {changed[0]}: nothing was committed; let one job work at a time, then run again"
        )
    tables.bring_up(manifest)  # so that new rows and replaced files are commits of their own
    after = state
    if old or expired_before_ms > state.expired_before_ms:
        after = manifest.replace_files(
            state,
            {file.path for file in old},
            new,
            has_same_rows=has_same_rows,
            layout="packed" if has_same_rows else None,
            expired_before_ms=expired_before_ms,
        )
        tables.bring_up(manifest)
    return _result(state, after)


def _result(before: ArchiveState, after: ArchiveState) -> UpkeepResult:
    bytes_before, bytes_after = (sum(file.size_bytes for file in state.files) for state in (before, after))
    return UpkeepResult(
        len(before.files), len(after.files), before.rows, after.rows, bytes_before, bytes_after, after.version
    )


def _planned(state: ArchiveState, changes: Sequence[_Change]) -> UpkeepResult:
    """What a dry run tells: the archive with the first of each pair replaced by the second."""
    old = {file for files, _ in changes for file in files}
    new = [file for _, files in changes for file in files]
    after = replace(state, files=(*(file for file in state.files if file not in old), *new))
    return _result(state, after)


def _joined(unit: Sequence[ArchivedFile]) -> _Change:
    """Files of a unit, and about what they become."""
    sizes = sum(file.size_bytes for file in unit)
    return unit, [ArchivedFile("", "", unit[0].date, sum(file.rows for file in unit), sizes)]


def _run(work: Sequence[Rewrite], engine: Engine | None, on_progress: Progress | None) -> list[ArchivedFile]:
    runs_on = LocalEngine(1) if engine is None else engine
    return [file for written in runs_on.run(rewrite, work, on_progress) for file in written]


def rewrite(work: Rewrite) -> list[ArchivedFile]:
    """Write the rows of files anew, as one file of a packed archive."""
    tables = [read_rows(str(Path(work.archive, file.path)), file.topic) for file in work.files]
    table = pa.concat_tables(tables)
    if work.begin_ms:
        begin = pa.scalar(work.begin_ms * 1000, pa.int64()).cast(table.schema.field("storeTimestamp").type)
        table = table.filter(pc.greater_equal(table["storeTimestamp"], begin))
    if work.is_sorted:
        table = table.sort_by(_ORDER)
    table = table.cast(_tight_schema(table))
    writer = ArchiveWriter(work.archive, work.layout, token=work.token, flush_bytes=_NO_FLUSH)
    for batch in table.to_batches():
        writer.add(batch)
    return writer.close()


def _tight_schema(table: pa.Table) -> pa.Schema:
    """The schema with columns that are never null marked as such where that is true: older archives may have nulls."""
    required = {name for name in View().required if not table[name].null_count}
    return pa.schema([field.with_nullable(field.name not in required) for field in table.schema])


def _units(manifest: Manifest, state: ArchiveState, target_bytes: int) -> list[tuple[ArchivedFile, ...]]:
    """Files to join, each unit into one: of a day, of about the target's size, and small enough to be sorted at once.

    A file of three quarters of the target's size is large enough. Of an older archive every file is taken, by topic.
    """
    found: list[tuple[ArchivedFile, ...]] = []
    is_packed = state.layout == "packed"
    taken = [file for file in state.files if not is_packed or file.size_bytes < target_bytes * 3 // 4]
    taken.sort(key=lambda file: (file.date, file.topic))
    for _, files in groupby(taken, key=lambda file: file.date):
        found += _bins(manifest.archive, files, target_bytes)
    return [unit for unit in found if len(unit) > 1 or not is_packed]


def _bins(archive: Path, files: Iterator[ArchivedFile], target_bytes: int) -> Iterator[tuple[ArchivedFile, ...]]:
    unit: list[ArchivedFile] = []
    size_bytes = memory_bytes = 0
    for file in files:
        held_bytes = _held_bytes(archive / file.path)
        if unit and (size_bytes + file.size_bytes > target_bytes or memory_bytes + held_bytes > _MEMORY_BYTES):
            yield tuple(unit)
            unit, size_bytes, memory_bytes = [], 0, 0
        unit.append(file)
        size_bytes, memory_bytes = size_bytes + file.size_bytes, memory_bytes + held_bytes
    if unit:
        yield tuple(unit)


def _held_bytes(path: Path) -> int:
    """How much a file holds before compression, by its footer."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as exc:
        raise ArchiveError(f"{path} cannot be read ({str(exc).splitlines()[0]}): restore it from a backup") from exc
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
