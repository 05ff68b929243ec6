"""Typed tables over a store: each message once, in its table or the quarantine, whatever bodies hold or is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import contrailmq
from contrailmq import Message
from contrailmq.cli import app
from contrailmq.spark.decoding.store_files import confirmed_end
from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.iceberg import own_catalog
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.spark.topic_tables.job import tables
from contrailmq.spark.topic_tables.row_files import partition_values
from contrailmq.spark.topic_tables.spec import TablesError, read_specs
from contrailmq.spark.topic_tables.table_manifest import TableManifest, files_of
from contrailmq.store import MessageStore, StoreConfig
from spark.test_archive_care import LIMITED

ONE = LocalEngine(workers=1)
IS_LONG = bool(os.environ.get("CONTRAILMQ_LONG"))
ORDERS = "id bigint NOT NULL, customer string, amount double"


def put(store: Path, topic: str, bodies: Iterable[Any], *, queues: int = 2, queue: int = 0, **given: Any) -> None:
    """Append messages, in turn to so many queues from one on; what is not bytes is sent as JSON."""
    config = StoreConfig(store, mapped_file_size_commit_log=1 << 20, flush_disk_type="ASYNC_FLUSH")
    with MessageStore(config) as opened:
        for number, body in enumerate(bodies):
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            opened.put(Message(topic, data, **given), queue_id=queue + number % queues)


def stored(store: Path, topic: str) -> dict[tuple[int, int], bytes]:
    """A plain read of the log: bodies by queue and offset."""
    found = {}
    with MessageStore(StoreConfig(store, mapped_file_size_commit_log=1 << 20)) as opened:
        for (name, queue_id), (begin, end) in opened.queues().items():
            while name == topic and begin < end:
                for message in opened.get(topic, queue_id=queue_id, offset=begin, max_count=32):
                    found[queue_id, message.queue_offset] = message.body
                    begin = message.queue_offset + 1
    return found


def rows_of(target: Path, topic: str | None) -> list[dict[str, Any]]:
    """The rows that commits list, read file by file with plain pyarrow; values of directories as texts."""
    rows = []
    for file in files_of(TableManifest(target).load().files, topic):
        names = tuple(part.split("=")[0] for part in file.path.split("/")[2:-1] if "=" in part)
        values = partition_values(file.path, names) if topic is not None else {}
        read = pq.read_table(target / file.path, partitioning=None).to_pylist()
        assert len(read) == file.rows
        rows += [{**row, **values} for row in read]
    return rows


def place(row: dict[str, Any]) -> tuple[int, int]:
    return (row["_queueId"], row["_queueOffset"]) if "_queueId" in row else (row["queueId"], row["queueOffset"])


def order(number: int) -> dict[str, Any]:
    return {"id": number, "customer": f"c{number % 3}", "amount": number / 4}


def test_rows_and_quarantine_together_are_a_plain_read_of_the_log(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [order(n) for n in range(20)] + [b"{", b"\xff\xfe", {"id": "x"}, {"customer": "none"}, [1]])
    put(store, "Other", [{"a": 1}])
    done = tables(str(store), str(target), ONE, {"Orders": {"schema": ORDERS}})
    assert (done.rows, done.quarantined, done.tables) == (20, 5, {"Orders": 20})
    held, good, bad = stored(store, "Orders"), rows_of(target, "Orders"), rows_of(target, None)
    for row in good:
        assert {name: row[name] for name in ("id", "customer", "amount")} == json.loads(held[place(row)])
    assert {place(row): row["body"] for row in bad} == {
        where: body for where, body in held.items() if where not in {place(row) for row in good}
    }
    assert len(good) + len(bad) == len(held) == 25
    assert {row["topic"] for row in bad} == {"Orders"}
    assert all(row["msgId"] and row["brokerName"] for row in bad)
    reasons = {row["body"]: row["reason"] for row in bad}
    assert reasons[b'{"id": "x"}'] == "Expected `int`, got `str` - at `$.id`"
    assert reasons[b'{"customer": "none"}'] == "Object missing required field `id`"


def test_a_run_adds_what_came_since_and_a_new_topic_begins_at_the_log_s_beginning(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [order(n) for n in range(5)])
    put(store, "Other", [{"a": n} for n in range(3)])
    assert tables(str(store), str(target), ONE, {"Orders": {"schema": ORDERS}}).rows == 5
    assert tables(str(store), str(target), ONE, {"Orders": {"schema": ORDERS}}).rows == 0
    put(store, "Orders", [order(n) for n in range(5, 9)])
    done = tables(str(store), str(target), ONE, {"Orders": {"schema": ORDERS}, "Other": {}})
    assert done.tables == {"Orders": 4, "Other": 3}
    assert done.offsets == {str(store): confirmed_end(str(store))}
    assert sorted(row["id"] for row in rows_of(target, "Orders")) == list(range(9))
    assert sorted(row["a"] for row in rows_of(target, "Other")) == [0, 1, 2]


def test_an_inferred_schema_is_fixed_and_other_rows_are_bad(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    first = [
        {"id": 1, "price": 1, "to": {"city": "x"}, "tags": [], "none": None},
        {"id": 2, "price": 1.5, "tags": ["a"]},
    ]
    put(store, "Orders", first)
    tables(str(store), str(target), ONE, {"Orders": {}})
    put(store, "Orders", [{"id": 3, "price": 2, "new": 1}, {"id": "four"}])
    done = tables(str(store), str(target), ONE, {"Orders": {}})
    assert (done.rows, done.quarantined) == (1, 1)
    schema = pq.read_schema(target / files_of(TableManifest(target).load().files, "Orders")[0].path)
    found = {field.name: str(field.type) for field in schema if not field.name.startswith("_")}
    assert found == {
        "id": "int64", "price": "double", "to": "struct<city: string>", "tags": "list<element: string>",
    }  # fmt: skip
    assert {row["id"]: row["price"] for row in rows_of(target, "Orders")} == {1: 1.0, 2: 1.5, 3: 2.0}


def test_an_inferred_schema_that_evolves_gains_the_fields_of_later_messages(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [{"id": 1}])
    tables(str(store), str(target), ONE, {"Orders": {"evolve": True}})
    put(store, "Orders", [{"id": 2}] * 1500 + [{"id": 3, "late": True}])
    assert tables(str(store), str(target), ONE, {"Orders": {"evolve": True}}).quarantined == 0
    assert {row["id"]: row.get("late") for row in rows_of(target, "Orders")} == {1: None, 2: None, 3: True}


@pytest.mark.parametrize("evolve", [False, True])
def test_a_field_with_the_name_of_a_table_s_own_column_stops_no_inferred_table(tmp_path: Path, evolve: bool) -> None:
    """One sender would stop all tables, and nobody gave a schema that could be corrected."""
    store, target = tmp_path / "store", tmp_path / "lake"
    specs = {topic: {"evolve": evolve} for topic in ("Orders", "Visits")}
    put(store, "Orders", [{"id": 1, "_KEYS": "x", "to": {"_tags": "y"}}])
    put(store, "Visits", [{"id": 2}])
    assert tables(str(store), str(target), ONE, specs).rows == 2
    put(store, "Visits", [{"id": 3, "_queueOffset": 7}])
    done = tables(str(store), str(target), ONE, specs)
    assert (done.rows, done.quarantined) == (1, 0)
    assert [(row["id"], row["_keys"], row["to"]) for row in rows_of(target, "Orders")] == [(1, None, {"_tags": "y"})]
    assert {(row["id"], row["_queueOffset"]) for row in rows_of(target, "Visits")} == {(2, 0), (3, 1)}


def test_a_value_out_of_the_declared_type_is_bad_though_the_table_s_column_is_wider(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    schema = "id int, price decimal(4,2), parts array<struct<f: float, d: decimal(3,0)>>"
    good = [{"id": 1, "price": 12.34, "parts": [{"f": 1e38, "d": 999}]}, {"id": 2}]
    put(store, "Orders", [*good, {"price": 123.4}, {"parts": [{"f": 1e39}]}, {"parts": [{"d": 1000}]}, {"id": 2**31}])
    done = tables(str(store), str(target), ONE, {"Orders": {"schema": schema}})
    assert (done.rows, done.quarantined) == (2, 4)
    assert sorted(row["id"] for row in rows_of(target, "Orders")) == [1, 2]
    reasons = sorted(row["reason"].split(":")[0] for row in rows_of(target, None))
    assert reasons == [
        "Expected `float` <= 3.4028234663852886e+38 - at `$.parts[0].f`",
        "Expected `int` <= 2147483647 - at `$.id`",
        "parts",
        "price",
    ]
    wider = schema.replace("decimal(4,2)", "decimal(5,2)")
    put(store, "Orders", [{"id": 3, "price": 123.4}])
    assert tables(str(store), str(target), ONE, {"Orders": {"schema": wider}}).rows == 1


def test_a_schema_evolves_without_rewriting(tmp_path: Path) -> None:
    """Added, widened and removed fields; files of before stay as they are."""
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [{"id": 1, "n": 7, "old": "o"}, {"id": 2, "n": 2**40}])
    assert tables(str(store), str(target), ONE, {"Orders": {"schema": "id int, n int, old string"}}).quarantined == 1
    before = TableManifest(target).load().files
    put(store, "Orders", [{"id": 2**40, "n": 2**40, "old": "x", "new": "y"}])
    tables(str(store), str(target), ONE, {"Orders": {"schema": "id bigint, n bigint, new string"}})
    after = TableManifest(target).load().files
    assert after[: len(before)] == before
    rows = {row["id"]: (row["n"], row["old"], row.get("new")) for row in rows_of(target, "Orders")}
    assert rows == {1: (7, "o", None), 2**40: (2**40, None, "y")}


def test_an_incompatible_schema_stops_with_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [{"id": 1}])
    tables(str(store), str(target), ONE, {"Orders": {"schema": "id bigint"}})
    put(store, "Orders", [{"id": "two"}])
    text = "table Orders: field id is string, and the table has it as bigint; nothing was written: .* another directory"
    with pytest.raises(TablesError, match=text):
        tables(str(store), str(target), ONE, {"Orders": {"schema": "id string"}})
    assert tables(str(store), str(target), ONE, {"Orders": {"schema": "id bigint"}}).quarantined == 1


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"schema": "id bigint", "partition_by": ["nope"]}, "partition_by names 'nope', which is not a column"),
        ({"schema": "id bigint, x double", "partition_by": ["x"]}, "it takes text, whole numbers, booleans, dates"),
        ({"schema": "id bigint", "partition_by": ["_msgId"]}, "differs in every row"),
        ({"schema": "id bigint", "sort_by": ["id", "id"]}, "sort_by names a column twice"),
        ({"schema": "_tags string"}, "the field _tags has the name of a column that every table has"),
        ({"schema": "id bigint", "evolve": True}, "evolve is for inferred schemas"),
        ({"schema": "id bigint", "shape": "x"}, "unknown field `shape`"),
        ({"schema": "id bigint", "key": ["id"], "partition_by": ["id"]}, "laid out by its key"),
        ({"schema": "id double", "key": ["id"]}, "it takes text, whole numbers"),
        ({"schema": "id bigint", "key": ["_queueId"]}, "key names '_queueId', which is not a column"),
        ({"schema": "id bigint", "delete": {"id": [1]}}, "delete is for tables with a key"),
        ({"table": "orc"}, "Invalid enum value 'orc'"),
        ({"schema": "id biginteger"}, "something else after 'id biginteger' than a type"),
    ],
)
def test_what_a_table_cannot_be_is_refused_in_words(tmp_path: Path, spec: dict[str, Any], text: str) -> None:
    put(tmp_path / "store", "Orders", [{"id": 1}])
    with pytest.raises(TablesError, match=text):
        tables(str(tmp_path / "store"), str(tmp_path / "lake"), ONE, {"Orders": spec})
    assert not list((tmp_path / "lake").glob("tables/**/*.parquet"))


def test_the_layout_of_a_table_is_fixed_by_its_first_row(tmp_path: Path) -> None:
    put(tmp_path / "store", "Orders", [order(1)])
    tables(str(tmp_path / "store"), str(tmp_path / "lake"), ONE, {"Orders": {}})
    with pytest.raises(TablesError, match=r"begun with .*'_date'.* and .*'customer'.* is given"):
        tables(str(tmp_path / "store"), str(tmp_path / "lake"), ONE, {"Orders": {"partition_by": ["customer"]}})


def test_tables_and_archives_do_not_share_a_directory(tmp_path: Path) -> None:
    put(tmp_path / "store", "Orders", [order(1)])
    archive(str(tmp_path / "store"), str(tmp_path / "archive"), ONE)
    with pytest.raises(TablesError, match="is an archive, no place for tables"):
        tables(str(tmp_path / "store"), str(tmp_path / "archive"), ONE, {"Orders": {}})


AWKWARD = ["eu", "", None, "a/b=c", "__HIVE_DEFAULT_PARTITION__", "..", "é%20", "x" * 65]


def test_files_lie_in_the_partitions_and_the_order_that_a_table_is_to_have(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [{"region": region, "n": -n} for n in range(3) for region in AWKWARD])
    spec = {"schema": "region string, n int", "partition_by": ["region"], "sort_by": ["n"]}
    done = tables(str(store), str(target), ONE, {"Orders": spec})
    assert done.quarantined == 3  # a name that no directory can have
    held: dict[str | None, list[int]] = {}
    for row in rows_of(target, "Orders"):
        held.setdefault(row["region"], []).append(row["n"])
    assert held.pop(None) == [-2, -2, -1, -1, 0, 0]  # an empty text is null in a partition, as in Hive and Delta
    assert held == {region: [-2, -1, 0] for region in AWKWARD if region and len(region) < 65}


def published(target: Path, form: str, topic: str | None) -> pa.Table:
    """A table as another library reads it."""
    if form == "delta":
        deltalake = pytest.importorskip("deltalake")
        place = target / "quarantine" if topic is None else target / "tables" / topic
        return deltalake.DeltaTable(str(place)).to_pyarrow_table()
    pytest.importorskip("pyiceberg")
    name = "contrailmq.quarantine" if topic is None else f"tables.{topic}"
    return own_catalog(str(target)).load_table(name).scan().to_arrow()


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize("partition_by", [["_date", "customer"], [], ["_queueId"]])
def test_a_published_table_holds_the_same_rows_before_and_after_evolution(
    tmp_path: Path, form: str, partition_by: list[str]
) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    for number, schema in enumerate(("id int, customer string", "id bigint, customer string, amount double")):
        put(store, "Orders", [*map(order, range(number * 10, number * 10 + 10)), b"bad"])
        spec = {"schema": schema, "table": form, "partition_by": partition_by}
        for _ in range(2):
            tables(str(store), str(target), ONE, {"Orders": spec})
    rows = published(target, form, "Orders").to_pylist()
    found = {row["id"]: (row["customer"], row["amount"]) for row in rows}
    assert len(rows) == 20
    assert found == {n: (f"c{n % 3}", n / 4 if n >= 10 else None) for n in range(20)}
    assert all(row["_queueOffset"] >= 0 and row["_storeTimestamp"] is not None for row in rows)
    assert published(target, form, None)["body"].to_pylist() == [b"bad", b"bad"]


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_topic_and_a_partition_may_have_any_name(tmp_path: Path, form: str) -> None:
    """A group's retry topic, and texts that paths and URLs take for something else."""
    store, target = tmp_path / "store", tmp_path / "lake"
    regions = [region for region in AWKWARD if region and len(region) < 65] + ["a b", "%41", "#?&", "x:y\\z"]
    put(store, "%RETRY%billing", [{"id": n, "region": region} for n, region in enumerate(regions)])
    tables(str(store), str(target), ONE, {"%RETRY%billing": {"table": form, "partition_by": ["region"]}})
    table = published(target, form, "~25RETRY~25billing")
    assert dict(zip(table["id"].to_pylist(), table["region"].to_pylist(), strict=True)) == dict(enumerate(regions))


