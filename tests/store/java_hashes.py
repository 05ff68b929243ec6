"""Under which hashes the index enters a record, as RocketMQ defines them."""

from __future__ import annotations

from contrailmq.message import Property


def hashes_by_definition(topic: str, known: dict[str, str]) -> list[int]:
    keys = [known.get(Property.UNIQUE_KEY, ""), *known.get(Property.KEYS, "").split(" ")]
    tags = known.get(Property.TAGS)
    texts = [f"{topic}#{key}" for key in keys if key] + ([f"{topic}#T#{tags}"] if tags else [])
    return [java_string_hash(text) for text in texts]


def java_string_hash(text: str) -> int:
    """String.hashCode as its documentation defines it."""
    data = text.encode("utf-16-be")
    units = [int.from_bytes(data[place : place + 2], "big") for place in range(0, len(data), 2)]
    hashed = sum(unit * 31 ** (len(units) - 1 - place) for place, unit in enumerate(units)) & 0xFFFFFFFF
    return hashed - (1 << 32) if hashed >> 31 else hashed
