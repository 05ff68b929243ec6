"""Namespaces, version 1: the client prefixes names, servers see plain ones.

`shop` in namespace `prod` is `prod%shop` on the wire; retry and dead-letter prefixes stay outermost
(`%RETRY%prod%shop`). System names are never wrapped, and wrapping twice is wrapping once.
"""

from __future__ import annotations

from contrailmq.message import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic


def wrap(namespace: str, name: str) -> str:
    if not namespace or is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX):
        return name
    prefix, bare = _split_prefix(name)
    if bare.startswith(f"{namespace}%"):
        return name
    return f"{prefix}{namespace}%{bare}"


def unwrap(namespace: str, name: str) -> str:
    if not namespace:
        return name
    prefix, bare = _split_prefix(name)
    return prefix + bare.removeprefix(f"{namespace}%")


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
