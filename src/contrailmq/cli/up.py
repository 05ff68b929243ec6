"""`contrailmq up`: a NameServer and brokers on this machine, with one command.

One broker runs in this process beside the NameServer. With `--brokers N` each broker is a process of its own, as
RocketMQ scales: more cores, more brokers. With `--slaves N` a broker that ends is started again (supervising.py);
without, the rest is stopped with it. Files are smaller than a production broker's, so that a start is quick and
takes little disk. The web console is a process of its own (console_process.py): it takes no time and no memory of a
broker's, and a fault of it stops nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from contrailmq.cli.logs import FILE_MIB, FILES_KEPT, File, FileMib, FilesKept, Json, Level, LogLevel, LogSettings

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping

    from contrailmq.namesrv import NameServer, NamesrvConfig
    from contrailmq.testing.members import Member

PORT_STEP: Final = 10  # between brokers: each takes its port, the one two below it and the one above it
MIB: Final = 1 << 20
# Defaults where nothing else is said: an idle store takes under 300 MB of disk.
SMALL_STORE: Final[dict[str, object]] = {
    "mapped_file_size_commit_log": 128 * MIB,
    "max_hash_slot_num": 500_000,
    "max_index_num": 2_000_000,
}


def up(
    store: Annotated[Path, typer.Option("--store", help="Directory for everything that is kept.")] = Path(
        "contrailmq-data"
    ),
    namesrv_port: Annotated[int, typer.Option(help="Port of the NameServer; 0 takes a free one.")] = 9876,
    broker_port: Annotated[int, typer.Option(help="Port of the first broker; 0 takes free ones.")] = 10911,
    brokers: Annotated[int, typer.Option(min=1, max=64, help="How many brokers; more than one are processes.")] = 1,
    slaves: Annotated[int, typer.Option(min=0, max=8, help="Slaves of each broker; all are processes then.")] = 0,
    config_file: Annotated[
        Path | None, typer.Option("-c", "--config-file", help="A broker.conf with RocketMQ's keys, for every broker.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One broker setting; beats the file.")
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDR", help="Address to listen on; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Replace a live broker of the same name and id at another address.")
    ] = False,
    resync: Annotated[
        bool, typer.Option("--resync", help="Slaves cut off what their masters do not have, and follow.")
    ] = False,
    console_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the web console on 127.0.0.1; 0 takes a free one.")
    ] = 8080,
    no_console: Annotated[bool, typer.Option("--no-console", help="Run no web console.")] = False,
    print_config: Annotated[
        Path | None, typer.Option("--print-config", metavar="DIR", help="Write a file for each server, and end.")
    ] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC port of the first broker (8081 if it is free).")] = None,
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Serve no gRPC.")] = False,
    log_level: Level = LogLevel.INFO,
    log_file: File = None,
    log_file_mib: FileMib = FILE_MIB,
    log_files: FilesKept = FILES_KEPT,
    log_json: Json = False,
) -> None:
    """Run a NameServer and brokers until SIGINT or SIGTERM. Prints one line that begins with `ready`."""
    from contrailmq.cli.grpc_beside import grpc_port_for_files, grpc_port_of_up
    from contrailmq.cli.logs import failed, start_logging
    from contrailmq.cli.serving import run_until_stopped, set_flags, tell_what_runs
    from contrailmq.message import ContrailError

    try:
        properties = _gathered(config_file, set_flags(takeover=takeover), settings or [])
        start_logging(logs := LogSettings(log_level, log_file, log_file_mib, log_files, log_json))
        if brokers == 1 and not slaves and print_config is None:
            tell_what_runs()  # of several, each is a process that tells it itself
        properties = _with_addresses(properties, listen)
        cluster = _Cluster(namesrv_port, broker_port, brokers, slaves, resync, None if no_console else console_port)
        grpc = 0 if no_grpc else grpc_port
        if print_config is not None:
            _write_files(print_config, store, properties | grpc_port_for_files(properties, grpc, brokers), cluster)
            return
        properties |= grpc_port_of_up(properties, grpc, broker_port=broker_port, brokers=brokers)
        run_until_stopped(lambda stopped: _serve(store, properties, stopped, logs, cluster))
    except (ContrailError, OSError) as exc:
        failed(str(exc), is_json=log_json)
        raise typer.Exit(1) from exc


def _gathered(file: Path | None, flags: Mapping[str, str], settings: list[str]) -> dict[str, str]:
    """Of every broker; the NameServer is our own."""
    from contrailmq.broker.config import environment_keys
    from contrailmq.cli.serving import gathered_settings

    properties, _ = gathered_settings(file=file, flags=flags, settings=settings, keys=environment_keys())
    properties.pop("namesrvAddr", None)
    return properties


def _with_addresses(properties: Mapping[str, str], listen: str) -> dict[str, str]:
    from contrailmq.wire.tls import with_client_side

    return with_client_side(dict(properties) | _listening_on(listen, properties))


def _listening_on(address: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Settings of brokers that listen there, and tell clients an address that leads there."""
    from contrailmq.broker.cluster.advertise import interface_outward

    if properties.get("bindAddress", address) != address:
        said = properties["bindAddress"]
        logging.getLogger("contrailmq").warning("bindAddress=%s has no effect: --listen is %s", said, address)
    settings = {"bindAddress": address}
    # The NameServer is dialled over the loopback interface, whose address is of no use to other machines.
    if address in ("", "0.0.0.0", "::") and not properties.get("brokerIP1"):
        settings["brokerIP1"] = interface_outward()
    return settings


