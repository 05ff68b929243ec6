"""`contrailmq admin ha …`: how far slaves are.

A master knows connections (code 907), a NameServer knows slaves; they are matched by host. How many seconds a slave is
behind it knows itself, and whether it stands in for its master: those of ours say so, Apache's do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.admin.asking import Json, Namesrv, ask, ask_broker
from contrailmq.cli.admin.output import show
from contrailmq.message import ContrailError

if TYPE_CHECKING:
    from contrailmq import Admin
    from contrailmq.wire.admin_bodies import HaConnectionInfo

ha_app = typer.Typer(help="Masters and slaves.", no_args_is_help=True)

COLUMNS = (
    "broker", "id", "slave", "connected", "acknowledged", "silent_s", "lag_bytes", "lag_s", "in_sync", "bytes_per_s",
    "acting",
)  # fmt: skip
Row = tuple[object, ...]


@ha_app.command("status")
def ha_status(
    address: Annotated[str | None, typer.Argument(help="a master's host:port; all masters without it")] = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Slaves: whether they are connected, seconds since their last report, how far behind, in sync or not."""
    if address is not None:
        info = ask_broker(address, namesrv, lambda admin: admin.ha_status(address))
        rows = [_row(address, None, found.addr, found, None) for found in info.ha_connection_info]
    else:
        rows = ask(namesrv, _of_cluster)
    show(rows, COLUMNS, as_json=as_json)


def _of_cluster(admin: Admin) -> list[Row]:
    rows: list[Row] = []
    for name, group in sorted(admin.cluster().broker_addr_table.items()):
        slaves = {id_: address for id_, address in sorted(group.broker_addrs.items()) if id_ != 0}
        connections = _connections(admin, group.broker_addrs.get(0))
        for id_, address in slaves.items():
            found = next((one for one in connections if _host(one.addr) == _host(address)), None)
            if found is not None:
                connections.remove(found)
            said = _said(admin, address)
            rows.append(_row(name, id_, address, found, _lag_s(said), _acting(said)))
        rows += [_row(name, None, one.addr, one, None) for one in connections]
    return rows


def _connections(admin: Admin, master: str | None) -> list[HaConnectionInfo]:
    """Of a master; none when there is no master, or it does not answer."""
    if master is None:
        return []
    try:
        return list(admin.ha_status(master).ha_connection_info)
    except ContrailError as exc:
        typer.echo(f"{master} does not answer: {exc}", err=True)
        return []


def _row(
    name: str,
    id_: int | None,
    address: str,
    found: HaConnectionInfo | None,
    lag_s: float | None,
    acting: str | None = None,
) -> Row:
    if found is None:
        return (name, id_, address, False, None, None, None, lag_s, False, None, acting)
    silent_s = found.silent_millis / 1000 if found.silent_millis is not None else None
    reported, speed = found.slave_ack_offset, found.transferred_byte_in_second
    return (name, id_, address, True, reported, silent_s, found.diff, lag_s, found.in_sync, speed, acting)


def _said(admin: Admin, address: str) -> dict[str, str]:
    """A slave's own account; nothing when it gives none."""
    try:
        return dict(admin.broker_stats(address))
    except ContrailError:
        return {}


def _lag_s(said: dict[str, str]) -> float | None:
    text = said.get("haLagMillis")
    return int(text) / 1000 if text is not None else None


def _acting(said: dict[str, str]) -> str | None:
    """Whether it stands in for its master, and why what is due waits nevertheless; None when it never does."""
    if "isActingMaster" not in said:
        return None
    if said["isActingMaster"] != "true":
        return "no"
    why = said.get("escapeStandstill")
    return f"stands still: {why}" if why else "yes"


def _host(address: str) -> str:
    return address.lstrip("/").rpartition(":")[0]
