"""How calls end. gRPC's own status is OK nearly always; the outcome is the `Status` inside the answer."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from contrailmq.client.errors import BrokerNotFoundError, NoRouteError
from contrailmq.message import ContrailError
from contrailmq.proxy.protocol import Wire, v2
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import ConnectError, ConnectionClosedError, RequestTimeoutError, ResponseError


class Code(IntEnum):
    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402


class Refused(ContrailError):
    """A call ends with this code and sentence."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


_CODES: Final[dict[int, Code]] = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.MESSAGE_ILLEGAL: Code.MESSAGE_CORRUPTED,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.NO_MESSAGE: Code.INVALID_RECEIPT_HANDLE,  # of a handle: not, or no longer, in flight
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


def outcome(cause: ContrailError) -> Wire:
    """The status that an error of ours, of a broker or of a NameServer becomes."""
    if isinstance(cause, Refused):
        return status(cause.code, str(cause))
    if isinstance(cause, NoRouteError):
        return status(Code.TOPIC_NOT_FOUND, str(cause))
    if isinstance(cause, ResponseError) and cause.wants_master:
        # Brokers say it with SYSTEM_BUSY, which would be TOO_MANY_REQUESTS, as from RocketMQ's proxy. Clients slow down
        # then, though nothing is overloaded; after this code they try another queue at once.
        return status(Code.INTERNAL_SERVER_ERROR, str(cause))
    if isinstance(cause, ResponseError):
        return status(_CODES.get(cause.code, Code.INTERNAL_SERVER_ERROR), str(cause))
    if isinstance(cause, RequestTimeoutError | ConnectError | ConnectionClosedError | BrokerNotFoundError):
        return status(Code.PROXY_TIMEOUT, str(cause))
    return status(Code.INTERNAL_SERVER_ERROR, str(cause))


def status(code: Code, text: str = "") -> Wire:
    return v2.Status(code=code, message=text or code.name)


def overall(results: list[Wire]) -> Wire:
    """Of several statuses: the first, with its sentence, where all have one code; else MULTIPLE_RESULTS."""
    return results[0] if len({result.code for result in results}) == 1 else status(Code.MULTIPLE_RESULTS)
