"""`contrailmq bench spark --kafka`: our sources, sink and archive beside Spark's own Kafka connector, in one run.

Both sides run in one Spark session of the comparison's environment (kafka.py), on two cores, over the same
messages: a file store, a topic of ours and a topic of Kafka's, four queues or partitions each. Both brokers are
processes of their own on this machine, flush in the background and acknowledge every write; their CPU is not counted.
Every case runs twice unmeasured and then in `rounds` rounds, the sides taking turns; medians are compared. The JVM
compiles and collects as it does when nobody tells it otherwise, unlike in a short job of ours; it is busy compiling for
several rounds. Options for it, such as another collector, may be given: they are both sides' options.

Kafka's connector gives seven columns, and ours seventeen: cases are measured with all of them, with all but the map of
properties, with ten (Kafka's and tags, ids, birth time and the map), with these without the map, which are the nine
that the targets come from, and with Kafka's own. What a message of ours has as properties, one of Kafka's has as
headers, which its connector leaves out unless asked: a case that gives the map is held against Kafka's reading with the
same five headers, and its line also tells the ratio to the one without. Over mixed messages Kafka has no headers: its
producer did not get them through (records expired after 120 s; the cause is not known).

`compare` is the caller's half: brokers, log, a child process. `main` is the child's.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import contrailmq
from bench.kafka import KAFKA_VERSION, SPARK_VERSION, KafkaBroker, KafkaEnvironment
from bench.spark import CpuMeter, Made, is_chosen, mixed, uniform, write_messages
from bench.spark_lake import JSON_DDL, JSON_TOPIC, json_messages
from contrailmq.message import ContrailError

_TOPIC: Final = "Orders"  # the one that uniform messages are of
_TOPIC_WITH_HEADERS: Final = "OrdersWithHeaders"
_METADATA: Final = "topic,queueId,queueOffset,physicalOffset,storeTimestamp"
_TEN_COLUMNS: Final = "topic,queueId,queueOffset,storeTimestamp,bornTimestamp,msgId,tags,keys,body,properties"
_NINE_COLUMNS: Final = _TEN_COLUMNS.removesuffix(",properties")
_KAFKAS_COLUMNS: Final = "keys,body,topic,queueId,queueOffset,storeTimestamp"
_BROKERS_OWN: Final = "'UNIQ_KEY', 'KEYS', 'TAGS', 'WAIT', 'CLUSTER'"  # what the sink sets itself
_WARM_ROUNDS: Final = 2
_WRITTEN_SHARE: Final = 4  # the cases that write have a log of their own, so many times smaller: disks fill up


class Case(NamedTuple):
    """One comparison. `share`: how many times fewer rows than the log holds."""

    name: str
    target: float | None  # the least ratio to Kafka's rows per second
    kafka: str  # the name of Kafka's side: several cases may share one
    ours: Callable[[], object]
    share: int = 1
    without_headers: str | None = None  # the name of Kafka's side that does the same with less


class Round(NamedTuple):
    seconds: float
    cpu_s: float


def compare(
    environment: KafkaEnvironment,
    *,
    count: int,
    body_bytes: int,
    rounds: int,
    directory: Path | None,
    java_options: str = "",
    is_mixed: bool = False,
    only: str | None = None,
) -> dict[str, object]:
    """Run both sides; gives name -> figures, one line for each case. `only`: as `is_chosen` takes it."""
    from contrailmq.spark.environment import ensure_java
    from contrailmq.testing import LocalCluster

    java = ensure_java()
    folder = Path(tempfile.mkdtemp(prefix="contrailmq-bench-", dir=directory))
    try:
        for name, share in (("store", 1), ("written", _WRITTEN_SHARE)):
            messages = _of_one_topic(mixed(count // share)) if is_mixed else uniform(count // share, body_bytes)
            write_messages(str(folder / name), messages)
        write_messages(str(folder / "json"), json_messages(count))
        config = {"mappedFileSizeCommitLog": 1 << 30, "defaultTopicQueueNums": 4}
        cluster = LocalCluster(store=folder / "ours", config=config, processes=True)
        with KafkaBroker(environment, java, folder / "kafka") as kafka, cluster:
            order = {
                "store": str(folder / "store"),
                "written": str(folder / "written"),
                "json": str(folder / "json"),
                "folder": str(folder / "out"),
                "namesrv": cluster.namesrv,
                "kafka": kafka.address,
                "jars": ",".join(str(jar) for jar in environment.connector_jars()),
                "count": count,
                "rounds": rounds,
                "java_options": java_options,
                "is_mixed": is_mixed,
                "only": only,
            }
            return {
                "messages": count,
                "body bytes": "102 to 16,384, 0 to 12 properties of varying names" if is_mixed else body_bytes,
                "rounds": rounds,
                "Spark, Kafka": f"{SPARK_VERSION}, {KAFKA_VERSION}",
                "options of the JVM": java_options or "its own",
                **_in_child(environment, order),
            }
    finally:
        shutil.rmtree(folder)


def _of_one_topic(messages: Iterator[Made]) -> Iterator[Made]:
    """The topic and queues that the cases read."""
    for number, made in enumerate(messages):
        yield made._replace(topic=_TOPIC, queue=number % 4)


def _in_child(environment: KafkaEnvironment, order: dict[str, object]) -> dict[str, object]:
    places = [str(Path(contrailmq.__file__).parents[1]), str(Path(__file__).parents[1])]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    done = subprocess.run(
        [str(environment.python), "-m", "bench.spark_kafka", json.dumps(order)],
        env={**variables, "PYTHONPATH": os.pathsep.join(places)},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise ContrailError(f"the comparison ended with {done.returncode}; its own messages stand above")
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


class Bench:
    """Both sides' cases in one session. Lives in the child."""

    def __init__(self, order: dict[str, Any]) -> None:
        import contrailmq.spark
        from contrailmq.spark.environment import ARROW_JAVA_OPTIONS

        self.order = order
        self.store, self.count = str(order["store"]), int(order["count"])
        self._number = 0
        self.spark = contrailmq.spark.session(
            "comparison",
            master="local[2]",
            spark_driver_memory="2g",
            **{
                "spark.jars": order["jars"],
                "spark.driver.extraJavaOptions": f"{ARROW_JAVA_OPTIONS} {order['java_options']}",
            },
        )

    # --- what both sides do with a frame
    def fresh(self) -> str:
        """A path that was not used before."""
        self._number += 1
        return str(Path(self.order["folder"]) / str(self._number))

    def noop(self, frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def parquet(self, frame: Any) -> None:
        frame.write.option("compression", "zstd").parquet(self.fresh())

    def stream_noop(self, frame: Any) -> None:
        self._until_end(frame.writeStream.format("noop").option("checkpointLocation", self.fresh()))

    def stream_parquet(self, frame: Any) -> None:
        target = self.fresh()
        writer = frame.writeStream.format("parquet").option("compression", "zstd").option("path", f"{target}/data")
        self._until_end(writer.option("checkpointLocation", f"{target}/checkpoint"))

    def stream_archive(self) -> None:
        from contrailmq.spark import archive_stream

        target = self.fresh()
        self._until_end(archive_stream(self.log_stream_reader(), f"{target}/archive", f"{target}/checkpoint"))

    def _until_end(self, writer: Any) -> None:
        writer.trigger(availableNow=True).start().awaitTermination()

    # --- sources
    def log(self, *, store: str | None = None, **options: str) -> Any:
        return self.spark.read.format("commitlog").options(topics=_TOPIC, **options).load(store or self.store)

    def log_stream_reader(self) -> Any:
        return self.spark.readStream.format("commitlog").options(topics=_TOPIC, path=self.store)

    def log_stream(self, **options: str) -> Any:
        return self.log_stream_reader().options(**options).load()

    def topic(self, *, is_stream: bool = False, **options: str) -> Any:
        reader = self.spark.readStream if is_stream else self.spark.read
        given = {"nameServer": self.order["namesrv"], "subscribe": _TOPIC, "startingOffsets": "earliest"}
        return reader.format("rocketmq").options(**given, **options).load()

    def kafka(self, *, is_stream: bool = False, has_headers: bool = False) -> Any:
        reader = self.spark.readStream if is_stream else self.spark.read
        topic = _TOPIC_WITH_HEADERS if has_headers else _TOPIC
        given = {"kafka.bootstrap.servers": self.order["kafka"], "subscribe": topic, "startingOffsets": "earliest"}
        return reader.format("kafka").options(**given, includeHeaders=has_headers).load()

    # --- writes
    def send_ours(self, topic: str, store: str, **options: str) -> None:
        rows = self.log(store=store, columns="queueId,keys,body")
        writer = rows.write.format("rocketmq").option("nameServer", self.order["namesrv"])
        writer.options(topic=topic, **options).mode("append").save()

    def send_exactly_once(self) -> None:
        self.send_ours("Out", self.order["written"], delivery="exactly-once", checkpointLocation=self.fresh())

    def fill_ours(self) -> None:
        """The log's messages with their own properties, too."""
        own = f"map_filter(properties, (name, value) -> name not in ({_BROKERS_OWN})) as properties"
        rows = self.log(columns="queueId,keys,tags,body,properties").selectExpr("queueId", "keys", "tags", "body", own)
        writer = rows.write.format("rocketmq").option("nameServer", self.order["namesrv"])
        writer.option("topic", _TOPIC).mode("append").save()

    def send_kafka(self, topic: str, store: str) -> None:
        rows = self.log(store=store, columns="queueId,keys,body")
        self._to_kafka(topic, rows.selectExpr("keys as key", "body as value", "queueId as partition"))

    # --- typed bodies
    def json_table(self) -> None:
        """Ours: the log's JSON bodies as a typed table, with place and id of each message."""
        from contrailmq.spark import tables_stream

        target = self.fresh()
        source = self.spark.readStream.format("commitlog").options(topics=JSON_TOPIC, path=self.order["json"])
        writer = tables_stream(source, f"{target}/lake", f"{target}/checkpoint", {JSON_TOPIC: {"schema": JSON_DDL}})
        self._until_end(writer)

    def json_kafka(self) -> None:
        """Kafka's: `from_json` to Parquet, with what it has of places."""
        target = self.fresh()
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.order["kafka"])
        frame = reader.options(subscribe=JSON_TOPIC, startingOffsets="earliest").load()
        typed = f"from_json(cast(value as string), '{JSON_DDL}') as data"
        frame = frame.selectExpr("partition", "offset", "timestamp", "cast(key as string)", typed)
        frame = frame.select("partition", "offset", "timestamp", "key", "data.*")
        writer = frame.writeStream.format("parquet").option("compression", "zstd").option("path", f"{target}/data")
        self._until_end(writer.option("checkpointLocation", f"{target}/checkpoint"))

    def fill_json(self) -> None:
        rows = self.spark.read.format("commitlog").options(topics=JSON_TOPIC, columns="queueId,keys,body")
        rows = rows.load(self.order["json"])
        self._to_kafka(JSON_TOPIC, rows.selectExpr("keys as key", "body as value", "queueId as partition"))

    def send_kafka_headers(self) -> None:
        """The log's messages with their properties as headers."""
        header = "struct(e.key as key, cast(e.value as binary) as value)"
        headers = f"transform(map_entries(properties), e -> {header}) as headers"
        rows = self.log(columns="queueId,keys,body,properties")
        rows = rows.selectExpr("keys as key", "body as value", "queueId as partition", headers)
        self._to_kafka(_TOPIC_WITH_HEADERS, rows)

    def _to_kafka(self, topic: str, rows: Any) -> None:
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", self.order["kafka"])
        writer.option("topic", topic).mode("append").save()

    def fill(self) -> None:
        """The same messages in our topic, in Kafka's, and (already) in the file store, whose queues are built."""
        from contrailmq.spark.jobs.rebuild import rebuild, remove_old
        from contrailmq.spark.runtime.engine import SparkEngine

        remove_old(rebuild(self.store, SparkEngine(self.spark)))
        self.fill_ours()
        self.send_kafka(_TOPIC, self.store)
        if not self.order["is_mixed"]:
            self.send_kafka_headers()
        self.fill_json()
        counts = {
            "log": self.log().count(),
            "topic": self.topic().count(),
            "Kafka": self.kafka().count(),
        }
        if not self.order["is_mixed"]:
            counts["Kafka, with headers"] = self.kafka(has_headers=True).where("size(headers) = 5").count()
        if set(counts.values()) != {self.count}:
            raise ContrailError(f"the sides do not hold the same {self.count} messages: {counts}")

    # --- the table
    def kafka_sides(self) -> dict[str, Callable[[], object]]:
        kafka = self.kafka
        return {
            "read": lambda: self.noop(kafka()),
            "read, headers": lambda: self.noop(kafka(has_headers=True)),
            "parquet": lambda: self.parquet(kafka()),
            "stream": lambda: self.stream_noop(kafka(is_stream=True)),
            "stream, headers": lambda: self.stream_noop(kafka(is_stream=True, has_headers=True)),
            "stream parquet": lambda: self.stream_parquet(kafka(is_stream=True)),
            "stream parquet, headers": lambda: self.stream_parquet(kafka(is_stream=True, has_headers=True)),
            "write": lambda: self.send_kafka("Out", self.order["written"]),
            "json": self.json_kafka,
        }

    def cases(self) -> list[Case]:
        from contrailmq.spark.jobs.archive import archive
        from contrailmq.spark.runtime.engine import SparkEngine

        engine, log, topic = SparkEngine(self.spark), self.log, self.topic
        noop, stream, stream_noop, parquet = self.noop, self.log_stream, self.stream_noop, self.stream_parquet

        def write() -> None:
            self.send_ours("Out", self.order["written"])

        def count_by_queue() -> None:
            log(columns=_METADATA).groupBy("queueId").count().collect()

        def with_map(name: str, target: float | None, kafka: str, ours: Callable[[], object]) -> Case:
            if self.order["is_mixed"]:
                return Case(name, None, kafka, ours)
            return Case(name, target, f"{kafka}, headers", ours, without_headers=kafka)

        ten, alike = _TEN_COLUMNS, _KAFKAS_COLUMNS
        return [
            with_map("files, all columns -> noop", 1.5, "read", lambda: noop(log())),
            with_map("files, ten columns -> noop", 1.5, "read", lambda: noop(log(columns=ten))),
            Case("files, without properties -> noop", 1.5, "read", lambda: noop(log(properties="none"))),
            Case("files, nine columns -> noop", 1.5, "read", lambda: noop(log(columns=_NINE_COLUMNS))),
            Case("files, Kafka's columns -> noop", None, "read", lambda: noop(log(columns=alike))),
            Case("files, metadata -> count", 4.0, "read", count_by_queue),
            Case("files -> archive", 2.5, "parquet", lambda: archive(self.store, self.fresh(), engine)),
            with_map("files, AvailableNow -> noop", 1.0, "stream", lambda: stream_noop(stream())),
            with_map("files, AvailableNow, ten columns -> noop", 1.0, "stream",
                     lambda: stream_noop(stream(columns=ten))),
            Case("files, AvailableNow, without properties -> noop", 1.0, "stream",
                 lambda: stream_noop(stream(properties="none"))),
            Case("files, AvailableNow, Kafka's columns -> noop", None, "stream",
                 lambda: stream_noop(stream(columns=alike))),
            with_map("files, AvailableNow -> Parquet", 1.0, "stream parquet", lambda: parquet(stream())),
            with_map("files, AvailableNow, ten columns -> Parquet", 1.0, "stream parquet",
                     lambda: parquet(stream(columns=ten))),
            Case("files, AvailableNow, without properties -> Parquet", 1.0, "stream parquet",
                 lambda: parquet(stream(properties="none"))),
            Case("files, AvailableNow, nine columns -> Parquet", 1.0, "stream parquet",
                 lambda: parquet(stream(columns=_NINE_COLUMNS))),
            Case("files, AvailableNow, Kafka's columns -> Parquet", None, "stream parquet",
                 lambda: parquet(stream(columns=alike))),
            Case("files, AvailableNow -> archive", 1.5, "stream parquet", self.stream_archive),
            with_map("broker, all columns -> noop", 1.0, "read", lambda: noop(topic())),
            Case("broker, without properties -> noop", 1.0, "read", lambda: noop(topic(properties="none"))),
            Case("broker, Kafka's columns -> noop", None, "read", lambda: noop(topic(columns=alike))),
            with_map("broker, AvailableNow -> noop", None, "stream", lambda: stream_noop(topic(is_stream=True))),
            Case("write, acknowledged", 0.7, "write", write, _WRITTEN_SHARE),
            Case("write, exactly once", None, "write", self.send_exactly_once, _WRITTEN_SHARE),
            Case("files, JSON of ten fields -> typed table", None, "json", self.json_table),
        ]  # fmt: skip

    def run(self) -> dict[str, str]:
        self.fill()
        kafka, cases = self.kafka_sides(), [case for case in self.cases() if is_chosen(case.name, self.order["only"])]
        took: dict[str, list[Round]] = {}
        with CpuMeter() as meter:
            for number in range(int(self.order["rounds"]) + _WARM_ROUNDS):
                measured = set()
                for case in cases:
                    sides = [(case.name, case.ours)]
                    for other in (case.kafka, case.without_headers):
                        if other is not None and other not in measured:
                            measured.add(other)
                            sides.insert(len(sides) if number % 2 else 0, (f"kafka {other}", kafka[other]))
                    for name, side in sides:
                        shutil.rmtree(self.order["folder"], ignore_errors=True)  # what the case before wrote
                        round_ = _timed(side, meter)
                        print(
                            f"round {number}, {name}: {round_.seconds:.2f} s, CPU {round_.cpu_s:.2f} s",
                            file=sys.stderr,
                            flush=True,
                        )
                        if number >= _WARM_ROUNDS:
                            took.setdefault(name, []).append(round_)
        self.spark.stop()
        return {case.name: _line(case, self.count, took) for case in cases}


