"""TLS settings of a server and a client, from RocketMQ's `tls.*` keys.

One port serves both kinds of peers: the first byte of a connection tells them apart, since a TLS handshake starts with
0x16, with which neither gRPC nor, by its limit, a frame length begins. What a server then does is its mode:

    disabled     plain only; TLS attempts are closed
    permissive   both
    enforcing    TLS only; requests of plain connections are refused with a text, and the connection is closed

Where RocketMQ makes up a self-signed certificate in its test mode, we have TLS only when a certificate is configured.
`tls.config.file` names a properties file with more of these keys; settings elsewhere override it.
"""

from __future__ import annotations

import difflib
import enum
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from contrailmq.wire.errors import LocalProtocolError
from contrailmq.wire.properties import read_properties

__all__ = [
    "KEYS",
    "ServerTls",
    "TlsMode",
    "client_tls",
    "server_tls",
    "with_client_side",
]

_log = logging.getLogger(__name__)

# RocketMQ's (TlsSystemConfig, and NettyClientConfig's useTLS); the test mode is taken and has no effect.
KEYS: Final = (
    "useTLS",
    "tls.enable",
    "tls.config.file",
    "tls.test.mode.enable",
    *(f"tls.{side}.{key}" for side in ("server", "client") for key in ("certPath", "keyPath", "keyPassword")),
    "tls.server.trustCertPath",
    "tls.client.trustCertPath",
    "tls.server.mode",
    "tls.server.need.client.auth",
    "tls.server.authClient",
    "tls.client.authServer",
)


class TlsMode(enum.Enum):
    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How a server treats TLS. `context` is None only when the mode is DISABLED."""

    mode: TlsMode
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if self.mode is not TlsMode.DISABLED and self.context is None:
            raise LocalProtocolError(
                f"TLS mode {self.mode.value} needs a certificate: set tls.server.certPath and keyPath"
            )


def server_tls(properties: Mapping[str, str]) -> ServerTls | None:
    """`tls.server.mode|certPath|keyPath|keyPassword|trustCertPath|need.client.auth`; None when nothing is set."""
    get = _with_file(properties).get
    certificate = get("tls.server.certPath")
    mode_text = get("tls.server.mode", "permissive" if certificate else "disabled")
    try:
        mode = TlsMode(mode_text.strip().lower())
    except ValueError as exc:
        raise LocalProtocolError(f"tls.server.mode is {mode_text!r}: disabled, permissive and enforcing exist") from exc
    if not certificate:
        return ServerTls(mode) if mode is not TlsMode.DISABLED else None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_certificate(context, certificate, get("tls.server.keyPath"), get("tls.server.keyPassword"))
    need = get("tls.server.need.client.auth", "none").strip().lower()
    if need not in ("none", "optional", "require"):
        raise LocalProtocolError(f"tls.server.need.client.auth is {need!r}: none, optional and require exist")
    if need in ("require", "optional") or get("tls.server.authClient", "false").lower() == "true":
        context.verify_mode = ssl.CERT_OPTIONAL if need == "optional" else ssl.CERT_REQUIRED
        _load_trust(context, get("tls.server.trustCertPath"))
    return ServerTls(mode, context)


def client_tls(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """`tls.enable` and `tls.client.certPath|keyPath|keyPassword|trustCertPath|authServer`; None when TLS is off.

    The server is verified when `trustCertPath` names whom to trust or `authServer=true` is set (RocketMQ: the latter
    only), and never by host name: brokers are dialled by the addresses of routes, which certificates seldom name.
    """
    get = _with_file(properties).get
    if get("tls.enable", get("useTLS", "false")).strip().lower() != "true":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    trust = get("tls.client.trustCertPath")
    if get("tls.client.authServer", "true" if trust else "false").strip().lower() == "true":
        context.verify_mode = ssl.CERT_REQUIRED
        _load_trust(context, trust)
    else:
        context.verify_mode = ssl.CERT_NONE
        _log.warning(
            "TLS without verification: any server is trusted and can read everything; set tls.client.trustCertPath to "
            "the CA that signed the servers' certificates"
        )
    certificate = get("tls.client.certPath")
    if certificate:
        _load_certificate(context, certificate, get("tls.client.keyPath"), get("tls.client.keyPassword"))
    return context


def with_client_side(properties: Mapping[str, str]) -> dict[str, str]:
    """Settings of brokers whose NameServer has the same ones: where TLS is enforced, it is spoken as well."""
    is_enforced = _with_file(properties).get("tls.server.mode", "").strip().lower() == TlsMode.ENFORCING.value
    return ({"tls.enable": "true"} if is_enforced else {}) | dict(properties)


def _with_file(properties: Mapping[str, str]) -> Mapping[str, str]:
    """With the settings of the file that `tls.config.file` names."""
    _check_keys(properties)
    path = properties.get("tls.config.file", "").strip()
    if not path:
        return properties
    file = read_properties(path)
    _check_keys(file)
    return {**file, **properties}


def _check_keys(properties: Mapping[str, str]) -> None:
    """A misspelt key of TLS is an error, where others warn: it would leave open what somebody meant to close."""
    for key in properties:
        if key.startswith("tls.") and key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            raise LocalProtocolError(f"{key} is not a setting of TLS" + (f": did you mean {near[0]}?" if near else ""))


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str | None, password: str | None) -> None:
    try:
        # An empty password where none is set: OpenSSL would ask at the terminal, and wait.
        context.load_cert_chain(certificate, key or None, password or "")
    except (OSError, ssl.SSLError) as exc:
        raise LocalProtocolError(
            f"certificate {certificate} with key {key or certificate} cannot be used: {exc}; an encrypted key needs "
            "its keyPassword"
        ) from exc


def _load_trust(context: ssl.SSLContext, trust: str | None) -> None:
    if not trust:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(trust)
    except (OSError, ssl.SSLError) as exc:
        raise LocalProtocolError(f"trusted certificates {trust} cannot be read: {exc}") from exc
