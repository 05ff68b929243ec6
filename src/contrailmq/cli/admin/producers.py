"""`contrailmq admin producers`: who sends."""

from __future__ import annotations

from typing import Annotated

import typer

from contrailmq.cli.admin.asking import Broker, Json, Namesrv, ask
from contrailmq.cli.admin.output import Moment, Release, show
from contrailmq.cli.admin.watching import watched


@watched
def producers(
    group: Annotated[str | None, typer.Option("--group", help="of this producer group only")] = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Producers that are connected to brokers. Brokers do not say which topics they send to."""
    found = ask(namesrv, lambda admin: admin.all_producers(broker=broker))
    rows = [
        (
            name,
            item.client_id,
            item.remote_ip.removeprefix("/"),  # as Java prints an address
            item.language,
            Release(item.version),
            Moment(item.last_update_timestamp),
        )
        for name, members in found.items()
        if group in (None, name)
        for item in members
    ]
    show(rows, ("group", "client_id", "address", "language", "version", "last_seen"), as_json=as_json)
