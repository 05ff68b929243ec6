"""What an acknowledgement waits for: the one place between a stored message and its answer.

Whoever is told that a message is stored relies on finding it after a crash. So an answer leaves when

1. its record is durable, where the sender waits for that under SYNC_FLUSH (parked.py), and enough slaves have it, where
   it waits for them under SYNC_MASTER (replicas.py), both at once, and then
2. the topics and groups that it relies on are kept (keeping.py),

or when one of these cannot be: then the answer is that `Problem`. A further condition is one more `Wait` in the list,
and a field in `Needs` that says for what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from contrailmq.broker.state.config_files import TableSaveError
from contrailmq.broker.state.keeping import Keeping
from contrailmq.broker.state.latencies import RequestLatencies
from contrailmq.broker.state.parked import Outcome, ParkedAnswers
from contrailmq.broker.state.replicas import Replicas
from contrailmq.store import MessageStore
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.peer import Peer


class Needs(NamedTuple):
    """What must be true before a message is acknowledged."""

    durable_up_to: int = 0  # of the log; 0: its sender does not wait for the disk
    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    replicated_up_to: int = 0  # of the log; 0: its sender does not wait for slaves


class Problem(NamedTuple):
    """Why a stored message is not acknowledged. `is_late`: it may still become what was asked for."""

    code: ResponseCode
    remark: str
    is_late: bool = False


Then = Callable[[Problem | None], None]
Wait = Callable[[Needs, Then], bool]  # False: there is nothing to wait for. Otherwise the call comes later, and once.
Render = Callable[[Problem | None], bytes]


class Acknowledging:
    """Owner: the node. Runs on the loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        parked: ParkedAnswers,
        keeping: Keeping,
        replicas: Replicas,
        monotonic_ms: Callable[[], int],
        latencies: RequestLatencies,
    ) -> None:
        self._store = store
        self._latencies = latencies
        self._parked = parked
        self._keeping = keeping
        self._monotonic_ms = monotonic_ms
        self._replicas = replicas
        # Without slaves to wait for, nobody asks for each message whether it waits for them.
        until_safe = self._until_safe if replicas.is_awaited else self._until_durable
        self._waits: list[Wait] = [until_safe, self._until_kept]

    @property
    def waits(self) -> bool:
        """Whether a message is to be more than stored before its answer leaves: synced, or on slaves."""
        return self._store.config.is_sync_flush or self._replicas.is_awaited

    def answer(self, connection: Peer, command: Command, needs: Needs, render: Render) -> bytes | None:
        """The answer, or none yet: it leaves when all that it needs is there, or cannot be."""

        began_ns = self._latencies.began_ns

        def leave(problem: Problem | None) -> None:
            if connection.is_open and not command.is_oneway:
                answer = render(problem)
                connection.reply(answer)
                self._latencies.note_late(command.code, answer, began_ns)

        return None if self._wait(0, needs, leave) else render(None)

    def confirm(
        self,
        connection: Peer,
        command: Command,
        end_offset: int,
        *,
        topics: Sequence[str] = (),
        groups: Sequence[str] = (),
        ext: Fields | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> bytes | None:
        """The answer of a request that stored a message which ends there: it says only that the message is safe."""
        needs = Needs(
            durable_up_to=end_offset if self._store.config.is_sync_flush else 0,
            topics=topics,
            groups=groups,
            replicated_up_to=end_offset if self._replicas.is_awaited else 0,
        )

        def render(problem: Problem | None) -> bytes:
            if problem is None:
                return encode_response(command, ResponseCode.SUCCESS, ext, body, remark)
            return encode_response(command, problem.code, None, body, problem.remark)

        return self.answer(connection, command, needs, render)

    def _wait(self, begin: int, needs: Needs, then: Then) -> bool:
        """For the conditions from the one numbered `begin` on; False, and no call, when none is open."""
        return any(
            self._waits[number](needs, partial(self._over, number + 1, needs, then))
            for number in range(begin, len(self._waits))
        )

    def _over(self, following: int, needs: Needs, then: Then, problem: Problem | None) -> None:
        if problem is not None or not self._wait(following, needs, then):
            then(problem)

    def _until_safe(self, needs: Needs, then: Then) -> bool:
        """On this disk and on slaves: the slower of the two is waited for, not one after the other."""
        both = _Both(then)
        if not self._until_replicated(needs, both.one_is_over):
            return self._until_durable(needs, then)
        if not self._until_durable(needs, both.one_is_over):
            both.one_is_over(None)
        return True

    def _until_replicated(self, needs: Needs, then: Then) -> bool:
        end_offset = needs.replicated_up_to
        if not end_offset:
            return False

        def settled(outcome: Outcome) -> None:
            if outcome is Outcome.DURABLE:
                then(None)
            else:
                then(Problem(ResponseCode.FLUSH_SLAVE_TIMEOUT, self._replicas.late_text(end_offset), is_late=True))

        return self._replicas.wait(end_offset, settled)

    def _until_durable(self, needs: Needs, then: Then) -> bool:
        if not needs.durable_up_to:
            return False
        timeout_ms = self._store.config.sync_flush_timeout

        def settled(outcome: Outcome) -> None:
            if outcome is Outcome.DURABLE:
                then(None)
            elif outcome is Outcome.TIMED_OUT:
                remark = f"stored, but not synced to disk within syncFlushTimeout={timeout_ms} ms"
                then(Problem(ResponseCode.FLUSH_DISK_TIMEOUT, remark, is_late=True))
            else:
                then(Problem(ResponseCode.SERVICE_NOT_AVAILABLE, self._store.unwritable_reason))

        self._parked.park(needs.durable_up_to, self._monotonic_ms() + timeout_ms, settled)
        return True

    def _until_kept(self, needs: Needs, then: Then) -> bool:
        def kept(error: TableSaveError | None) -> None:
            remark = f"the message is stored, but its topic or group may be forgotten by a crash: {error}"
            then(None if error is None else Problem(ResponseCode.SERVICE_NOT_AVAILABLE, remark))

        return self._keeping.wait(needs.topics, needs.groups, kept)


class _Both:
    """Two conditions at once: over when both are, or with the first problem."""

    __slots__ = ("_open", "_then")

    def __init__(self, then: Then) -> None:
        self._then: Then | None = then
        self._open = 2

    def one_is_over(self, problem: Problem | None) -> None:
        self._open -= 1
        if self._then is not None and (problem is not None or not self._open):
            then, self._then = self._then, None
            then(problem)
