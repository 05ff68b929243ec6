"""`archive --repair`: files that an archive lost (a VACUUM by another tool, a hand), made again from the log.

A day's lost rows are those that the log has of that day, up to where it was archived, and that no other file of the day
holds. If their number is that of the lost files, they take their place in one commit. If it is less, the log was
cleaned since: nothing of that day changes, and the result says which files cannot be made again. `forget_lost` goes on
without them. Rows that were dropped by `expire` stay dropped. Locks and kills: upkeep.py, of which this is a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogPart, LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.store_files import find_stores, log_files
from contrailmq.spark.jobs.archive import renamed_state
from contrailmq.spark.jobs.manifest import ArchivedFile, ArchiveError, ArchiveState, Layout, Manifest
from contrailmq.spark.jobs.parquet_files import ArchiveWriter, read_rows
from contrailmq.spark.jobs.upkeep import Tables
from contrailmq.spark.runtime.engine import Engine, LocalEngine, Progress

_DAY_MS: Final = 86_400_000
_NAMED_MAX: Final = 5  # files of a day that a text names
_Group = tuple[str, str]  # day and topic; without a topic in a packed archive
_Place = tuple[str | None, int, int]  # broker name, physical offset, queue offset


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What was lost and made again; `unrestored` says of each day which files could not be."""

    lost_files: int
    lost_rows: int
    restored_files: int
    restored_rows: int
    version: int
    unrestored: tuple[str, ...] = ()


class _Search(NamedTuple):
    """The work of one task: rows of lost groups in a part of the log, beyond those that other files hold."""

    part: LogPart
    settings: LogSettings
    archive: str
    layout: Layout
    token: str
    groups: tuple[_Group, ...]
    others: tuple[ArchivedFile, ...]


def repair(
    stores: str,
    target: str,
    engine: Engine | None = None,
    *,
    settings: LogSettings | None = None,
    forget_lost: bool = False,
    tables: Tables | None = None,
    on_progress: Progress | None = None,
) -> RepairResult:
    """Make the files that an archive of these stores lost again, as far as the logs still hold their messages."""
    manifest, lists = Manifest(target), tables or Tables()
    with manifest.upkeep() as token:
        lists.check(manifest)
        state = renamed_state(manifest.newest(), find_stores(stores))
        lost = manifest.lost(state.files)
        if not lost:
            with manifest.held():  # a repair that was killed may have left them behind
                lists.bring_up(manifest)
            return RepairResult(0, 0, 0, 0, state.version)
        groups: dict[_Group, list[ArchivedFile]] = {}
        for file in lost:
            groups.setdefault(_group(file), []).append(file)
        work = _plan(manifest, state, stores, settings or LogSettings(), token, tuple(sorted(groups)))
        runs_on = LocalEngine(1) if engine is None else engine
        found = [file for written in runs_on.run(search, work, on_progress) for file in written]
        return _commit(manifest, groups, found, lists, forget_lost=forget_lost)


def _group(file: ArchivedFile) -> _Group:
    return file.date, file.topic


def _plan(
    manifest: Manifest,
    state: ArchiveState,
    stores: str,
    settings: LogSettings,
    token: str,
    groups: tuple[_Group, ...],
) -> list[_Search]:
    """Parts of the logs that may hold rows of the groups."""
    others = tuple(file for file in state.files if _group(file) in groups and not manifest.lost([file]))
    days = [_begin_ms(day) for day, _ in groups]
    begin_ms, end_ms = max(min(days), state.expired_before_ms), max(days) + _DAY_MS
    work: list[_Search] = []
    for store in find_stores(stores):
        files = log_files(store)
        if not files or store not in state.offsets:
            continue
        topics = state.topics.get(store)
        selection = Selection(
            topics=None if topics is None else frozenset(topics), begin_ms=begin_ms, end_ms=max(begin_ms, end_ms)
        )
        chosen = replace(settings, selection=selection, broker_name=state.names.get(store))
        work += [
            _Search(part, chosen, str(manifest.archive), state.layout, token, groups, others)
            for part in plan_parts(store, files[0].base, state.offsets[store], chosen)
        ]
    return work


def _begin_ms(day: str) -> int:
    return round(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()) * 1000


def search(work: _Search) -> list[ArchivedFile]:
    """Write the rows of lost groups that a part of the log has."""
    held = _held_places(work)
    writer = ArchiveWriter(work.archive, work.layout, token=work.token)
    for batch in read_part(work.part, work.settings):
        lost = batch.filter(_is_of(batch, work.groups))
        places = _places(lost)
        kept = [not (place in held or (None, *place[1:]) in held) for place in places]
        if any(kept):
            writer.add(lost.filter(pa.array(kept)))
    return writer.close()


def _is_of(batch: pa.RecordBatch, groups: Sequence[_Group]) -> pa.Array:
    """Which rows are of one of the groups."""
    days = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // (_DAY_MS * 1000)
    kept = np.zeros(len(days), np.bool_)
    for day, topic in groups:
        is_day = days == _begin_ms(day) // _DAY_MS
        kept |= is_day & pc.equal(batch.column("topic"), topic).to_numpy(zero_copy_only=False) if topic else is_day
    return pa.array(kept)


def _held_places(work: _Search) -> set[_Place]:
    """Rows of the part that other files hold. Those that older versions archived have no broker name."""
    held: set[_Place] = set()
    begin, end = work.part.range.start, work.part.range.stop
    for file in work.others:
        table = read_rows(str(Path(work.archive, file.path)), file.topic)
        place = table["physicalOffset"]
        held.update(_places(table.filter(pc.and_(pc.greater_equal(place, begin), pc.less(place, end)))))
    return held


def _places(rows: pa.Table | pa.RecordBatch) -> list[_Place]:
    columns = [rows.column(name).to_pylist() for name in ("brokerName", "physicalOffset", "queueOffset")]
    return list(zip(*columns, strict=True))


def _commit(
    manifest: Manifest,
    groups: dict[_Group, list[ArchivedFile]],
    found: list[ArchivedFile],
    tables: Tables,
    *,
    forget_lost: bool,
) -> RepairResult:
    """Put what was found in place of what was lost, group by group, where it is all of it or may be less."""
    old: list[ArchivedFile] = []
    new: list[ArchivedFile] = []
    unrestored: list[str] = []
    for group, lost in sorted(groups.items()):
        again = [file for file in found if _group(file) == group]
        rows, rows_again = (sum(file.rows for file in files) for files in (lost, again))
        if rows_again > rows:
            raise ArchiveError(
                f"{manifest.archive} lost {rows} messages of {group[0]}, and the log has {rows_again} that no other "
                "file holds: these are not the stores that were archived, or damage was skipped then; nothing changed"
            )
        if rows_again < rows:
            names = ", ".join(file.path for file in lost[:_NAMED_MAX])
            more = f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
            unrestored.append(f"{names}{more}: held {rows} messages, the log still has {rows_again} of them")
        if rows_again == rows or forget_lost:
            old += lost
            new += again
    for file in set(found) - set(new):
        (manifest.archive / file.path).unlink()
    with manifest.held():
        state = manifest.newest()
        if old:
            has_same_rows = not (forget_lost and unrestored)
            gone = {file.path for file in old}
            state = manifest.replace_files(state, gone, new, has_same_rows=has_same_rows, removed=state.removed)
        if not manifest.lost(state.files):
            tables.bring_up(manifest)
    lost_all = [file for files in groups.values() for file in files]
    return RepairResult(
        len(lost_all),
        sum(file.rows for file in lost_all),
        len(new),
        sum(file.rows for file in new),
        state.version,
        tuple(unrestored),
    )
