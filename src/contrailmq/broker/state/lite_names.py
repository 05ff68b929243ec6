"""Names of lite topics: `room7` of parent `Chat` is the light queue `%LMQ%$Chat$room7`.

Those who read them are groups with the attribute BOUND_TO: it names the one parent whose lite topics they have. Here
because administration, POP and lite topics share it.
"""

from __future__ import annotations

import re
from typing import Final

from contrailmq.broker.state.topics import Topic
from contrailmq.store import LIGHT_PREFIX, MessageStore

PREFIX: Final = f"{LIGHT_PREFIX}$"
QUEUE_ID: Final = 0
BOUND_TO: Final = "lite.bind.topic"
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+\Z")


def is_lite_name(name: str) -> bool:
    """Whether a lite topic may be called so; how long it may be is for others to say."""
    return _NAME.match(name) is not None


def lite_queue(parent: str, lite_topic: str) -> str:
    return f"{PREFIX}{parent}${lite_topic}"


def parent_and_lite(queue: str) -> tuple[str, str] | None:
    """None for what is not the queue of a lite topic: other light queues have other names."""
    if not queue.startswith(PREFIX):
        return None
    parent, _, lite_topic = queue[len(PREFIX) :].partition("$")
    return (parent, lite_topic) if parent and lite_topic and "$" not in lite_topic else None


def expiration_minutes(topic: Topic) -> int:
    """After how long without a message its lite topics go; -1: never. The text may be of another's file."""
    text = topic.attributes.get("lite.topic.expiration", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def lite_queues(store: MessageStore, parent: str = "") -> list[str]:
    """The lite topics with messages, of one parent or of all."""
    names = [topic for topic, _ in store.queues()]
    return [name for name in names if (found := parent_and_lite(name)) and parent in ("", found[0])]
