"""`python -m bench ...`: what things cost here. Each benchmark prints its settings, and a baseline of the same run.

Runs in the root of the source tree, with the environment of `make install`. `compare.py` beside it stands alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from contrailmq.cli.bench import AsJson, Namesrv, show
from contrailmq.message import ContrailError

app = typer.Typer(help="Measure: CPU microseconds per message and ratios to a baseline.", no_args_is_help=True)

Directory = Annotated[
    Path | None, typer.Option("--dir", help="Where the temporary store is made (default: the system's directory).")
]


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """What a benchmark says that it could not do is a line and exit code 1, not a traceback."""
    try:
        yield
    except ContrailError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(1) from exc


@app.command("codec")
def codec(
    body_bytes: Annotated[int, typer.Option(help="Body of the record.")] = 1024,
    as_json: AsJson = False,
) -> None:
    """Encode, decode and walk records in memory, on one core; baseline: a bare CRC-32 of the bodies."""
    from bench.codec import run_codec_benchmark

    show("record codec, CPU microseconds per record", run_codec_benchmark(body_bytes), as_json=as_json)


@app.command("decode")
def decode(
    count: Annotated[int, typer.Option(help="Messages in each log.")] = 40_000,
    rounds: Annotated[int, typer.Option(help="Rounds of each way, in turns; the least counts.")] = 5,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Spark's kernels without Spark, over a uniform log and a mixed one, with each shortcut and without."""
    from bench.decode import measure_decode

    show(
        "kernels of the Spark sources, CPU us a record",
        measure_decode(count, rounds, directory=directory),
        as_json=as_json,
    )


