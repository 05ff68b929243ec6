"""Dead letters: which groups have some, pages of them, sending them back, and exporting them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

from contrailmq.client import LetterChoice
from contrailmq.console.model.asking import Asking, Seen
from contrailmq.console.model.groups import no_such_group
from contrailmq.console.model.messages import MessageRow, row_of
from contrailmq.console.model.paging import ROWS, Page
from contrailmq.console.model.topics import TopicKind, Topics
from contrailmq.message import DLQ_PREFIX, ContrailError, MessageQueue, StoredMessage, dlq_topic

RESEND_STEP: Final = 20  # letters between two reports of progress
EXPORT_STEP: Final = 200


@dataclass(frozen=True, slots=True)
class LetterGroup:
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a resend is. `sent_before` were left out: they had gone back earlier."""

    sent: int
    sent_before: int
    total: int
    is_done: bool


class Letters:
    def __init__(self, asking: Asking, topics: Topics) -> None:
        self._asking = asking
        self._topics = topics

    async def groups(self) -> Seen[list[LetterGroup]]:
        """Groups that have a dead-letter queue, those with most letters first."""
        seen = await self._topics.all()
        names = [row.name.removeprefix(DLQ_PREFIX) for row in seen.value if row.kind == TopicKind.DEAD_LETTER]
        notes = list(seen.notes)
        found = []
        for name in names:
            try:
                found.append(LetterGroup(name, sum(end - begin for _, begin, end in await self._spans(name))))
            except ContrailError as exc:
                notes.append(f"the dead letters of {name} cannot be counted: {exc}")
        return Seen(sorted(found, key=lambda group: (-group.count, group.name)), tuple(notes))

    async def page(self, group: str, *, number: int = 1, size: int = ROWS) -> Page[MessageRow]:
        """The newest of each queue first."""
        spans = await self._spans(group)
        if not spans and group not in await self._asking.groups():  # letters outlive their group
            raise no_such_group(group)
        total = sum(end - begin for _, begin, end in spans)
        number = max(1, min(number, max(1, -(-total // size))))
        skip, rows = (number - 1) * size, list[MessageRow]()
        for queue, begin, end in spans:
            if skip >= end - begin:
                skip -= end - begin
                continue
            last = end - skip
            first = max(begin, last - (size - len(rows)))
            found = await self._asking.read_range(queue, first, last)
            rows += [row_of(letter, queue) for letter in reversed(found)]
            skip = 0
            if len(rows) >= size:
                break
        return Page(rows, number, total)

    async def resend(self, group: str, rows: Iterable[MessageRow] | None = None) -> AsyncIterator[Progress]:
        """Send letters to the group again, all or these; those that went back before are left out.

        Yields how far it is. Stopping in between loses nothing: what was sent is remembered (`Admin`).
        """
        self._asking.require_writing()
        ids = None if rows is None else [await self._offset_id(row) for row in rows]
        total = len(ids) if ids is not None else sum(end - begin for _, begin, end in await self._spans(group))
        sent = before = 0
        if ids is not None:
            for start in range(0, len(ids), RESEND_STEP):
                part = frozenset(ids[start : start + RESEND_STEP])
                report = await self._asking.resend_dead_letters(group, LetterChoice(ids=part, max_count=RESEND_STEP))
                sent, before = sent + len(report.results), before + report.sent_before
                yield Progress(sent, before, total, is_done=start + RESEND_STEP >= len(ids))
            return
        while True:
            report = await self._asking.resend_dead_letters(group, LetterChoice(max_count=RESEND_STEP))
            sent, before = sent + len(report.results), before + report.sent_before
            yield Progress(sent, max(before, total - sent if not report.is_cut else before), total, not report.is_cut)
            if not report.is_cut:
                return

    async def export(self, group: str) -> AsyncIterator[list[StoredMessage]]:
        """Every letter that is there now, oldest first within each queue."""
        for queue, begin, end in await self._spans(group):
            for first in range(begin, end, EXPORT_STEP):
                yield list(await self._asking.read_range(queue, first, min(first + EXPORT_STEP, end)))

    async def _spans(self, group: str) -> list[tuple[MessageQueue, int, int]]:
        topic = dlq_topic(group)
        if topic not in {row.name for row in (await self._topics.all()).value}:
            return []
        return [
            (queue, await self._asking.min_offset(queue), await self._asking.max_offset(queue))
            for queue in await self._asking.queues(topic)
        ]

    async def _offset_id(self, row: MessageRow) -> str:
        found = await self._asking.read_range(row.queue, row.queue_offset, row.queue_offset + 1)
        if not found:
            raise ContrailError(f"the dead letter {row.message_id} is gone: it was cleaned up")
        return found[0].offset_message_id
