"""What clients saw: each send with its fate, each delivery, in the order of virtual time.

Bodies are unique, so a body names a message. A send has one of three fates: acknowledged at a place, refused (the
broker or the client said no, and the message may be stored all the same, as in any such system), or still under way.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    broker: str
    queue_id: int
    queue_offset: int


class Delivery(NamedTuple):
    at_s: float
    body: bytes
    properties: dict[str, str]
    place: Place


@dataclass
class History:
    """Filled by the clients of a trial; read by `checker.py`."""

    sent: dict[bytes, dict[str, str]] = field(default_factory=dict)  # body -> properties
    acknowledged: dict[bytes, Place] = field(default_factory=dict)
    refused: dict[bytes, str] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)

    def undelivered(self) -> list[bytes]:
        """Acknowledged, and not yet delivered from the place that was acknowledged."""
        heard = {(delivery.body, delivery.place) for delivery in self.deliveries}
        return [body for body, place in self.acknowledged.items() if (body, place) not in heard]

    def digest(self) -> str:
        """A hash of everything in it."""
        text = repr((list(self.sent.items()), list(self.acknowledged.items()), self.refused, self.deliveries))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