def _timed(side: Callable[[], object], meter: CpuMeter) -> Round:
    os.sync()  # what is on its way to the disk would be so meanwhile
    cpu_s, began_s = meter.seconds(), time.perf_counter()
    side()
    return Round(time.perf_counter() - began_s, meter.seconds() - cpu_s)


def _line(case: Case, count: int, took: dict[str, list[Round]]) -> str:
    rows = count // case.share

    def median(name: str) -> Round:
        rounds = took[name]
        return Round(statistics.median(r.seconds for r in rounds), statistics.median(r.cpu_s for r in rounds))

    ours, kafka = median(case.name), median(f"kafka {case.kafka}")
    ratio = kafka.seconds / ours.seconds
    target = "" if case.target is None else f", target {case.target}: {'met' if ratio >= case.target else 'SHORT'}"
    plain = case.without_headers
    besides = "" if plain is None else f"; without headers {median(f'kafka {plain}').seconds / ours.seconds:.2f}x"
    return (
        f"{rows / ours.seconds / 1000:.0f}k rows/s ({ours.cpu_s:.1f} CPU s), Kafka {rows / kafka.seconds / 1000:.0f}k "
        f"({kafka.cpu_s:.1f}): {ratio:.2f}x, by CPU {kafka.cpu_s / ours.cpu_s:.2f}x{target}{besides}"
    )


def main(order: str) -> None:
    """The child: one JSON line with a line of figures for each case."""
    print(json.dumps(Bench(json.loads(order)).run()))


if __name__ == "__main__":
    main(sys.argv[1])
