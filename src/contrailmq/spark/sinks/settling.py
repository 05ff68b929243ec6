"""Carrying out a decision: every half message of a batch becomes visible, once.

An end whose answer was lost may have been carried out. A broker of RocketMQ would carry out a second one, too, and the
row would be there twice. So before an end is repeated, the queues are read from where they ended before the batch: a
row whose unique key is there is visible. First a pause: a request that a broker has taken and not yet served must have
been served or thrown away by then (RocketMQ throws it away after 3 s).

An end is refused if the half message was put back elsewhere by checks; then its newest place is looked up in the
half messages' own queue. If nothing of it can be ended and it is not visible, it was given up, and that is an error.

A broker ends a half message into its queue though the topic was deleted or has fewer queues by now, and nobody would
see the row. So it is asked first whether the queues are there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.raw_halves import End, HalfPlace
from contrailmq.client.errors import BrokerNotFoundError, NoRouteError, NotWritableError
from contrailmq.client.results import PullStatus
from contrailmq.message import ContrailError, MessageQueue, Property, StoredMessage, SystemTopic
from contrailmq.message.codec import decode_record
from contrailmq.spark.runtime.patience import Patience
from contrailmq.spark.sinks.decisions import Decision
from contrailmq.spark.sinks.halves import end_all, keys_of
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import ResponseError

# Until a request that was taken is served or thrown away; waitTimeMillsInTransactionQueue of RocketMQ is 3 s.
DOUBT_S: Final = 5.0
_ROUNDS_MAX: Final = 5  # in which the same half messages are refused
_PULL_COUNT: Final = 1024
_LOOKS_MAX: Final = 5  # for a queue: one that came to be with the batch may reach a NameServer a moment later
_LOOK_S: Final = 1.0
_Result = TypeVar("_Result")


class HalvesLostError(ContrailError):
    """Half messages of a committed batch were given up by their broker before they were ended."""


class QueuesGoneError(ContrailError):
    """Rows were sent to queues that their topic does not have any more."""


class Settler:
    """Ends half messages of one producer group. Owned by one caller."""

    def __init__(
        self,
        client: QueueReader,
        group: str,
        *,
        away_timeout_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client, self._group, self._sleep = client, group, sleep
        self._away_timeout_s = away_timeout_s

    def ends(self, places: Sequence[HalfPlace]) -> dict[MessageQueue, int]:
        """Where the queues end that these half messages are meant for."""
        queues = sorted({place.queue for place in places})
        for topic in {queue.topic for queue in queues}:
            self._patiently(lambda topic=topic: self._client.publish_queues(topic))  # type: ignore[misc]
        gone = self._gone(places)
        if gone:
            raise QueuesGoneError(
                f"{gone} since rows of this batch were sent to it: nothing of the batch is visible; start again, "
                "and it is sent to the queues that are there now"
            )
        return {queue: self._patiently(lambda queue=queue: self._client.max_offset(queue)) for queue in queues}  # type: ignore[misc]

    def roll_back(self, places: Sequence[HalfPlace]) -> None:
        """As far as brokers answer; they ask about the rest."""
        end_all(self._client, places, End.ROLLBACK, group=self._group)

    def carry_out(self, decision: Decision, *, is_new: bool) -> None:
        """Return when every row of the batch is visible. `is_new`: nobody has begun with it."""
        left = decision.places
        if not is_new:
            gone = self._gone(left)
            if gone:
                raise QueuesGoneError(
                    f"{gone}, and {len(left)} rows of {decision.batch} are committed: create the topic again with as "
                    "many queues as it had, and start again"
                )
            left = self._not_visible(decision, left)
        patience = Patience(self._client, self._away_timeout_s, sleep=self._sleep)
        rounds = 0
        while left:
            failed = [
                (place, _meant(place, exc)) for place, exc in end_all(self._client, left, End.COMMIT, group=self._group)
            ]
            if not failed:
                return
            errors = [exc for _, exc in failed if not isinstance(exc, ResponseError) or patience.is_away(exc)]
            if errors:
                patience.wait(errors[0])
                self._sleep(DOUBT_S)
            left = self._not_visible(decision, [place for place, _ in failed])
            refused = {place.unique_key: exc for place, exc in failed if isinstance(exc, ResponseError)}
            if not errors and left:
                rounds += 1
                if rounds >= _ROUNDS_MAX:
                    raise _lost(decision, left, refused[left[0].unique_key])
            if refused and left:
                left = self._newest_places(left)

    def _gone(self, places: Sequence[HalfPlace]) -> str:
        """Which queue of these half messages is gone, in words; empty if all are there."""
        wanted = {place.queue for place in places}
        for look in range(_LOOKS_MAX):
            if look:
                self._sleep(_LOOK_S)
            missing = self._patiently(lambda: self._missing(wanted))
            if not missing:
                return ""
        topic, broker_name, queue_id = min(missing)
        return f"queue {queue_id} of {topic} on {broker_name} is gone (one of {len(missing)} queues)"

    def _missing(self, wanted: set[MessageQueue]) -> set[MessageQueue]:
        """Queues that no NameServer has, of brokers that are there."""
        found: set[MessageQueue] = set()
        for topic in {queue.topic for queue in wanted}:
            with contextlib.suppress(NoRouteError, NotWritableError):
                found.update(self._client.queues(topic))
                found.update(self._client.publish_queues(topic))
        missing = wanted - found
        for queue in missing:
            if not self._client.has_broker(queue.broker_name):
                raise BrokerNotFoundError(queue.broker_name)
        return missing

    def _not_visible(self, decision: Decision, places: Sequence[HalfPlace]) -> list[HalfPlace]:
        wanted, queues = set(keys_of(places)), {place.queue for place in places}
        begins = {queue: begin for queue, begin in decision.begins.items() if queue in queues}
        seen = {message.properties.get(Property.UNIQUE_KEY, "") for message in self._messages(begins)}
        return [place for place in places if place.unique_key in wanted - seen]

    def _newest_places(self, places: Sequence[HalfPlace]) -> list[HalfPlace]:
        """The same half messages where they are now: checks put them back at the end of their queue."""
        begins: dict[MessageQueue, int] = {}
        for place in places:
            half = MessageQueue(SystemTopic.HALF, place.queue.broker_name, 0)
            begins[half] = min(place.half_offset, begins.get(half, place.half_offset))
        newest = {place.unique_key: place for place in places}
        for message in self._messages(begins):
            key = message.properties.get(Property.UNIQUE_KEY, "")
            if key in newest:
                newest[key] = newest[key]._replace(
                    half_offset=message.queue_offset, physical_offset=message.physical_offset
                )
        return list(newest.values())

    def _messages(self, begins: Mapping[MessageQueue, int]) -> Iterator[StoredMessage]:
        """What queues hold from these offsets on."""
        for queue, begin in begins.items():
            end, offset = self._patiently(lambda queue=queue: self._client.max_offset(queue)), begin  # type: ignore[misc]
            while offset < end:
                pulled = self._patiently(
                    lambda queue=queue, offset=offset: self._client.pull(queue, offset, max_count=_PULL_COUNT)  # type: ignore[misc]
                )
                position = 0
                while pulled.status is PullStatus.FOUND and position < len(pulled.body):
                    message = decode_record(pulled.body, position)
                    position += message.size_bytes
                    yield message
                if pulled.next_offset <= offset:
                    break
                offset = pulled.next_offset

    def _patiently(self, do: Callable[[], _Result]) -> _Result:
        return Patience(self._client, self._away_timeout_s, sleep=self._sleep).call(do)


def _meant(place: HalfPlace, exc: ContrailError) -> ContrailError:
    """A slave that stands in for a master ends nothing: as if no broker were there, the master is waited for."""
    if isinstance(exc, ResponseError) and exc.code == ResponseCode.SLAVE_NOT_AVAILABLE:
        return BrokerNotFoundError(place.queue.broker_name)
    return exc


def _lost(decision: Decision, left: Sequence[HalfPlace], exc: ContrailError) -> HalvesLostError:
    return HalvesLostError(
        f"{len(left)} of {len(decision.places)} rows of {decision.batch} cannot be made visible: their broker refuses "
        f"({exc}); if it gave the half messages up, they are in {SystemTopic.CHECK_MAX_TIME} (first: "
        f"{left[0].unique_key} for {left[0].queue.topic}): have them checked again (RESUME_CHECK_HALF_MESSAGE), raise "
        "transactionTimeoutMs if the driver was away for longer than the broker asks, and start again"
    )
