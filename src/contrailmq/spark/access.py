"""How tasks and drivers get into a cluster that wants TLS or signatures: the options `rocketmq.*`.

Settings travel to executors as texts and become an SSL context or a signing hook there, so certificate files must exist
on every host. Spark lower-cases option names; they are known by their lower case here. Secrets show in no `repr`.
"""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from contrailmq.client.blocking.raw import QueueReader
from contrailmq.spark.columns import OptionError
from contrailmq.spark.options import Options
from contrailmq.spark.runtime.patience import AWAY_OPTION, AWAY_TIMEOUT_MS
from contrailmq.wire.acl import AclCredentials
from contrailmq.wire.tls import client_tls

PREFIX: Final = "rocketmq."
LOSS_OPTION: Final = "failOnDataLoss"  # of the source; of jobs only those take it that read by a stream
_NAMES: Final = (
    "accessKey",
    "secretKey",
    "securityToken",
    "tls.enable",
    "tls.client.authServer",
    "tls.client.certPath",
    "tls.client.keyPath",
    "tls.client.keyPassword",
    "tls.client.trustCertPath",
)


@dataclass(frozen=True, slots=True)
class Access:
    """RocketMQ's own property names with their values. Hashable, so connections can be kept by it."""

    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def tls(self) -> ssl.SSLContext | None:
        return client_tls(dict(self.properties))

    def credentials(self) -> AclCredentials | None:
        given = dict(self.properties)
        if "accessKey" not in given:
            return None
        return AclCredentials(given["accessKey"], given["secretKey"], given.get("securityToken"))

    def open(self, namesrv: str, group: str, timeout_s: float) -> QueueReader:
        """A client of the cluster behind the NameServers."""
        return QueueReader(
            namesrv=namesrv, group=group, timeout_s=timeout_s, tls=self.tls(), credentials=self.credentials()
        )


def access_of(options: Mapping[str, str] | None) -> Access:
    """From options as the source takes them, `rocketmq.accessKey` and so on; for functions that take nothing else."""
    return _access(options or {}, ())


def job_access(options: Mapping[str, str] | None) -> tuple[Access, float]:
    """From the options of a job: the same, and for how many seconds it waits for a broker that is away."""
    given = options or {}
    waits = {name: value for name, value in given.items() if name.lower() == AWAY_OPTION.lower()}
    away_timeout_ms = Options(waits, known=(AWAY_OPTION,)).number(AWAY_OPTION, AWAY_TIMEOUT_MS)
    others = {name: value for name, value in given.items() if name not in waits}
    return _access(others, (AWAY_OPTION,)), away_timeout_ms / 1000


def _access(given: Mapping[str, str], others: tuple[str, ...]) -> Access:
    passed = {}
    for name, value in given.items():
        if not name.lower().startswith(PREFIX):
            known = ", ".join([*others, *(f"{PREFIX}{known}" for known in _NAMES)])
            raise OptionError(f"option {name} has no effect here: only {known} have")
        passed[name[len(PREFIX) :]] = value
    return parse_access(passed)


def parse_access(passed: Mapping[str, str]) -> Access:
    """From the options with the prefix `rocketmq.`, in any case. One that would have no effect is refused."""
    by_lower = {name.lower(): name for name in _NAMES}
    found: dict[str, str] = {}
    for key, value in passed.items():
        name = by_lower.get(key.lower())
        if name is None:
            close = difflib.get_close_matches(key.lower(), by_lower, n=1)
            hint = f"did you mean {PREFIX}{by_lower[close[0]]}?" if close else f"known are {', '.join(_NAMES)}"
            raise OptionError(f"option {PREFIX}{key} has no effect here: {hint}")
        found[name] = value
    if ("accessKey" in found) != ("secretKey" in found):
        raise OptionError(f"options {PREFIX}accessKey and {PREFIX}secretKey go together: give both or none")
    if "securityToken" in found and "accessKey" not in found:
        raise OptionError(f"option {PREFIX}securityToken needs {PREFIX}accessKey and {PREFIX}secretKey")
    is_on = found.get("tls.enable", "false").strip().lower() == "true"
    unused = [name for name in found if name.startswith("tls.client.")]
    if unused and not is_on:
        raise OptionError(f"option {PREFIX}{unused[0]} has no effect without {PREFIX}tls.enable=true")
    return Access(tuple(sorted(found.items())))
