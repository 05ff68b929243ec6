"""`contrailmq admin --tls ...`: how the admin commands get into a cluster that wants TLS.

The flags come before the noun (`contrailmq admin --tls-ca ca.pem topic list`). Without them the environment counts, as
for every client (CONTRAILMQ_TLS_ENABLE and so on).
"""

from __future__ import annotations

import ssl
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Final, TypedDict

import typer


class TlsSettings(TypedDict, total=False):
    """A client's TLS settings; empty if no flag was given."""

    tls: ssl.SSLContext
    tls_server_name: str


_NOTHING_SAID: Final = TlsSettings()
tls_of_flags: Final = ContextVar("tls_of_flags", default=_NOTHING_SAID)


def tls_flags(
    tls: Annotated[bool, typer.Option("--tls", help="speak TLS, also without the options below")] = False,
    ca: Annotated[Path | None, typer.Option("--tls-ca", help="CA that signed the servers' certificates")] = None,
    certificate: Annotated[Path | None, typer.Option("--tls-cert", help="our certificate, if servers ask")] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="the key of our certificate")] = None,
    password: Annotated[
        str, typer.Option("--tls-key-password", envvar="CONTRAILMQ_TLS_CLIENT_KEY_PASSWORD", help="of that key")
    ] = "",
    server_name: Annotated[
        str, typer.Option("--tls-server-name", help="name that servers' certificates must have; unchecked without")
    ] = "",
) -> None:
    """Look at a cluster and change it."""
    from contrailmq.message import ContrailError
    from contrailmq.wire.tls import client_tls

    settings = TlsSettings()
    tls_of_flags.set(settings)
    if not (tls or ca or certificate or key or server_name):
        return
    said = {"tls.enable": "true", "tls.client.authServer": "true"}  # by the system's CAs, where none is named
    files = {"trustCertPath": ca, "certPath": certificate, "keyPath": key}
    said |= {f"tls.client.{name}": str(path) for name, path in files.items() if path}
    try:
        made = client_tls(said | ({"tls.client.keyPassword": password} if password else {}))
    except ContrailError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(2) from None
    assert made is not None
    settings["tls"] = made
    if server_name:
        made.check_hostname = True
        settings["tls_server_name"] = server_name