@app.command("store")
def store(
    count: Annotated[int, typer.Option(help="Messages of each measurement.")] = 20_000,
    body_bytes: Annotated[int, typer.Option(help="Body size.")] = 1024,
    queues: Annotated[int, typer.Option(help="Queues that the messages are spread over.")] = 4,
    sync_count: Annotated[int, typer.Option(help="Puts of the SYNC_FLUSH measurements.")] = 512,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Put, append, dispatch, get; SYNC_FLUSH against a bare write and fdatasync."""
    from bench.store import measure_store

    figures = measure_store(
        count=count, body_bytes=body_bytes, queue_count=queues, sync_count=sync_count, directory=directory
    )
    show("store", figures, as_json=as_json)


@app.command("recover")
def recover(
    mebibytes: Annotated[int, typer.Option(help="Size of the log to recover.")] = 128,
    body_bytes: Annotated[int, typer.Option(help="Body size.")] = 1024,
    queues: Annotated[int, typer.Option(help="Queues for a clean start with many of them; 0: none.", min=0)] = 20_000,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Opening after a kill (checksums, queues and index compared), after a clean exit, and with many queues."""
    from bench.store import measure_recovery

    figures = measure_recovery(
        log_bytes=mebibytes << 20, body_bytes=body_bytes, queue_count=queues, directory=directory
    )
    show("recover", figures, as_json=as_json)


@app.command("timer")
def timer(
    rounds: Annotated[int, typer.Option(help="Rounds of 4,000 messages for the costs; the least of them counts.")] = 10,
    rate: Annotated[int, typer.Option(help="Timer messages a second under load.")] = 20_000,
    seconds: Annotated[float, typer.Option(help="How long the load lasts.")] = 15.0,
    due: Annotated[int, typer.Option(help="Messages of a delay level that are due together.")] = 10_000,
    pending: Annotated[int, typer.Option(help="Pending timers for the memory; 0 leaves that out.")] = 1_000_000,
    body_bytes: Annotated[int, typer.Option(help="Body size.", min=8)] = 256,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Timers and delay levels: CPU per message in and out, lateness under load, memory; baseline: plain puts."""
    from bench.timer import Settings, measure_timer

    settings = Settings(rounds, rate, seconds, due, pending, body_bytes, directory)
    show("timer", measure_timer(settings), as_json=as_json)


@app.command("wire")
def wire(
    body_bytes: Annotated[int, typer.Option(help="Body of the message.")] = 1024,
    as_json: AsJson = False,
) -> None:
    """Parse a send and make its answer, without sockets; baseline: json.loads of the header."""
    from bench.wire import measure_wire

    show("remoting protocol, CPU microseconds per message", measure_wire(body_bytes), as_json=as_json)


@app.command("namesrv")
def namesrv(
    rocketmq_lib: Annotated[
        Path | None,
        typer.Option("--rocketmq-lib", help="Folder with Apache RocketMQ's jars: measure its NameServer too."),
    ] = None,
    topics: Annotated[int, typer.Option(help="Topics of the one broker.")] = 1000,
    connections: Annotated[int, typer.Option(help="Connections that ask.")] = 64,
    depth: Annotated[int, typer.Option(help="Requests that each connection keeps on their way.")] = 8,
    seconds: Annotated[float, typer.Option(help="Length of a round.")] = 5.0,
    rounds: Annotated[int, typer.Option(help="Counted rounds for each server; one more warms up.")] = 5,
    java_options: Annotated[str, typer.Option(help="For Apache's NameServer.")] = "-Xmx512m",
    as_json: AsJson = False,
) -> None:
    """Ask a NameServer for routes over many connections, Apache's in alternating rounds when its jars are given."""
    from bench.namesrv import Settings, measure_namesrv
    from bench.namesrv_load import LoadError

    settings = Settings(
        topics=topics,
        connections=connections,
        depth=depth,
        seconds=seconds,
        rounds=rounds,
        rocketmq_lib=rocketmq_lib,
        java_options=java_options,
    )
    try:
        show("NameServer, GET_ROUTEINFO_BY_TOPIC", measure_namesrv(settings), as_json=as_json)
    except LoadError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(1) from exc


@app.callback()
def _bench() -> None:
    """Measure: CPU microseconds per message and ratios to a baseline."""


@app.command("clients")
def clients(
    python: Annotated[
        Path, typer.Option("--python", help="Interpreter that has rocketmq, rocketmq-client-python or -python-client.")
    ],
    proxy: Annotated[
        str | None, typer.Option("--proxy", help="A proxy of the cluster, for rocketmq-python-client: it speaks gRPC.")
    ] = None,
    count: Annotated[int, typer.Option(help="Messages of each round; a fifth where they go one by one.")] = 10_000,
    body_bytes: Annotated[int, typer.Option(help="Body size.")] = 1024,
    rounds: Annotated[int, typer.Option(help="Rounds of each client, alternating.")] = 3,
    namesrv: Namesrv = None,
    as_json: AsJson = False,
) -> None:
    """Our clients beside another Python client, each round a process of its own."""
    from bench.peers import measure_peers

    figures = measure_peers(python, namesrv, proxy=proxy, count=count, body_bytes=body_bytes, rounds=rounds)
    show("clients, side by side", figures, as_json=as_json)


@app.command("cold")
def cold(
    mebibytes: Annotated[int, typer.Option(help="Size of the old part of the log.")] = 1024,
    rounds: Annotated[int, typer.Option(help="Rounds; each restarts the broker and evicts its log.")] = 3,
    seconds: Annotated[float, typer.Option(help="Length of each measurement.")] = 3.0,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Sends beside a consumer that reads evicted log files; baseline: the same sends alone."""
    from bench.cold import measure_cold

    figures = measure_cold(mebibytes=mebibytes, rounds=rounds, seconds=seconds, directory=directory)
    show("a consumer on evicted files", figures, as_json=as_json)


Jars = Annotated[
    Path, typer.Option("--lib", help="Folder with Apache's jars; Maven fills it if it has none.", file_okay=False)
]
Ours = Annotated[
    str | None,
    typer.Option(help="Our command with {store}, {namesrv_port} and {broker_port}; contrailmq up unless given."),
]
Other = Annotated[str | None, typer.Option(help="A second command like that, in place of Apache's broker.")]
_JARS = Path(tempfile.gettempdir(), "rocketmq-5.5.0-lib")
_PROXY_JARS = Path(tempfile.gettempdir(), "rocketmq-5.5.0-proxy-lib")


@app.command("mixed")
def mixed(
    lib: Jars = _JARS,
    ours: Ours = None,
    other: Other = None,
    headers: Annotated[str, typer.Option(help="Forms of request headers, with commas: json, binary.")] = "json,binary",
    rounds: Annotated[int, typer.Option(help="Rounds of each broker, alternating.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Length of a round.")] = 6.0,
    mebibytes: Annotated[int, typer.Option(help="Size of the older log that one group reads.")] = 512,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Topics, sizes, properties and groups of many kinds at once, beside Apache's broker."""
    from bench.mixed import OURS, Settings, measure_mixed

    forms = tuple(headers.split(","))
    if not set(forms) <= {"json", "binary"}:
        raise typer.BadParameter(f"--headers {headers}: json, binary or both with a comma between")
    settings = Settings(
        lib, ours or OURS, other, forms, rounds, seconds, warm_seconds=seconds, mebibytes=mebibytes, directory=directory
    )
    with errors_in_one_line():
        show("mixed load, ours / the other's (ratio)", measure_mixed(settings), as_json=as_json)


@app.command("replication")
def replication(
    lib: Jars = _JARS,
    is_alone: Annotated[bool, typer.Option("--without-apache", help="Ours alone.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of each system, alternating.", min=1)] = 2,
    seconds: Annotated[float, typer.Option(help="Length of a round.")] = 3.0,
    mebibytes: Annotated[int, typer.Option(help="Size of the log that a slave catches up with.", min=1)] = 2048,
    parts: Annotated[str, typer.Option(help="Which, with commas.")] = "memory,async,catch-up,sync",
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """What a slave costs its master, sends that wait for it, and how fast one catches up, beside Apache's."""
    from bench.replication import PARTS, Settings, measure_replication

    wanted = parts.split(",")
    if unknown := set(wanted) - set(PARTS):
        raise typer.BadParameter(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    settings = Settings(
        lib, rounds, seconds, mebibytes=mebibytes, with_apache=not is_alone, directory=directory, parts=wanted
    )
    tell_parts("replication, ours / Apache's (ratio)", measure_replication(settings), as_json=as_json)


def tell_parts(title: str, parts: Iterator[dict[str, object]], *, as_json: bool) -> None:
    """Each part when it is done, as one object with --json; what fails takes nothing from those before it."""
    figures: dict[str, object] = {}
    try:
        for part in parts:
            figures |= part
            if not as_json:
                show(title, part, as_json=False)
    except ContrailError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(1) from exc
    finally:
        if as_json:
            show(title, figures, as_json=True)


@app.command("apache-programs")
def apache_programs(
    lib: Jars = _JARS,
    ours: Ours = None,
    other: Other = None,
    only: Annotated[
        str, typer.Option(help="Which, with commas.")
    ] = "Producer,BatchProducer,TransactionProducer,Consumer",
    rounds: Annotated[int, typer.Option(help="Rounds of each broker, alternating.", min=1)] = 1,
    seconds: Annotated[float, typer.Option(help="How long a program runs after its first ten seconds.")] = 10.0,
    backlog_seconds: Annotated[float, typer.Option(help="How long the consumer's backlog is written.")] = 12.0,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Apache's own benchmark programs against both brokers."""
    from bench.apache_programs import PROGRAMS, measure_programs
    from bench.mixed import OURS, Settings

    wanted = tuple(program for program in PROGRAMS if program.name in only.split(","))
    if len(wanted) < len(only.split(",")):
        raise typer.BadParameter(f"--only {only}: there are {', '.join(program.name for program in PROGRAMS)}")
    settings = Settings(lib, ours or OURS, other, rounds=rounds, seconds=seconds, directory=directory)
    with errors_in_one_line():
        figures = measure_programs(settings, programs=wanted, backlog_seconds=backlog_seconds)
    show("Apache's benchmark programs, ours / the other's (ratio)", figures, as_json=as_json)


@app.command("pop")
def pop(
    lib: Jars = _JARS,
    ours: Ours = None,
    other: Other = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each broker, alternating.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Length of a round.")] = 6.0,
    messages: Annotated[int, typer.Option(help="In the topic; more than a round takes.", min=1)] = 200_000,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """POP and acknowledgement over remoting, beside Apache's broker."""
    from bench.mixed import OURS, Settings
    from bench.pop import measure_pop

    settings = Settings(
        lib, ours or OURS, other, rounds=rounds, seconds=seconds, warm_seconds=seconds, directory=directory
    )
    with errors_in_one_line():
        figures = measure_pop(settings, messages=messages)
    show("POP and acknowledgement, ours / the other's (ratio)", figures, as_json=as_json)


@app.command("console")
def console(
    topics: Annotated[int, typer.Option(help="Topics of the broker.")] = 2000,
    groups: Annotated[int, typer.Option(help="Groups, each with a position in one topic.")] = 500,
    visits: Annotated[int, typer.Option(help="How often each page is opened.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="How long the broker's CPU is counted, each time.")] = 30,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """The console in chromium, over thousands of topics: time to its pages, and what its questions cost the broker."""
    from bench.console import measure_console

    with errors_in_one_line():
        figures = measure_console(topics=topics, groups=groups, visits=visits, seconds=seconds, directory=directory)
    show("console", figures, as_json=as_json)


@app.command("grpc")
def grpc_calls(
    lib: Annotated[
        Path, typer.Option("--lib", help="Folder with the jars of Apache's proxy; Maven fills it if it has none.")
    ] = _PROXY_JARS,
    ours: Annotated[
        str | None,
        typer.Option(help="Our command with {store}, {namesrv_port}, {broker_port} and {grpc_port}; contrailmq up."),
    ] = None,
    other: Other = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each server, alternating.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Length of a round.")] = 6.0,
    messages: Annotated[int, typer.Option(help="In the topic; a round ends early without enough.", min=1)] = 100_000,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """SendMessage, ReceiveMessage, AckMessage: our broker beside Apache's with its proxy, and an empty handler."""
    from bench.grpc_calls import OURS, measure_grpc
    from bench.mixed import Settings

    settings = Settings(
        lib, ours or OURS, other, rounds=rounds, seconds=seconds, warm_seconds=seconds, directory=directory
    )
    with errors_in_one_line():
        figures = measure_grpc(settings, messages=messages)
    show("gRPC, ours / the other's (ratio), and grpcio alone", figures, as_json=as_json)


@app.command("spark")
def spark(
    count: Annotated[int, typer.Option(help="Messages in the log.")] = 1_000_000,
    body_bytes: Annotated[int, typer.Option(help="Body size.")] = 1024,
    is_mixed: Annotated[
        bool, typer.Option("--mixed", help="Sizes and properties that vary, in 64 topics; in one beside Kafka.")
    ] = False,
    master: Annotated[str | None, typer.Option("--master", help="Spark master; local[*] unless given.")] = None,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Beside Spark's Kafka connector instead, both in an environment of its own.")
    ] = False,
    kafka_home: Annotated[Path | None, typer.Option(help="That environment; in the cache unless given.")] = None,
    fetch_kafka: Annotated[
        bool, typer.Option("--fetch-kafka", help="Build the environment if it is missing: 700 MB by pip and Maven.")
    ] = False,
    maven_settings: Annotated[
        Path | None, typer.Option(help="Settings file for Maven; the user's own unless given.", exists=True)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Measured rounds beside Kafka.")] = 4,
    only: Annotated[
        str | None, typer.Option(help="Only the cases whose names hold one of these words, such as 'exactly,JSON'.")
    ] = None,
    java_options: Annotated[
        str, typer.Option(help="For the JVM of both sides beside Kafka, such as -XX:+UseParallelGC.")
    ] = "",
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Reading, archiving, rebuilding and verifying a log: on Spark, and by the same kernels in a process pool."""
    from bench.spark import measure_spark, uniform
    from bench.spark import mixed as mixed_messages

    if kafka or kafka_home is not None or fetch_kafka:
        from bench.kafka import find_environment
        from bench.spark_kafka import compare

        environment = find_environment(kafka_home, fetch=fetch_kafka, maven_settings=maven_settings)
        compared = compare(
            environment,
            count=count,
            body_bytes=body_bytes,
            rounds=rounds,
            directory=directory,
            java_options=java_options,
            is_mixed=is_mixed,
            only=only,
        )
        show("spark beside kafka", compared, as_json=as_json)
        return
    messages = mixed_messages(count) if is_mixed else uniform(count, body_bytes)
    figures = measure_spark(messages, directory=directory, master=master, only=only)
    show("spark", figures, as_json=as_json)


if __name__ == "__main__":
    app()
