"""What must be true of a history: safety at any time, liveness once the faults are over.

Safety: nothing is delivered that was not sent, with its body and properties as they were sent; no place was
acknowledged twice; no place ever holds two different messages. Liveness: every acknowledged message is delivered, from
its place.
"""

from __future__ import annotations

from simulation.history import History, Place


def unsafe(history: History) -> list[str]:
    """Sentences about what should never have happened; empty when all is well."""
    found = []
    held: dict[Place, bytes] = {}
    for body, place in history.acknowledged.items():
        if held.setdefault(place, body) != body:
            found.append(f"{place} was acknowledged for {held[place]!r} and for {body!r}")
    for delivery in history.deliveries:
        properties = history.sent.get(delivery.body)
        if properties is None:
            found.append(f"{delivery.body!r} was delivered and never sent")
            continue
        changed = {key: value for key, value in properties.items() if delivery.properties.get(key) != value}
        if changed:
            found.append(f"{delivery.body!r} was sent with {changed} and delivered with {delivery.properties}")
        if held.setdefault(delivery.place, delivery.body) != delivery.body:
            found.append(f"{delivery.place} held {held[delivery.place]!r} and later {delivery.body!r}")
    return found


def unfinished(history: History) -> list[str]:
    """Sentences about what should have happened by now."""
    return [
        f"{body!r} was acknowledged at {history.acknowledged[body]} and not delivered" for body in history.undelivered()
    ]
