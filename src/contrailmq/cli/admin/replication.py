"""`contrailmq admin ha …`: how far slaves are.

A master knows connections (code 907), a NameServer knows slaves; they are matched by host. How many seconds a slave is
behind it knows itself, and whether it stands in for its master: those of ours say so, Apache's do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from contrailmq.cli.admin.asking import Json, Namesrv, ask, ask_broker
from contrailmq.cli.admin.output import show
from contrailmq.cli.admin.watching import watched
from contrailmq.message import ContrailError

if TYPE_CHECKING:
    from contrailmq import Admin
    from contrailmq.wire.admin_bodies import HaConnectionInfo, HaRuntimeInfo

ha_app = typer.Typer(help="Masters and slaves.", no_args_is_help=True)

COLUMNS = (
    "broker", "id", "slave", "master", "connected", "acknowledged", "silent_s", "lag_bytes", "lag_s", "in_sync",
    "bytes_per_s", "acting",
)  # fmt: skip
UNCONNECTED = "not connected"


class Row(NamedTuple):
    """One slave. Nothing is said where nobody knows: None, which is a dash in a table."""

    broker: str
    id: int | None
    slave: str
    master: str | None  # the HA address that it follows, by its own account
    connected: bool | None
    acknowledged: int | None  # what it has reported; of one that is not connected, where its log ends
    silent_s: float | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    in_sync: bool | None = None
    bytes_per_s: int | None = None
    acting: str | None = None


@ha_app.command("status")
@watched
def ha_status(
    address: Annotated[str | None, typer.Argument(help="a broker's host:port; all groups without it")] = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Slaves: whether they are connected, seconds since their last report, how far behind, in sync or not."""
    if address is None:
        rows = ask(namesrv, slaves_of_cluster)
    else:
        rows = ask_broker(address, namesrv, lambda admin: _of_broker(admin, address))
    show(rows if as_json else [_printed(row) for row in rows], COLUMNS, as_json=as_json)


def _printed(row: Row) -> list[object]:
    """For people."""
    cells: list[object] = ["-" if value is None else value for value in row]
    if row.connected is False:
        cells[Row._fields.index("connected")] = UNCONNECTED
    return cells


def _of_broker(admin: Admin, address: str) -> list[Row]:
    """The slaves of a master, or a slave itself."""
    info = admin.ha_status(address)
    if info.master:
        return [_connected(address, None, found.addr, found, {}) for found in info.ha_connection_info]
    said = _said(admin, address)
    own = info.ha_client_runtime_info
    is_following = said["haIsFollowing"] == "true" if "haIsFollowing" in said else None  # Apache's do not say
    return [
        Row(
            broker=address,
            id=None,
            slave=address,
            master=own.master_addr or None,
            connected=is_following,
            acknowledged=own.max_offset,
            lag_bytes=_lag_bytes(said),
            lag_s=_lag_s(said),
            bytes_per_s=own.transferred_byte_in_second,
            acting=_acting(said),
        )
    ]


def slaves_of_cluster(admin: Admin) -> list[Row]:
    rows: list[Row] = []
    for name, group in sorted(admin.cluster().broker_addr_table.items()):
        slaves = {id_: address for id_, address in sorted(group.broker_addrs.items()) if id_ != 0}
        info = _master_info(admin, group.broker_addrs.get(0))
        connections = [] if info is None else list(info.ha_connection_info)
        master_end = None if info is None else info.master_commit_log_max_offset
        for id_, address in slaves.items():
            said = _said(admin, address)
            found = next((one for one in connections if _host(one.addr) == _host(address)), None)
            # Of two slaves on one host, the connection is not that of the one who says that it has none.
            if found is None or said.get("haIsFollowing") == "false":
                rows.append(_unconnected(name, id_, address, master_end, said))
            else:
                connections.remove(found)
                rows.append(_connected(name, id_, address, found, said))
        rows += [_connected(name, None, one.addr, one, {}) for one in connections]
    return rows


def _master_info(admin: Admin, master: str | None) -> HaRuntimeInfo | None:
    """Of a master; None when there is no master, or it does not answer."""
    if master is None:
        return None
    try:
        return admin.ha_status(master)
    except ContrailError as exc:
        typer.echo(f"{master} does not answer: {exc}", err=True)
        return None


def _connected(name: str, id_: int | None, address: str, found: HaConnectionInfo, said: dict[str, str]) -> Row:
    """As the master sees it; what it cannot see, the slave says."""
    return Row(
        broker=name,
        id=id_,
        slave=address,
        master=said.get("haMasterAddress") or None,
        connected=True,
        acknowledged=found.slave_ack_offset,
        silent_s=found.silent_millis / 1000 if found.silent_millis is not None else None,
        lag_bytes=found.diff,
        lag_s=_lag_s(said),
        in_sync=found.in_sync,
        bytes_per_s=found.transferred_byte_in_second,
        acting=_acting(said),
    )


def _unconnected(name: str, id_: int, address: str, master_end: int | None, said: dict[str, str]) -> Row:
    """Where its log ends it says itself, where its master's does the master."""
    end = int(said["commitLogMaxOffset"]) if "commitLogMaxOffset" in said else None
    lag_bytes = _lag_bytes(said)
    if master_end is not None and end is not None:
        lag_bytes = max(0, master_end - end)
    return Row(
        broker=name,
        id=id_,
        slave=address,
        master=said.get("haMasterAddress") or None,
        connected=False,
        acknowledged=end,
        lag_bytes=lag_bytes,
        lag_s=_lag_s(said),
        in_sync=False,
        acting=_acting(said),
    )


def _said(admin: Admin, address: str) -> dict[str, str]:
    """A slave's own account; nothing when it gives none."""
    try:
        return dict(admin.broker_stats(address))
    except ContrailError:
        return {}


def _lag_bytes(said: dict[str, str]) -> int | None:
    """How far a slave is behind, as it knows. One that is not connected knows what it lacked then, if anything: when it
    lacked nothing, that says nothing of now."""
    lag_bytes = int(said.get("haLagBytes", 0))
    return lag_bytes if lag_bytes or said.get("haIsFollowing") == "true" else None


def _lag_s(said: dict[str, str]) -> float | None:
    return None if _lag_bytes(said) is None else int(said.get("haLagMillis", 0)) / 1000


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
