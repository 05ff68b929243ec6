"""Answers to brokers that ask about half messages of an exactly-once write, from its decisions.

`answer` is the rule. `Answerer` is a member of the write's producer group that applies it. The driver starts one as a
process of its own (`start_answering`): Spark's Python processes on the driver live for one call only. It ends with
the process that forks those, and so with the driver, or when there were no decisions for as long as brokers ask. While
there is none, brokers ask in vain and ask again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contrailmq.client.results import TransactionState
from contrailmq.message import ContrailError, Message, StoredMessage
from contrailmq.spark.sinks.decisions import Decisions
from contrailmq.spark.sinks.exactly_once import Committer, decisions_of
from contrailmq.spark.sinks.halves import MARK, keys_of
from contrailmq.spark.sinks.sending import SinkSettings

_LOOK_S: Final = 1.0
_ASKED_S: Final = 900.0  # 15 checks, one every 30 s, and as much again
_log: Final = logging.getLogger(__name__)


def answer(half: StoredMessage, decisions: Decisions, log_id: str) -> TransactionState | None:
    """What became of a half message; None if it is in a decision that is still to be carried out."""
    owner, _, batch = half.properties.get(MARK, "").partition("/")
    if owner != log_id or not batch:
        return TransactionState.UNKNOWN  # another query's, of the same group
    decision = decisions.find(batch)
    if decision is not None:
        return None if half.properties.get("UNIQ_KEY") in set(keys_of(decision.places)) else TransactionState.ROLLBACK
    # Of a batch that is past, all that was decided is visible, and confirmed: what is asked about was not decided.
    return TransactionState.ROLLBACK if decisions.is_past(batch) else TransactionState.UNKNOWN


class Answerer:
    """A producer that sends nothing and answers check-backs."""

    def __init__(self, settings: SinkSettings) -> None:
        # Only the process that answers has a use for it: a source's planner, which loads this file, has none.
        from contrailmq.client.blocking.sync import TransactionProducer

        assert settings.exactly_once is not None
        self._settings, self._log_id = settings, settings.exactly_once.log_id
        self._decisions = decisions_of(settings.exactly_once)
        self._producer = TransactionProducer(
            settings.group,
            namesrv=settings.namesrv,
            execute=_execute_nothing,
            check=self.check,
            tls=settings.access.tls(),
            credentials=settings.access.credentials(),
        )

    def start(self) -> None:
        self._producer.start()

    def close(self) -> None:
        self._producer.shutdown()

    def check(self, half: StoredMessage) -> TransactionState:
        state = answer(half, self._decisions, self._log_id)
        if state is not None:
            return state
        try:
            Committer(self._settings).recover()  # it ends this one, too
        except ContrailError as exc:
            _log.warning("%s is committed and not visible yet, and will be asked about again: %s", half.message_id, exc)
        return TransactionState.UNKNOWN


def _execute_nothing(_message: Message, _arg: object) -> TransactionState:
    raise AssertionError("an answerer sends nothing")


def start_answering(settings: SinkSettings) -> None:
    """Have somebody answer for this write as long as the parent of this process lives, unless somebody does."""
    assert settings.exactly_once is not None
    with open(Path(settings.exactly_once.folder) / ".answering", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(os.getppid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
    )
    assert process.stdin is not None
    with process.stdin:
        pickle.dump(settings, process.stdin)
    process.returncode = 0  # nobody waits for it: it outlives this process


def serve(
    settings: SinkSettings, is_wanted: Callable[[], bool], *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Answer until nobody wants it any more; at once nothing if another one does."""
    assert settings.exactly_once is not None
    folder = Path(settings.exactly_once.folder)
    with open(folder / ".answering", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        answerer = Answerer(settings)
        answerer.start()
        try:
            while is_wanted():
                sleep(_LOOK_S)
        finally:
            answerer.close()


def _is_wanted_by(parent: int, settings: SinkSettings) -> Callable[[], bool]:
    assert settings.exactly_once is not None
    folder, silent_s = Path(settings.exactly_once.folder), settings.exactly_once.immunity_s + _ASKED_S

    def is_wanted() -> bool:
        try:
            os.kill(parent, 0)
            return time.time() - folder.stat().st_mtime < silent_s
        except OSError:  # the parent or the folder is gone
            return False

    return is_wanted


if __name__ == "__main__":
    given: SinkSettings = pickle.load(sys.stdin.buffer)
    serve(given, _is_wanted_by(int(sys.argv[1]), given))
