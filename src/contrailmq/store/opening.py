"""What opening reads: log, queues, index and the notes of the last run, brought to agree with each other."""

from __future__ import annotations

from contrailmq.store.config import StartBounds, StoreConfig
from contrailmq.store.files import Files
from contrailmq.store.parts import Parts
from contrailmq.store.recovery.queue_kinds import unify_queues
from contrailmq.store.recovery.queue_ledger import read_ledger
from contrailmq.store.recovery.recovery import RecoveryReport, load_index, recover
from contrailmq.store.recovery.torn_copies import cut_torn_copies
from contrailmq.store.recovery.truncation import decided_truncation, truncate_log, truncation_done


def load_and_recover(config: StoreConfig, files: Files, parts: Parts, bounds: StartBounds) -> RecoveryReport:
    """The store's lock is ours. On return what the log holds counts as durable, and is."""
    was_clean_exit = not files.exists(config.abort_path)
    log_files = parts.log_files
    log_files.load(is_slave=config.is_slave)
    cut_at = decided_truncation(config.path, files)
    if cut_at is not None:
        truncate_log(config.path, files, log_files, cut_at)
    if not was_clean_exit:
        for file in log_files.files[-2:]:  # the disk works while we walk; the sync is below
            files.start_writing(file.descriptor)
    damaged = parts.queues.load()
    checkpoint = parts.checkpoint.load()
    ledger = read_ledger(config.path, files)
    boot_id = files.boot_id()
    was_power_lost = not was_clean_exit and not (boot_id and ledger is not None and ledger.boot_id == boot_id)
    if config.is_slave and was_power_lost:
        cut_torn_copies(config.path, files, log_files, synced_ms=checkpoint.synced_ms)
    index_damage: list[str] = []
    if parts.index is not None:
        index_damage = load_index(
            parts.index, checkpoint, ledger, log_files.files, was_clean_exit=was_clean_exit, boot_id=boot_id
        )
    report = recover(
        log_files,
        parts.queues,
        parts.index,
        checkpoint=checkpoint,
        ledger=ledger,
        was_clean_exit=was_clean_exit,
        delay_levels=parts.delay_levels,
        damaged=damaged,
        index_damage=index_damage,
        boot_id=boot_id,
        check_body_crc=config.check_crc_on_recover,
        check_record_crc=config.check_crc_on_recover and config.force_verify_prop_crc,
        bounds=bounds,
    )
    if not was_clean_exit or report.cut_bytes:
        # A killed process leaves pages that no sync has covered. From here on they count as durable: make it true.
        # And what recovery erased after the end must not come back.
        for file in log_files.files:
            if file.end > report.walked_from:
                files.sync(file.descriptor)
    unify_queues(parts.queues, log_files, parts.housekeeping.persist)
    return report


def settle_truncation(config: StoreConfig, files: Files, parts: Parts) -> None:
    """After recovery: a cut that was decided is done when queues and index are on the disk without what was cut."""
    if decided_truncation(config.path, files) is None:
        return
    if parts.index is not None:
        parts.index.flush()
    parts.housekeeping.persist()
    truncation_done(config.path, files)