def latest(store: Path, topic: str) -> dict[int, Any]:
    """The newest state of each key by a plain read, in the order of the queue that it is in."""
    found: dict[int, Any] = {}
    for _, body in sorted(stored(store, topic).items()):
        row = json.loads(body)
        found[row["id"]] = row
    return {key: row for key, row in found.items() if row.get("op") != "d"}


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_change_stream_is_a_table_of_the_newest_row_of_each_key(tmp_path: Path, form: str) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    spec = {
        "schema": "id bigint, n int, op string",
        "key": ["id"],
        "delete": {"op": ["d", "D"]},
        "table": form,
        "buckets": 4,
    }
    for begin in (0, 100, 200):
        changes = [{"id": n % 17, "n": n, "op": "d" if n % 5 == 0 else "u"} for n in range(begin, begin + 100)]
        for queue in range(3):  # a key has one queue
            put(store, "Orders", [c for c in changes if c["id"] % 3 == queue], queues=1, queue=queue)
        done = tables(str(store), str(target), ONE, {"Orders": spec})
        assert (done.rows, done.quarantined) == (100, 0)
        rows = rows_of(target, "Orders")
        assert {row["id"]: {n: row[n] for n in ("id", "n", "op")} for row in rows} == latest(store, "Orders")
        assert len(rows) == len({row["id"] for row in rows})
        table = published(target, form, "Orders")
        assert dict(zip(*table.select(["id", "n"]).to_pydict().values(), strict=True)) == {
            r["id"]: r["n"] for r in rows
        }
    assert not list((target / "changes").glob("**/*.parquet"))


