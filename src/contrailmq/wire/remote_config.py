"""Which settings may be changed over the network.

Whoever reaches a server's port may send UPDATE_BROKER_CONFIG or UPDATE_NAMESRV_CONFIG. Settings that decide where data
lies and how long it stays, where a server is found and who may do what are therefore changed in its file only, unless
`allowRemoteConfig` names them there: keys with commas between them, or `*` for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = ["remote_refusal"]


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
