"""The errors a client raises: one small tree.

The class says whose fault it is and what the caller may do, the attributes carry the numbers, the text carries cause
and remedy. `code` is RocketMQ's own number: a broker's response code, or one of the 1000x codes that RocketMQ's
clients use for faults on their side. `retriable` says whether the same call may succeed later without a change.

What happens on the connection has its classes in `wire.errors` (`ConnectError`, `ConnectionClosedError`,
`RequestTimeoutError`, `ResponseError`); calls raise those as they are, and all of both have `ContrailError` as their
root. Nothing foreign leaves the client: a bare OSError never does.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from contrailmq.message import ContrailError, MessageQueue, StoredMessage
from contrailmq.wire.errors import (
    ConnectError,
    ConnectionClosedError,
    RemoteProtocolError,
    RequestTimeoutError,
    ResponseError,
)

CONNECT_BROKER: Final = 10001
ACCESS_BROKER_TIMEOUT: Final = 10002
BROKER_NOT_EXIST: Final = 10003
NO_NAME_SERVER: Final = 10004
NOT_FOUND_TOPIC: Final = 10005
REQUEST_TIMEOUT: Final = 10006
CREATE_REPLY_MESSAGE: Final = 10007


class ClientError(ContrailError):
    """Root of what the clients raise."""

    def __init__(self, text: str, *, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class ClientStateError(ClientError):
    """The client is not in the state that the call needs: not started, shut down, forked, or misused."""


class ClientConfigError(ClientError):
    """A setting is outside its range or two settings exclude each other."""


class NoNameServerError(ClientError):
    """No NameServer is known, or none of the known ones answers."""

    retriable = True

    def __init__(self, text: str) -> None:
        super().__init__(text, code=NO_NAME_SERVER)


class NoRouteError(ClientError):
    """The NameServer knows no broker for the topic."""

    retriable = True

    def __init__(self, topic: str, *, namesrv: str, remedy: str) -> None:
        super().__init__(f"no route for topic {topic!r} at NameServer {namesrv}: {remedy}", code=NOT_FOUND_TOPIC)
        self.topic = topic


class BrokerNotFoundError(ClientError):
    """The route names a broker that has no reachable address (its master is down)."""

    retriable = True

    def __init__(self, broker_name: str, *, cluster: str = "") -> None:
        """Without a name: there is no broker at all, or none in the cluster."""
        text = f"no broker{f' of cluster {cluster!r}' if cluster else ''} is registered at the NameServer: start one"
        if broker_name:
            text = f"broker {broker_name!r} has no master address in the route: it is down or has not registered yet; "
            text += "start it"
        super().__init__(f"{text}, or wait for it", code=BROKER_NOT_EXIST)
        self.broker_name = broker_name


class NotWritableError(BrokerNotFoundError):
    """A topic has no queue to write to: slaves stand in for its masters, or it is read-only."""

    def __init__(self, topic: str, broker_name: str) -> None:
        ClientError.__init__(
            self,
            f"topic {topic!r} has no queue that takes messages: the master of its broker is down (start it), or the "
            "topic's permission is to read only (change it)",
            code=BROKER_NOT_EXIST,
        )
        self.broker_name = broker_name


class ReplyTimeoutError(ClientError, TimeoutError):
    """A request-reply call: the request was stored, but no consumer replied in time."""

    retriable = True

    def __init__(self, topic: str, *, correlation_id: str, timeout_s: float) -> None:
        super().__init__(
            f"waited {timeout_s:.3f} s for the reply to request {correlation_id} on topic {topic!r}: "
            "no consumer replied; is one running, and does it call reply()?",
            code=REQUEST_TIMEOUT,
        )
        self.correlation_id = correlation_id


class SendFailedError(ClientError):
    """Every try of a send failed; the message may or may not have been stored by a try that timed out."""

    retriable = True

    def __init__(
        self, topic: str, *, tries: int, elapsed_s: float, brokers: list[str], cause: ContrailError | None
    ) -> None:
        reason = f"last cause: {cause}" if cause is not None else "the time was used up before the first answer"
        tried = f"{tries} {'try' if tries == 1 else 'tries'} in {elapsed_s:.3f} s"
        where = f" (brokers {', '.join(dict.fromkeys(brokers))})" if brokers else ""
        if isinstance(cause, ResponseError) and cause.wants_master:
            reason += f"; no master took it in that time: start the master of {brokers[-1]}, or give the send more time"
        super().__init__(
            f"send to topic {topic!r} failed after {tried}{where}; {reason}",
            code=error_code(cause) if cause is not None else ACCESS_BROKER_TIMEOUT,
        )
        self.topic = topic
        self.tries = tries
        self.elapsed_s = elapsed_s
        self.brokers = brokers


class OffsetNotStoredError(ClientError):
    """A commit that was asked for did not reach its store; the log has the cause of each queue."""

    retriable = True

    def __init__(self, queues: list[MessageQueue]) -> None:
        super().__init__(f"offsets of {len(queues)} queues were not stored, of {queues[0]} for one: commit again later")
        self.queues = queues


class ReceiptExpiredError(ClientError):
    """The invisible time of a popped message is over: the broker may have given it to another consumer.

    What was done with it may be done again. Nothing was acknowledged or changed.
    """

    def __init__(self, message: StoredMessage, *, late_s: float | None) -> None:
        since = "is no longer in flight under its handle" if late_s is None else f"became visible {late_s:.3f} s ago"
        super().__init__(
            f"message {message.message_id} of topic {message.topic!r} {since}: it was acknowledged, or it may be with "
            "another consumer by now; acknowledge within the invisible time, or prolong it before it ends"
        )
        self.late_s = late_s


class OffsetOutOfRangeError(ClientError):
    """A seek outside what the queue holds."""


def error_code(error: ContrailError) -> int:
    """RocketMQ's number for any error of ours: what its own clients would report."""
    if isinstance(error, ClientError | ResponseError):
        return error.code
    if isinstance(error, RequestTimeoutError):
        return ACCESS_BROKER_TIMEOUT
    return CONNECT_BROKER if isinstance(error, ConnectError | ConnectionClosedError) else 0


def number(ext: Mapping[str, str], name: str) -> int:
    """A number of the fields that a peer sent. One that is missing or no number is the peer's error."""
    try:
        return int(ext[name])
    except (KeyError, ValueError) as exc:
        raise RemoteProtocolError(f"the peer's fields lack or garble {name}: {ext}", field=name) from exc


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not there: the one that it resembles, if there is one."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f": did you mean {near[0]}?" if near else ""
