"""How a broker says that no master serves at its address. It has stored nothing, and the master may be there soon.

    slave        the send reached a slave, perhaps one that stands in for its master
    returning    the master is back, and does not serve until it has asked its slaves how far they have come

The codes are RocketMQ's and mean other things too, such as too much load or a full disk. So brokers write one of these
texts, and a client goes by the text. RocketMQ's own slaves answer with one text for all of these things: nobody can
tell there.
"""

from __future__ import annotations

from typing import Final

from contrailmq.wire.codes import ResponseCode

__all__ = ["MASTER_ASKS_SLAVES", "slave_takes_no_messages", "wants_master"]

MASTER_ASKS_SLAVES: Final = (
    "this master has come back and asks its slaves how far they have come: try again in a moment"
)
_SEND_TO_MASTER: Final = " and takes no messages: send to the master"


def slave_takes_no_messages(broker_name: str, broker_id: int) -> str:
    """A slave's answer to every send, with SYSTEM_BUSY."""
    return f"[REJECTREQUEST]system busy, {broker_name} is a slave (brokerId {broker_id}){_SEND_TO_MASTER}"


def wants_master(code: int, remark: str | None) -> bool:
    """Whether an answer is one of these refusals."""
    if code == ResponseCode.SYSTEM_BUSY:
        return remark is not None and remark.endswith(_SEND_TO_MASTER)
    return code == ResponseCode.SERVICE_NOT_AVAILABLE and remark == MASTER_ASKS_SLAVES
