"""Settings that promise what a server does not have yet.

Who sets `aclEnable=true` relies on it: a server that ignored the key would look safer than it is. So a server with such
a key in its settings refuses to start and says what is missing, for all of them at once. `allowUnsupported=true` starts
it anyway, with a warning. A key at RocketMQ's default promises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from contrailmq.wire.properties import SettingsError

__all__ = ["Promise", "UnsupportedError", "broken_promises", "is_not_off", "is_on"]

ALLOW_KEY: Final = "allowUnsupported"


class Promise(NamedTuple):
    """A key of RocketMQ's, which of its values promise something, and what is missing for it."""

    key: str
    is_asked_for: Callable[[str], bool]
    missing: str


class UnsupportedError(SettingsError):
    """Settings promise what is not there; the text names all of them."""


def broken_promises(properties: Mapping[str, str], promises: Iterable[Promise]) -> str:
    """A warning where allowUnsupported=true lets promises be broken, "" where none are. UnsupportedError otherwise."""
    asked = [(promise, properties[promise.key].strip()) for promise in promises if promise.key in properties]
    broken = [f"{promise.key}={text} ({promise.missing})" for promise, text in asked if promise.is_asked_for(text)]
    if not broken:
        return ""
    if is_on(properties.get(ALLOW_KEY, "")):
        return f"{ALLOW_KEY}=true: started without what these settings promise: " + "; ".join(broken)
    raise UnsupportedError(
        "these settings promise what is not supported yet: "
        + "; ".join(broken)
        + f". Remove them, or start without what they promise: --set {ALLOW_KEY}=true"
    )


def is_on(text: str) -> bool:
    return text.strip().lower() == "true"


def is_not_off(text: str) -> bool:
    """True, and also `yes`, `on` or `1`, which RocketMQ takes for false: its author relies on it."""
    return text.strip().lower() not in ("", "false")


# Which settings may be changed over the network.
#
# Anyone who reaches a server's port may send UPDATE_BROKER_CONFIG or UPDATE_NAMESRV_CONFIG. Settings that decide where
# data is and how long it stays, where a server is found and who may do what are therefore changed in its file only,
# unless `allowRemoteConfig` names them there: keys with commas between them, or `*` for all.


def remote_refusal(changes: Iterable[str], protected: Collection[str], allowed: str) -> str:
    """Why these keys are not changed over the network, "" when all of them may be."""
    named = {key.strip() for key in allowed.replace(";", ",").split(",")}
    refused = sorted(key for key in changes if key in protected and key not in named)
    if not refused or "*" in named:
        return ""
    keys = ",".join(refused)
    return (
        f"{', '.join(refused)}: not changed over the network, since data, addresses or permissions depend on it; "
        f"change it in the server's file and restart, or allow it there with allowRemoteConfig={keys} (or * for all)"
    )