class _Cluster(NamedTuple):
    """What is started."""

    namesrv_port: int
    broker_port: int
    brokers: int
    slaves: int  # of each broker
    resync: bool = False  # slaves cut off what their masters do not have
    console_port: int | None = None  # None: there is none


def _members(properties: Mapping[str, str], cluster: _Cluster) -> Iterator[tuple[str, dict[str, str]]]:
    """Names and settings: the masters, then their slaves. Ports go up in this order."""
    from contrailmq.cli.grpc_beside import grpc_port_of

    _, port, brokers, slaves, resync, _ = cluster
    step = PORT_STEP if port else 0
    masters: list[dict[str, str]] = []
    for number in range(brokers):
        own = {"brokerName": f"broker-{chr(97 + number % 26)}" + (str(number // 26) if number >= 26 else "")}
        said = own | dict(properties) | (own if brokers > 1 else {})
        masters.append(said)
        own_grpc = grpc_port_of(properties, number)
        yield said["brokerName"], said | {"listenPort": str(port)} | own_grpc
        port += step
    for said in masters:
        for broker_id in range(1, slaves + 1):
            as_slave = {"slaveReadEnable": "true"} | said | {"brokerRole": "SLAVE", "brokerId": str(broker_id)}
            as_slave |= {"resync": "true"} if resync else {}
            as_slave |= {"grpcServerPort": "0"} if "grpcServerPort" in as_slave else {}
            yield f"{said['brokerName']}-slave-{broker_id}", as_slave | {"listenPort": str(port)}
            port += step


def _write_files(directory: Path, store: Path, properties: Mapping[str, str], cluster: _Cluster) -> None:
    from contrailmq.cli.up_files import BrokerFile, write_files
    from contrailmq.cli.up_metrics import as_settings, ports_of
    from contrailmq.message import ContrailError
    from contrailmq.namesrv import NamesrvConfig
    from contrailmq.wire.tls import KEYS as TLS_KEYS

    if not (cluster.namesrv_port and cluster.broker_port):
        raise ContrailError("separate files need ports that stay: leave out --namesrv-port 0 and --broker-port 0")
    if cluster.resync or "takeover" in properties:
        raise ContrailError("--resync and --takeover are for one start: give them to `contrailmq broker -c FILE`")
    shown = ports_of(properties, broker_port=cluster.broker_port, brokers=cluster.brokers * (1 + cluster.slaves))
    config = _name_server_config(
        store.absolute(), properties, cluster.namesrv_port, metrics_port=shown[0] if shown else None
    )
    usual = NamesrvConfig().to_properties()
    own = {key: text for key, text in config.to_properties().items() if text != usual[key]}
    namesrv = f"{properties.get('brokerIP1') or properties['bindAddress']}:{cluster.namesrv_port}"
    members = list(_members(dict(properties) | {"namesrvAddr": namesrv}, cluster))
    pages = [as_settings(port) for port in shown[1:]] if shown else [{}] * len(members)
    written = write_files(
        directory,
        name_server=own | {key: properties[key] for key in TLS_KEYS if key in properties},
        brokers=[
            BrokerFile(name, store / name, said | page) for (name, said), page in zip(members, pages, strict=True)
        ],
        store_settings=SMALL_STORE,
        console="" if cluster.console_port is None else f"console -n {namesrv} --port {cluster.console_port}",
    )
    for path in written:
        typer.echo(path)


def _name_server(store: Path, properties: Mapping[str, str], port: int, *, metrics_port: int | None) -> NameServer:
    from contrailmq.namesrv import NameServer
    from contrailmq.wire.tls import server_tls

    return NameServer(
        _name_server_config(store, properties, port, metrics_port=metrics_port), tls=server_tls(properties)
    )


def _name_server_config(
    store: Path, properties: Mapping[str, str], port: int, *, metrics_port: int | None
) -> NamesrvConfig:
    from contrailmq.namesrv import NamesrvConfig

    has_acting = properties.get("enableSlaveActingMaster", "").lower() == "true"
    return NamesrvConfig(
        bind_address=properties["bindAddress"], listen_port=port, rocketmq_home=str(store),
        support_acting_master=has_acting, notify_min_broker_id_changed=has_acting,
        metrics_exporter_type="DISABLE" if metrics_port is None else "PROM",
        metrics_prom_exporter_port=metrics_port or 0,
        metrics_prom_exporter_host=properties.get("metricsPromExporterHost", "127.0.0.1"),
    )  # fmt: skip


async def _serve(
    store: Path,
    properties: Mapping[str, str],
    stopped: asyncio.Event,
    logs: LogSettings,
    cluster: _Cluster,
) -> None:
    import asyncio

    from contrailmq.cli.console_process import ConsoleProcess
    from contrailmq.cli.grpc_beside import GrpcBeside
    from contrailmq.cli.logs import child_log, failed
    from contrailmq.cli.serving import settle_memory
    from contrailmq.cli.supervising import keep_running, wait_for_slaves
    from contrailmq.cli.up_metrics import as_settings, ports_to_serve
    from contrailmq.testing.members import ProcessMember, ThreadlessMember

    ports = ports_to_serve(properties, broker_port=cluster.broker_port, brokers=cluster.brokers * (1 + cluster.slaves))
    name_server = _name_server(store, properties, cluster.namesrv_port, metrics_port=ports[0] if ports else None)
    await name_server.start()
    console = ConsoleProcess(name_server.address, cluster.console_port, properties, logs)
    console.start()  # it takes a second to load, and waits for nobody
    kind: type[Member] = ThreadlessMember if cluster.brokers + cluster.slaves == 1 else ProcessMember
    members: dict[str, Member] = {}
    grpc = GrpcBeside(properties)
    try:
        told = dict(properties) | {"namesrvAddr": name_server.address}
        for number, (name, said) in enumerate(_members(told, cluster), 1):
            shown = as_settings(ports[number]) if ports else {}
            member = kind(store / name, said | shown, store_settings=SMALL_STORE)
            if isinstance(member, ProcessMember):
                member.flags, member.on_line = logs.child_flags(), child_log(name)
            members[name] = member
        starts = [member.start for member in members.values()]
        await asyncio.gather(*(start() for start in starts[: cluster.brokers]))
        await asyncio.gather(*(start() for start in starts[cluster.brokers :]))  # slaves: they find their masters
        settle_memory()
        if cluster.slaves:
            keeping = [asyncio.ensure_future(keep_running(*member, stopped)) for member in members.items()]
            await wait_for_slaves(dict([*members.items()][cluster.brokers :]), properties, stopped)
        typer.echo(_ready_line(name_server.address, members, store, await console.ready()))
        if cluster.slaves:
            await asyncio.gather(*keeping)
            return
        if cluster.brokers == 1:  # one in a process of its own does this itself
            await grpc.start(next(member.server for member in members.values() if isinstance(member, ThreadlessMember)))
        failures = {name: asyncio.ensure_future(member.failed()) for name, member in members.items()}
        waits = [*failures.values(), asyncio.ensure_future(stopped.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        ended = [name for name, wait in failures.items() if wait.done()]
        for wait in waits:
            wait.cancel()
    finally:
        await grpc.stop()
        await asyncio.gather(console.stop(), *(member.stop() for member in members.values()))
        await name_server.stop()
    if not stopped.is_set():
        for name in ended:
            failed(_end_of(name, members[name]), is_json=logs.is_json)
        raise typer.Exit(1)


def _end_of(name: str, member: Member) -> str:
    how = f" with {member.ending}" if member.ending else ""
    return f"broker {name} ended by itself{how}: its log may say why; the others were stopped"


def _ready_line(namesrv: str, members: Mapping[str, Member], store: Path, console_url: str) -> str:
    addresses = " ".join(member.address for member in members.values())
    line = f"ready namesrv {namesrv} brokers {addresses} store {store}"
    return f"{line} console {console_url}" if console_url else line
