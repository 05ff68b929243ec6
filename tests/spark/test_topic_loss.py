"""What a read of a topic makes of messages that are missing, of answers that repeat some, and of a broker that is away.

The fakes answer as no sound broker does; `test_rocketmq_source.py` has the one that does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrailmq import Message, Producer
from contrailmq.client.blocking.raw import QueueReader, RawPull
from contrailmq.client.blocking.sync_admin import Admin
from contrailmq.client.errors import BrokerNotFoundError, NoRouteError
from contrailmq.client.results import PullStatus
from contrailmq.message import MessageQueue
from contrailmq.spark.runtime.patience import BrokerAwayError
from contrailmq.spark.sources.topic_plan import (
    DataLossError,
    QueueRange,
    TopicSettings,
)
from contrailmq.spark.sources.topic_pulls import read_range
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError
from spark.test_rocketmq_source import Q0, FakeBroker, read, settings_of
from waiting_for import until

WHOLE = QueueRange(Q0, 0, 40)


class Holed(FakeBroker):
    """Lost some messages, and answers as if there never had been any in their place."""

    def __init__(self, *lost: int) -> None:
        super().__init__({Q0: 40})
        self.lost = set(lost)

    def record(self, queue: MessageQueue, number: int) -> bytes:
        return b"" if number in self.lost else super().record(queue, number)


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ((0,), "offsets 0 to 1 are"),
        ((9, 10, 11), "offsets 9 to 12 are"),  # the end of a pull, and the beginning of the next
        ((13, 17), "offsets 13 to 14 are"),
        ((39,), "offsets 39 to 40 are"),
    ],
)
@pytest.mark.parametrize("batch_bytes", ["1024", "1000000"])
def test_messages_that_are_missing_anywhere_in_a_range_are_loss(
    lost: tuple[int, ...], named: str, batch_bytes: str
) -> None:
    options = {"batchBytes": batch_bytes, "pullBatchSize": "10"}
    with pytest.raises(DataLossError, match=f"Orders/broker-a/0: {named} not on the broker any more"):
        read(Holed(*lost), WHOLE, **options)
    left = [number for number in range(40) if number not in lost]
    assert read(Holed(*lost), WHOLE, failOnDataLoss="false", **options) == left
    assert read(Holed(*lost), WHOLE, sqlExpression="true", **options) == left  # a filter may have passed over them


class Passing(FakeBroker):
    """Says of some offsets that none of them matches."""

    def __init__(self, passed: range) -> None:
        super().__init__({Q0: 40})
        self.passed = passed

    def pull(self, queue: MessageQueue, offset: int, **limits: Any) -> RawPull:
        if offset in self.passed:
            return RawPull(PullStatus.NO_MATCHED_MESSAGE, self.passed.stop, 0, 40, b"")
        return super().pull(queue, offset, **{**limits, "max_count": 10})


@pytest.mark.parametrize("passed", [range(10), range(10, 20), range(30, 40)])
def test_messages_that_were_passed_over_are_loss_unless_a_filter_was_given(passed: range) -> None:
    broker = Passing(passed)
    with pytest.raises(DataLossError, match=f"offsets {passed.start} to {passed.stop} are not on the broker"):
        read(broker, WHOLE)
    left = [number for number in range(40) if number not in passed]
    assert read(broker, WHOLE, failOnDataLoss="false") == left
    assert read(broker, WHOLE, sqlExpression="n > 0") == left


class Stumbling(FakeBroker):
    """Gives `back` messages before the one that was asked for, and asks the client to go on so many before the end."""

    def __init__(self, back: int, ahead: int) -> None:
        super().__init__({Q0: 40})
        self.back, self.ahead = back, ahead

    def pull(self, queue: MessageQueue, offset: int, **limits: Any) -> RawPull:
        pulled = super().pull(queue, max(0, offset - self.back), **{**limits, "max_count": 12})
        return pulled._replace(next_offset=pulled.next_offset - self.ahead if pulled.next_offset < 40 else 40)


@pytest.mark.parametrize("batch_bytes", ["1024", "1000000"])
@pytest.mark.parametrize(("back", "ahead"), [(3, 0), (0, 4), (2, 3)])
def test_messages_that_an_answer_repeats_come_once(back: int, ahead: int, batch_bytes: str) -> None:
    for options in ({}, {"failOnDataLoss": "false"}):
        assert read(Stumbling(back, ahead), WHOLE, batchBytes=batch_bytes, **options) == list(range(40))


class Standing(FakeBroker):
    """Says that it found something: nothing, or nothing to go on with."""

    def __init__(self, pulled: RawPull) -> None:
        super().__init__({Q0: 40})
        self.pulled = pulled

    def pull(self, queue: MessageQueue, offset: int, **limits: Any) -> RawPull:
        return self.pulled


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}, {"sqlExpression": "n > 0"}])
def test_answers_that_lead_nowhere_are_errors(options: dict[str, str]) -> None:
    nothing = RawPull(PullStatus.FOUND, 40, 0, 40, b"")
    with pytest.raises(DataLossError, match="asked for 0, the broker gives 0 bytes and 40 as the next offset"):
        read(Standing(nothing), WHOLE, **options)
    again = RawPull(PullStatus.FOUND, 0, 0, 40, FakeBroker({Q0: 40}).record(Q0, 0))
    with pytest.raises(DataLossError, match="asked for 0, the broker gives .* bytes and 0 as the next offset"):
        read(Standing(again), WHOLE, **options)


class Refusing(FakeBroker):
    """Answers no pull."""

    def __init__(self, exc: Exception) -> None:
        super().__init__({Q0: 40})
        self.exc = exc

    def pull(self, queue: MessageQueue, offset: int, **limits: Any) -> RawPull:
        raise self.exc


NO_ROUTE = NoRouteError("Orders", namesrv="none:1", remedy="create it")


def response_error(code: ResponseCode) -> ResponseError:
    return ResponseError(int(code), "no", request_code=RequestCode.PULL_MESSAGE, address="none:2")


def test_a_topic_is_gone_when_its_broker_is_there_without_it() -> None:
    for exc in (NO_ROUTE, response_error(ResponseCode.TOPIC_NOT_EXIST)):
        broker = Refusing(exc)
        with pytest.raises(DataLossError, match="went away before offsets 0 to 40 were read"):
            read(broker, WHOLE)
        assert read(broker, WHOLE, failOnDataLoss="false") == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_broker_that_is_away_or_refuses_has_lost_nothing(fails: str) -> None:
    with pytest.raises(BrokerAwayError, match="broker broker-a was away for 0.0 s .* 'broker-a' has no master address"):
        read(Refusing(BrokerNotFoundError(Q0.broker_name)), WHOLE, failOnDataLoss=fails, brokerAwayTimeoutMs="0")
    with pytest.raises(ResponseError):
        read(Refusing(response_error(ResponseCode.SYSTEM_ERROR)), WHOLE, failOnDataLoss=fails)


def offsets(part: QueueRange, settings: TopicSettings, reader: QueueReader) -> list[int]:
    batches = read_range(part, settings, reader)
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


def test_a_real_broker_that_is_away_is_an_error_and_a_topic_that_it_deleted_is_loss(tmp_path: Path) -> None:
    with LocalCluster(store=tmp_path) as cluster:
        with Producer("filling", namesrv=cluster.namesrv) as producer:
            queue = producer.send(Message("Orders", b"one")).queue
        options = {"nameServer": cluster.namesrv, "brokerAwayTimeoutMs": "0"}
        part, lenient = QueueRange(queue, 0, 1), settings_of(failOnDataLoss="false", **options)
        with QueueReader(namesrv=cluster.namesrv) as reader:
            assert offsets(part, lenient, reader) == [0]
            assert reader.has_broker(queue.broker_name)
            cluster.stop_broker()
            until(lambda: not reader.has_broker(queue.broker_name))
        with QueueReader(namesrv=cluster.namesrv) as fresh, pytest.raises(BrokerAwayError):
            offsets(part, lenient, fresh)
        cluster.restart_broker()
        with QueueReader(namesrv=cluster.namesrv) as fresh:
            until(lambda: fresh.has_broker(queue.broker_name))
            assert offsets(part, lenient, fresh) == [0]
        with Admin(namesrv=cluster.namesrv) as admin:
            admin.delete_topic("Orders")
        with QueueReader(namesrv=cluster.namesrv) as fresh:
            assert offsets(part, lenient, fresh) == []
            with pytest.raises(DataLossError, match="went away before offsets 0 to 1 were read"):
                offsets(part, settings_of(nameServer=cluster.namesrv), fresh)
