"""Whether a broker lives, and whether clients should be sent to it: /live and /ready.

    live   the loop answers, and no background task was given up: who is not is killed and started again
    ready  the store is open and takes messages, a NameServer knows the broker, and it is not stopping

A reason is a sentence for the person who asks curl. A slave takes no messages from clients: that its store could is not
asked. A broker without a NameServer in its settings need not be registered.
"""

from __future__ import annotations

from contrailmq.broker.cluster.registration import Registration
from contrailmq.broker.node import BrokerNode

STARTING = "it starts: the store is not open yet"
STOPPING = "it stops"


def live_reasons(*, has_failed: bool) -> list[str]:
    return ["a background task could not be kept alive: the log says which"] if has_failed else []


def ready_reasons(node: BrokerNode, registration: Registration) -> list[str]:
    """Of a broker whose store is open."""
    reasons = []
    if not node.is_accepting:
        reasons.append(STOPPING)
    if registration.is_held_back:
        reasons.append("it waits for its slaves to say how far they have come without it")
    missed = registration.missed()
    if missed and len(missed) == len(node.config.namesrv_addresses):
        reasons += [f"not registered with NameServer {address}: {why}" for address, why in missed.items()]
    lost = node.store.lost_reason if node.is_slave else node.store.unwritable_reason
    if lost:
        reasons.append(f"it takes no messages: {lost}")
    return reasons