def test_duckdb_and_pandas_read_tables_whose_files_were_replaced(tmp_path: Path) -> None:
    """By key, twice; replaced files are still there, and the lists of Delta and Iceberg do not have them."""
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pandas")
    deltalake = pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    store, target = tmp_path / "store", tmp_path / "lake"
    specs = {
        topic: {"schema": "id int, n int", "key": ["id"], "buckets": 2, "table": form}
        for topic, form in (("Users", "delta"), ("Places", "iceberg"))
    }
    for begin in (0, 20):
        for topic in specs:
            put(store, topic, [{"id": n % 7, "n": n} for n in range(begin, begin + 20)], queues=1)
        tables(str(store), str(target), ONE, specs)
    wanted = [(n % 7, n) for n in range(35, 40)] + [(n % 7, n) for n in (33, 34)]
    delta = deltalake.DeltaTable(str(target / "tables" / "Users"))
    assert len(list((target / "tables" / "Users").glob("**/*.parquet"))) > len(delta.file_uris())
    scan = own_catalog(str(target)).load_table("tables.Places").scan()
    for files in (delta.file_uris(), [task.file.file_path for task in scan.plan_files()]):
        read = duckdb.read_parquet(files).query("t", "select id, n from t").fetchall()
        assert sorted(read) == sorted(wanted)
    for frame in (delta.to_pandas(), scan.to_pandas()):
        assert sorted(zip(frame["id"], frame["n"], strict=True)) == sorted(wanted)


