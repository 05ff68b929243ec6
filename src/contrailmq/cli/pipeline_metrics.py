"""Figures of a job for Prometheus: `contrailmq pipeline --metrics-file FILE archive ...`.

Jobs end, so nothing can be asked of them: they leave a text file for a node exporter's textfile collector, one for each
job that runs, whether it went well or not. What a job prints are its figures. The file is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

# name -> meaning; all are gauges
METRICS: Final = {
    "contrailmq_pipeline_success": "1 if the last run ended well",
    "contrailmq_pipeline_seconds": "how long the last run took",
    "contrailmq_pipeline_end_timestamp_seconds": "when the last run ended",
    "contrailmq_pipeline_figure": "what the last run counted: rows, files, bytes, as it prints them",
    "contrailmq_pipeline_bytes_behind": "bytes of a store's log that were not archived when the last run ended",
}


@dataclass(slots=True)
class _Run:
    """The one command that this process runs."""

    job: str = ""
    path: Path | None = None
    found: object = None


_run = _Run()


def begin(job: str, path: Path | None) -> None:
    """Say what runs, and where its figures are wanted."""
    _run.job, _run.path, _run.found = job, path, None


def note_found(found: object) -> None:
    """Remember what a job prints."""
    _run.found = found


@contextlib.contextmanager
def measured() -> Iterator[None]:
    """Write the file when what is inside has ended, if one is wanted."""
    began_s, is_well = time.monotonic(), False
    try:
        yield
        is_well = True
    finally:
        if _run.path is not None:
            _write(_run.path, text_of(_run.job, time.monotonic() - began_s, is_well, _run.found))


def text_of(job: str, seconds: float, is_well: bool, found: object) -> str:
    """The file: every number that the job printed, by its name."""
    from contrailmq.spark.prometheus import prometheus_text

    label = (("job", job),)
    values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {name: {} for name in METRICS}
    values["contrailmq_pipeline_success"][label] = float(is_well)
    values["contrailmq_pipeline_seconds"][label] = round(seconds, 3)
    values["contrailmq_pipeline_end_timestamp_seconds"][label] = round(time.time(), 3)
    shown: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    if isinstance(found, list):
        values["contrailmq_pipeline_figure"][*label, ("figure", "rows_printed")] = float(len(found))
    for name, value in shown.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            values["contrailmq_pipeline_figure"][*label, ("figure", name)] = float(value)
    for store, behind in _bytes_behind(shown).items():
        values["contrailmq_pipeline_bytes_behind"][*label, ("store", store)] = float(behind)
    return prometheus_text({name: ("gauge", meaning) for name, meaning in METRICS.items()}, values)


def _bytes_behind(found: Mapping[str, Any]) -> dict[str, int]:
    """How far the logs go beyond what an archive of stores holds."""
    offsets = found.get("offsets")
    if not isinstance(offsets, Mapping):
        return {}
    from contrailmq.spark.decoding.store_files import confirmed_end, is_store

    return {
        store: max(0, confirmed_end(store) - offset)
        for store, offset in offsets.items()
        if isinstance(offset, int) and is_store(store)
    }


def _write(path: Path, text: str) -> None:
    from contrailmq.spark.prometheus import replace_text

    try:
        replace_text(path, text)
    except OSError as exc:  # the job is done: what it did must not look as if it had failed
        typer.echo(f"warning: metrics are not in {path}: {exc.strerror}; name a file that may be written", err=True)
