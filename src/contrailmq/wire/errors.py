"""What can go wrong on the wire, by whose fault it is.

`LocalProtocolError` is ours: a caller asked for something that the protocol cannot carry. `RemoteProtocolError` is the
peer's: its bytes break the protocol. The rest happens between the two: no connection, a connection that ended,
an answer that did not come, an answer that says no. `retriable` says whether the same request may succeed later
or elsewhere; it does not say that the first one had no effect (a timed-out send may have been stored).
"""

from __future__ import annotations

from contrailmq.message import ContrailError, printable
from contrailmq.wire.codes import RETRIABLE_ELSEWHERE, request_name, response_name
from contrailmq.wire.refusals import wants_master

__all__ = [
    "ConnectError",
    "ConnectionClosedError",
    "LocalProtocolError",
    "RemoteProtocolError",
    "RequestTimeoutError",
    "ResponseError",
    "TooManyRequestsError",
    "WireError",
]


class WireError(ContrailError):
    """Root of everything that this package raises."""

    retriable = False


class LocalProtocolError(WireError):
    """We were asked to send what the protocol cannot carry; nothing was sent."""


class RemoteProtocolError(WireError):
    """The peer's bytes break the protocol. `field` names the ext field at fault, when it is one."""

    def __init__(self, text: str, *, field: str | None = None) -> None:
        super().__init__(text)
        self.field = field


class ConnectError(WireError):
    """No connection to the address could be made; nothing was sent."""

    retriable = True

    def __init__(self, address: str, cause: str) -> None:
        super().__init__(f"cannot connect to {address}: {cause}; check that a server listens there and can be reached")
        self.address = address


class ListenError(ConnectError):
    """A port of ours cannot be listened on."""

    def __init__(self, address: str, cause: str) -> None:
        WireError.__init__(
            self, f"cannot listen on {address}: {cause}; stop what listens there or choose another port or address"
        )
        self.address = address


class ConnectionClosedError(WireError):
    """The connection ended before the answer came: whether the peer acted on the request is unknown."""

    retriable = True

    def __init__(self, address: str, cause: str) -> None:
        super().__init__(f"connection to {address} closed: {cause}")
        self.address = address


class TooManyRequestsError(WireError):
    """The bound on unanswered requests of one connection is reached; nothing was sent."""

    retriable = True

    def __init__(self, address: str, limit: int) -> None:
        super().__init__(f"{limit} requests to {address} are unanswered: wait for answers before sending more")
        self.address, self.limit = address, limit


class RequestTimeoutError(WireError):
    """No answer in time: whether the peer acted on the request is unknown."""

    retriable = True

    def __init__(self, address: str, code: int, timeout_s: float) -> None:
        super().__init__(
            f"no answer from {address} to {request_name(code)} within {round(timeout_s, 3):g} s: "
            "the peer is slow, stuck or gone; raise the timeout or look at the peer's log"
        )
        self.address, self.code, self.timeout_s = address, code, timeout_s


class ResponseError(WireError):
    """The peer answered with an error code. `retriable` is True when another broker may take the request.

    `wants_master` is True when the broker took no message because no master serves at its address (`refusals`).
    """

    def __init__(self, code: int, remark: str | None, *, request_code: int, address: str = "") -> None:
        where = f" from {address}" if address else ""
        reason = printable(remark) if remark else "no reason given"
        text = f"{request_name(request_code)}{where} was answered {response_name(code)}: {reason}"
        super().__init__(text)
        self.code, self.remark, self.request_code, self.address = code, remark, request_code, address
        self.retriable = code in RETRIABLE_ELSEWHERE
        self.wants_master = wants_master(code, remark)