def test_a_body_of_nothing_deletes_the_row_of_the_messages_key(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Users", [{"id": n, "name": "x"} for n in range(4)] + [{"name": "no key"}], queues=1)
    spec = {"Users": {"schema": "id bigint, name string", "key": ["id"]}}
    assert tables(str(store), str(target), ONE, spec).quarantined == 1
    put(store, "Users", [b"null"], queues=1, keys=["2"])
    put(store, "Users", [b"null"], queues=1, keys=["two"])
    put(store, "Users", [b"null"], queues=1)
    put(store, "Users", [b"null"], queues=1, keys=["77"])  # of a row that is not there
    assert tables(str(store), str(target), ONE, spec).quarantined == 2
    assert sorted(row["id"] for row in rows_of(target, "Users")) == [0, 1, 3]
    put(store, "Users", [{"id": 2, "name": "again"}], queues=1)
    tables(str(store), str(target), ONE, spec)
    assert {row["id"]: row["name"] for row in rows_of(target, "Users")} == {0: "x", 1: "x", 2: "again", 3: "x"}
    reasons = [row["reason"] for row in rows_of(target, None)]
    assert reasons[0] == "the key id is null: which row it changes is not known"
    assert reasons[1:] == [
        "the body deletes a key, and the message's keys are 'two': it takes id",
        "the body deletes a key, and the message's keys are None: it takes id",
    ]


def test_only_buckets_with_changes_are_rewritten_and_old_files_wait_a_week(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    spec = {"Users": {"schema": "id bigint, n int", "key": ["id"], "buckets": 8}}
    put(store, "Users", [{"id": n, "n": 0} for n in range(64)])
    tables(str(store), str(target), ONE, spec)
    before = TableManifest(target).load()
    put(store, "Users", [{"id": 5, "n": 1}])
    tables(str(store), str(target), ONE, spec)
    after = TableManifest(target).load()
    new, gone = before.changes_to(after)
    assert (len(new), len(gone), len(before.files)) == (1, 1, 8)
    (removed,) = after.removed
    assert removed.path == gone[0].path
    assert (target / removed.path).exists()
    with TableManifest(target).held():
        assert TableManifest(target).forget_replaced(removed.time_ms) == 1
    assert not (target / removed.path).exists()
    assert {row["id"]: row["n"] for row in rows_of(target, "Users")} == {n: int(n == 5) for n in range(64)}


KILLS = 50 if IS_LONG else 5


@pytest.mark.kills
def test_whatever_is_killed_when_the_tables_hold_every_message_once(tmp_path: Path) -> None:
    """Each round brings messages, a table of Delta's and a field more; its run dies before its n-th change to files."""
    store, target, config = tmp_path / "store", tmp_path / "lake", tmp_path / "tables.toml"
    tried = [0, 3, 14, 40, 55] if KILLS == 5 else list(range(KILLS))
    died = 0
    for number, at in enumerate(tried):
        bodies = [{**order(n), f"f{number}": n} for n in range(number * 7, number * 7 + 7)]
        put(store, "Orders", [*bodies, b"bad"])
        put(store, "Other", bodies)
        put(store, "Users", [{"id": n % 9, "n": n} for n in range(number * 7, number * 7 + 7)], queues=1)
        text = f"[Orders]\ntable = 'delta'\nschema = '{ORDERS}, f{number} int'\n[Other]\nevolve = true\n"
        text += "[Users]\nschema = 'id int, n bigint'\nkey = ['id']\nbuckets = 3\ntable = 'iceberg'\n"
        config.write_text(text)
        died += run_killed(store, target, config, at)
    assert died >= len(tried) // 2, "the places are too late: most runs lived"
    tables(str(store), str(target), ONE, read_specs(config))
    for topic, bad in (("Orders", len(tried)), ("Other", 0)):
        held = stored(store, topic)
        good = rows_of(target, topic)
        assert {place(row): row["id"] for row in good} == {
            where: json.loads(body)["id"] for where, body in held.items() if body != b"bad"
        }
        assert len(good) == len(held) - bad
    assert len(rows_of(target, None)) == len(tried)
    ids = published(target, "delta", "Orders")["id"].to_pylist()
    assert sorted(ids) == sorted(row["id"] for row in rows_of(target, "Orders"))
    users = published(target, "iceberg", "Users")
    assert {row["id"]: row["n"] for row in users.to_pylist()} == {
        key: row["n"] for key, row in latest(store, "Users").items()
    }
    assert len(users) == 9
    state = TableManifest(target).load()
    paths = [*(file.path for file in state.files), *(file.path for file in state.removed)]
    listed = {str(target / path) for path in paths}
    assert {str(path) for path in target.glob("[cqt]*/**/*.parquet")} == listed
    assert len(published(target, "iceberg", None)) == len(published(target, "delta", None)) == len(tried)


def run_killed(store: Path, target: Path, config: Path, at: int) -> bool:
    """Whether the run died at that place; otherwise it came to its end."""
    script = Path(__file__).with_name("killed_tables.py")
    done = subprocess.run(
        [sys.executable, str(script), str(store), str(target), str(config), str(at)],
        env={**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def test_the_command_keeps_tables_by_a_file(tmp_path: Path) -> None:
    put(tmp_path / "store", "Orders", [order(n) for n in range(4)])
    (tmp_path / "orders.ddl").write_text(ORDERS)
    (tmp_path / "tables.toml").write_text("[Orders]\nschema = 'orders.ddl'\nsort_by = ['amount']\n")
    words = [
        "pipeline",
        "tables",
        "--store",
        str(tmp_path / "store"),
        "--to",
        str(tmp_path / "lake"),
        "--engine",
        "local",
    ]
    done = CliRunner().invoke(app, [*words, "--config", str(tmp_path / "tables.toml"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["tables"] == {"Orders": 4}
    refused = CliRunner().invoke(app, words)
    assert "give either --topics or --config" in refused.output
    (tmp_path / "tables.toml").write_text("[Orders")
    refused = CliRunner().invoke(app, [*words, "--config", str(tmp_path / "tables.toml")])
    assert refused.exit_code == 2
    assert "tables.toml is not TOML" in refused.output


def test_a_topic_that_no_store_has_is_an_error_with_the_nearest_name_and_nothing_is_written(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [order(n) for n in range(3)])
    put(tmp_path / "other", "Visits", [{"a": 1}])
    with pytest.raises(TablesError, match=r"has no topic Order \(did you mean Orders\?\), zzz: check the name"):
        tables(f"{store},{tmp_path / 'other'}", str(target), ONE, {"Orders": {}, "Visits": {}, "Order": {}, "zzz": {}})
    assert not (target / "tables").exists()
    asked = ["pipeline", "tables", "--store", str(store), "--to", str(target), "--topics", "order", "--engine", "local"]
    for more in ([], ["--dry-run"]):
        done = CliRunner().invoke(app, [*asked, *more])
        assert done.exit_code == 2
        assert "has no topic order (did you mean Orders?)" in " ".join(done.output.split())


def test_a_topic_that_was_read_and_deleted_stops_no_later_run(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [order(n) for n in range(3)])
    put(store, "Visits", [{"a": 1}])
    specs: dict[str, dict[str, Any]] = {"Orders": {"schema": ORDERS}, "Visits": {}}
    assert tables(str(store), str(target), ONE, specs).rows == 4
    shutil.rmtree(store / "consumequeue" / "Visits")
    assert tables(str(store), str(target), ONE, specs).rows == 0


@pytest.mark.parametrize(("bytes_max", "failing"), [(1_500, "tables/Orders"), (1, "_schemas/Orders")])
def test_a_disk_that_takes_no_more_is_told_with_file_and_remedy_and_the_next_run_has_all(
    tmp_path: Path, bytes_max: int, failing: str
) -> None:
    """By a limit on the size of files, which the system enforces as it does a full disk."""
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [order(n) for n in range(3)])
    words = ["pipeline", "tables", "--store", str(store), "--to", str(target), "--topics", "Orders"]
    code = LIMITED.format(bytes_max=bytes_max, words=[*words, "--schema", ORDERS, "--engine", "local"])
    environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    *_, told = done.stderr.splitlines()
    assert told.startswith(f"error: {target}/{failing}")
    assert "cannot be written: File too large; nothing was committed: raise the limit" in told
    assert TableManifest(target).head().version == 0
    assert tables(str(store), str(target), ONE, {"Orders": {"schema": ORDERS}}).rows == 3
    assert sorted(row["id"] for row in rows_of(target, "Orders")) == [0, 1, 2]
