"""`contrailmq admin cluster …` and `contrailmq admin broker …`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.admin.asking import Address, Json, Namesrv, ask, ask_broker, fail
from contrailmq.cli.admin.figures import figure, setting
from contrailmq.cli.admin.output import done, show, show_pairs
from contrailmq.cli.admin.watching import watched
from contrailmq.client.errors import did_you_mean
from contrailmq.message import ContrailError

if TYPE_CHECKING:
    from contrailmq import Admin

cluster_app = typer.Typer(help="Clusters.", no_args_is_help=True)
broker_app = typer.Typer(help="Brokers.", no_args_is_help=True)


@cluster_app.command("list")
@watched
def cluster_list(namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Clusters, brokers, addresses."""
    info = ask(namesrv, lambda admin: admin.cluster())
    rows = [
        (cluster, name, id_, address)
        for cluster, names in sorted(info.cluster_addr_table.items())
        for name in sorted(names)
        for id_, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]
    show(rows, ("cluster", "broker", "id", "address"), as_json=as_json)


@broker_app.command("status")
@watched
def broker_status(address: Address, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Runtime figures."""
    found = ask_broker(address, namesrv, lambda admin: admin.broker_stats(address))
    show_pairs(((name, figure(text) if as_json else text) for name, text in found.items()), as_json=as_json)


@broker_app.command("pending")
@watched
def broker_pending(address: Address, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Messages that wait: timers and half messages by topic, delayed ones by level. Our brokers only."""
    rows = []
    for key, text in sorted(ask_broker(address, namesrv, lambda admin: admin.broker_stats(address)).items()):
        kind, separator, name = key.partition("Pending_")
        if separator:
            rows.append((kind, name, int(text)))
    show(rows, ("kind", "of", "pending"), as_json=as_json)


@broker_app.command("damage")
@watched
def broker_damage(address: Address, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Damaged records that the broker has found and skipped since its start, the first 100. Our brokers only."""
    figures = ask_broker(address, namesrv, lambda admin: admin.broker_stats(address))
    keys = ("topic", "queueId", "queueOffset", "physicalOffset", "sizeBytes", "reason")
    rows = [tuple(place[key] for key in keys) for place in json.loads(figures.get("damagedPlaces") or "[]")]
    show(rows, ("topic", "queue", "queue_offset", "physical_offset", "bytes", "reason"), as_json=as_json)


@broker_app.command("config")
def broker_config(address: Address, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Settings."""
    found = ask_broker(address, namesrv, lambda admin: admin.broker_config(address))
    show_pairs(((name, setting(text) if as_json else text) for name, text in found.items()), as_json=as_json)


@broker_app.command("set")
def broker_set(
    address: Address,
    change: Annotated[str, typer.Argument(metavar="SETTING", help="key=value, RocketMQ's key")],
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Change a setting while the broker runs."""
    key, separator, value = change.partition("=")
    if not separator:
        fail(f"{change!r} is not key=value", code=2)

    def change_setting(admin: Admin) -> None:
        known = admin.broker_config(address)
        if key not in known:  # RocketMQ's own brokers answer success, and do nothing
            raise ContrailError(f"broker {address} has no setting {key}{did_you_mean(key, known)}")
        admin.update_broker_config(address, {key: value})

    ask_broker(address, namesrv, change_setting)
    done(f"{address}: {key}={value}", {"broker": address, key: setting(value)}, as_json=as_json)
