"""Who delivers what becomes due in a group: delay levels, timers, and questions about half messages.

One broker of a group does it, and this is the one place that says which, and where to:

    a master                        DELIVER   into its own log, once it is online (pre_online.py)
    a slave                         FOLLOW    nothing: its master does, and the slave copies how far it has come
    the lowest slave of a group     ESCAPE    to a master of another group, as no slave's log takes messages
      that has lost its master,
      with enableSlaveActingMaster

A service goes by the duty that it was started with. When the duty changes, the services are stopped, which saves how
far they have come, and started again (cluster/acting.py, `BrokerServer._change_duty`). Whoever will change a broker's
role while it runs, such as a controller, has its duty changed in the same way.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple


class Duty(enum.Enum):
    FOLLOW = "its master delivers"
    DELIVER = "it delivers into its own log"
    ESCAPE = "it hands what is due to the master of another group"


class Seen(NamedTuple):
    """What a slave knows of its group."""

    members: Collection[int] = ()  # ids that the NameServers list; empty as long as none has answered
    follows_master: bool = False  # it gets a master's log right now
    has_yielded: bool = False  # a master has announced itself a moment ago


def duty_of_slave(own_id: int, seen: Seen, *, may_act: bool) -> Duty:
    """`may_act` is enableSlaveActingMaster. A master that is heard of in any way is left to its work."""
    has_lost_master = bool(seen.members) and 0 not in seen.members and not seen.follows_master
    is_lowest = own_id <= min(seen.members, default=0)
    return Duty.ESCAPE if may_act and has_lost_master and is_lowest and not seen.has_yielded else Duty.FOLLOW
