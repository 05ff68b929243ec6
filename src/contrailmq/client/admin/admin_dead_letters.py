"""Administration of dead letters: lists what a group gave up and sends it back, each letter once.

What was sent back is remembered as an offset of the group `contrailmq_dlq_resend` in the dead-letter topic itself: all
letters before it went back. It is stored after the send of each letter was acknowledged. Beside that, the copy names
its letter (property DLQ_RESENT_FROM) and the brokers' index is asked for such a copy before a letter is sent. So a
letter that was chosen out of turn is not sent twice, nor one whose offset was lost when this process or the broker was
killed. Without an index (`messageIndexEnable=false`) a kill between a send and its commit repeats that one letter, a
killed broker those whose offsets it had not saved.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from contrailmq.client.admin.admin_messages import END_OF_TIME_MS, TOOLS_GROUP, AdminMessages
from contrailmq.client.producing.sending import Outgoing, Sender
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import SendResult
from contrailmq.client.settings import ProducerOptions
from contrailmq.message import RESEND_GROUP, MessageQueue, Property, StoredMessage, dlq_topic, retry_topic

RESENT_FROM: Final = "DLQ_RESENT_FROM"  # the letter's offset message id
COPIES_LOOKED_AT: Final = 64  # newest copies of one message in the retry topic; one retry makes one copy
# How much earlier than its letter a copy may seem: the index counts in seconds, and clocks are set back.
COPY_EARLIER_MS: Final = 3_600_000
# Set by the broker that stored the dead letter; a new send gets its own.
_NOT_RESENT: Final = (Property.DELAY, Property.RECONSUME_TIME, Property.MAX_RECONSUME_TIMES, Property.REAL_TOPIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterChoice:
    """Which dead letters: all that were not sent back, or those of them with an id, a key, a time.

    An id is a letter's own (unique or by place) or that of the message it was. Times are those at which messages
    became dead letters, both included. `again` takes what was sent back before too, from the oldest on.
    """

    ids: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    since_ms: int = 0
    until_ms: int = END_OF_TIME_MS
    max_count: int = 100
    again: bool = False

    @property
    def is_partial(self) -> bool:
        return bool(self.ids or self.keys) or self.since_ms > 0 or self.until_ms < END_OF_TIME_MS

    def wants(self, letter: StoredMessage) -> bool:
        if self.ids and self.ids.isdisjoint(ids_of(letter)):
            return False
        if self.keys and self.keys.isdisjoint(letter.keys):
            return False
        return self.since_ms <= letter.store_time_ms <= self.until_ms


@dataclass(slots=True)
class LetterReport:
    """What a resend did, or would do: the letters, the answers to their sends, and how many had been sent before."""

    letters: list[StoredMessage] = field(default_factory=list)
    results: list[SendResult] = field(default_factory=list)
    sent_before: int = 0
    found_ids: set[str] = field(default_factory=set)  # of those that were asked for
    is_cut: bool = False  # more letters were chosen than `max_count`


def ids_of(letter: StoredMessage) -> set[str]:
    """Every id by which somebody may know the letter."""
    names = (Property.ORIGIN_MESSAGE_ID, Property.DLQ_ORIGIN_MESSAGE_ID)
    origins = {letter.properties[name] for name in names if name in letter.properties}
    return {letter.message_id, letter.offset_message_id} | origins


NEW_LETTERS: Final = LetterChoice()


class AdminDeadLetters(AdminMessages):
    """Dead letters."""

    async def dead_letters(self, group: str, *, max_count: int = 100) -> list[StoredMessage]:
        """What the group gave up, oldest first; empty when it has no dead-letter queue."""
        messages: list[StoredMessage] = []
        for queue in await self._letter_queues(group):
            async for message in self._read(queue, await self.min_offset(queue)):
                if len(messages) >= max_count:
                    return messages
                messages.append(message)
        return messages

    async def resend_dead_letter(self, group: str, message: StoredMessage) -> SendResult:
        """Give a dead letter to the group again, and only to it: through its retry topic, with fresh retries.

        The dead letter stays where it is. A group that consumes in order gets it back into its dead-letter queue:
        brokers do not retry for such groups.
        """
        real_group = self._name(group)
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_RESENT}
        properties.setdefault(Property.RETRY_TOPIC, message.topic)
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties[RESENT_FROM] = message.offset_message_id
        outgoing = Outgoing(
            retry_topic(real_group), bytes(message.stored_body), properties, message.message_id, message.flag
        )
        outgoing.sys_flag = message.sys_flag & 0x701  # the body is compressed as it was
        sender = Sender(self._connected(), TOOLS_GROUP, ProducerOptions())
        return await sender.send(outgoing, timeout_s=self.options.request_timeout_s)

    async def choose_dead_letters(self, group: str, choice: LetterChoice = NEW_LETTERS) -> LetterReport:
        """What `resend_dead_letters` would send; sends and remembers nothing."""
        report = LetterReport()
        for queue in await self._letter_queues(group):
            async for letter, _ in self._chosen(group, queue, choice, report):
                report.letters.append(letter)
        return report

    async def resend_dead_letters(self, group: str, choice: LetterChoice = NEW_LETTERS) -> LetterReport:
        """Send the chosen letters to the group again, oldest first, and remember them."""
        report = LetterReport()
        queues = await self._letter_queues(group)
        if queues and not await self.group_config(RESEND_GROUP):
            await self.create_group(RESEND_GROUP)
        for queue in queues:
            async for letter, is_next in self._chosen(group, queue, choice, report):
                report.results.append(await self.resend_dead_letter(group, letter))
                report.letters.append(letter)
                if is_next:
                    await self.set_offset(RESEND_GROUP, queue, letter.queue_offset + 1)
        return report

    async def _letter_queues(self, group: str) -> list[MessageQueue]:
        topic = dlq_topic(self._name(group))
        return await self.queues(topic) if topic in await self.topics() else []

    async def _chosen(
        self, group: str, queue: MessageQueue, choice: LetterChoice, report: LetterReport
    ) -> AsyncIterator[tuple[ReceivedMessage, bool]]:
        """The letters to send, and whether all before each went back, so that it may be remembered by its offset.

        Letters that become such after the start are left for the next time: some may come of this very resend.
        """
        begin, end = await self.min_offset(queue), await self.max_offset(queue)
        known = await self.offset(RESEND_GROUP, queue)
        next_offset = known if begin <= known <= end else begin
        start = begin if choice.again or choice.is_partial else next_offset
        has_copies = retry_topic(self._name(group)) in await self.topics()
        async for letter in self._read(queue, start):
            offset = letter.queue_offset
            if offset >= end:
                return
            if not choice.wants(letter):
                continue
            report.found_ids |= choice.ids & ids_of(letter)
            is_next = offset == next_offset or (offset > next_offset and not choice.is_partial)
            if not choice.again and (offset < next_offset or (has_copies and await self._was_sent(group, letter))):
                report.sent_before += 1
            elif len(report.letters) >= choice.max_count:
                report.is_cut = True
                return
            else:
                yield letter, is_next
            if is_next:
                next_offset = offset + 1

    async def _was_sent(self, group: str, letter: ReceivedMessage) -> bool:
        topic, begin_ms = retry_topic(self._name(group)), max(letter.store_time_ms - COPY_EARLIER_MS, 0)
        copies = await self._query(
            topic, letter.message_id, COPIES_LOOKED_AT, begin_ms, END_OF_TIME_MS, is_unique_key=True
        )
        return any(copy.properties.get(RESENT_FROM) == letter.offset_message_id for copy in copies)
