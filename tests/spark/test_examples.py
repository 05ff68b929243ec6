"""The examples of examples/spark, run as they are."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from contrailmq import Message, Producer
from contrailmq.testing import LocalCluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "spark"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def send(cluster: LocalCluster, topic: str, bodies: list[str]) -> None:
    with Producer("example", namesrv=cluster.namesrv) as producer:
        for body in bodies:
            producer.send(Message(topic, body.encode()))


def received(spark: Any, cluster: LocalCluster, topic: str) -> list[Any]:
    reader = spark.read.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", topic)
    rows: list[Any] = reader.load().collect()
    return rows


PRINTED = {
    "word_count": ["a broker of its own, with 3 messages on topic Sentences", "   4 the", "   2 is", "   2 log"],
    "order_totals": [
        "a broker of its own, with 4 messages on topic Orders",
        '{"region":"eu","minute":"2026-11-15T12:00:00.000Z","total":12.5}',
        '{"region":"us","minute":"2026-11-15T12:00:00.000Z","total":7.0}',
    ],
    "archive_and_ask": [
        "a broker of its own, with 20 messages on topic Orders",
        "archived 20 messages, files: 1",
        "archived 0 messages, files: 0",
    ],
    "replay_after_a_bug": [
        "a broker of its own, with 5 messages on topic Orders",
        "ReplayResult(found=5, sent=5, skipped=0, notes=())",
        "topic Orders_replayed now has 5 messages",
    ],
}


@pytest.mark.spark
@pytest.mark.parametrize("name", PRINTED)
def test_each_runs_as_the_first_command_of_its_header_says(
    spark: Any, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: the session that it asks for is the one that is there."""
    path = EXAMPLES / f"{name}.py"
    first = next(line for line in path.read_text().splitlines() if line.startswith("    python "))
    assert first.partition("#")[0].split() == ["python", f"examples/spark/{name}.py"]
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert printed[: len(PRINTED[name])] == PRINTED[name]


def test_every_example_is_run_and_listed() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"samples"}
    assert programs == PRINTED.keys()
    listed = (EXAMPLES.parent / "README.md").read_text()
    assert [name for name in programs if f"`spark/{name}.py`" not in listed] == []


def test_a_topic_that_is_not_there_is_one_sentence(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["word_count.py", "--namesrv", cluster.namesrv])
    with pytest.raises(SystemExit, match="topic Sentences does not exist at .* without --namesrv"):
        example("word_count").main()


@pytest.mark.long  # test_each_runs_... has the same rows
@pytest.mark.spark
def test_word_count(spark: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    send(cluster, "Sentences", ["the log is the product", "the trail"])
    example("word_count").start(spark, cluster.namesrv, str(tmp_path)).awaitTermination()
    counts = {row["keys"]: int(row["body"]) for row in received(spark, cluster, "WordCounts")}
    assert counts == {"the": 3, "log": 1, "is": 1, "product": 1, "trail": 1}


@pytest.mark.spark
def test_the_streaming_example_of_the_readme_runs(spark: Any, tmp_path: Path) -> None:
    """As it stands there, but for the address, where the rows go, and that it ends."""
    text = (EXAMPLES.parents[1] / "README.md").read_text()
    (block,) = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "readStream" in part]
    with LocalCluster() as own:
        changes = {
            "127.0.0.1:9876": own.namesrv,
            'format("console")': f'format("memory").queryName("readme").option("checkpointLocation", "{tmp_path}")',
            ".start()": ".trigger(availableNow=True).start()",
        }
        for before, after in changes.items():
            assert block.count(before) == 1
            block = block.replace(before, after)
        with Producer("readme", namesrv=own.namesrv) as producer:
            for tags in ("paid", "paid", "open"):
                producer.send(Message("Orders", b"an order", tags=tags))
        exec(compile(block, "README.md", "exec"), {})
        rows = spark.sql("select tags, count from readme").collect()
    assert {row["tags"]: row["count"] for row in rows} == {"paid": 2, "open": 1}


@pytest.mark.spark
def test_the_tour_to_paste_ends_with_a_table(
    spark: Any, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES.parents[1] / "docs" / "tour.md").read_text()
    (block,) = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "contrailmq.spark" in part]
    assert block.count('"Orders"') == 1
    with Producer("tour", namesrv=cluster.namesrv) as producer:
        for tags in ("paid", "paid", "open"):
            producer.send(Message("TourOrders", b"one", tags=tags))
    exec(compile(block.replace('"Orders"', '"TourOrders"'), "docs/tour.md", "exec"), {"cluster": cluster})
    assert re.search(r"\|open\| +1\|\s+\|paid\| +2\|", capsys.readouterr().out)


@pytest.mark.long  # test_each_runs_... has the same rows
@pytest.mark.spark
def test_order_totals(spark: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """The last order moves the watermark past the first minute, whose totals are then sent."""
    orders = [("eu", 10.0, "12:00:03"), ("eu", 2.5, "12:00:59"), ("us", 7.0, "12:00:10"), ("eu", 1.0, "12:05:00")]
    bodies = [json.dumps({"region": r, "amount": a, "at": f"2026-11-15T{t}Z"}) for r, a, t in orders]
    send(cluster, "Orders", bodies)
    example("order_totals").start(spark, cluster.namesrv, str(tmp_path)).awaitTermination()
    totals = {row["tags"]: json.loads(row["body"])["total"] for row in received(spark, cluster, "OrderTotals")}
    assert totals == {"eu": 12.5, "us": 7.0}


@pytest.mark.long  # test_each_runs_... has the same rows
@pytest.mark.spark
def test_archive_and_ask(spark: Any, tmp_path: Path, golden_store: Callable[[str], str]) -> None:
    rows = example("archive_and_ask").run(spark, golden_store("clean"), str(tmp_path))
    assert (rows[0]["topic"], rows[0]["messages"]) == ("GoldenBulk", 466)


def test_replay_after_a_bug(cluster: LocalCluster, golden_store: Callable[[str], str]) -> None:
    run = example("replay_after_a_bug").run
    done = run(golden_store("clean"), cluster.namesrv, "GoldenOrder", "2000-01-01T00:00", "2100-01-01T00:00")
    assert done.sent == 48


@pytest.mark.spark
def test_the_tour_runs_from_top_to_bottom(spark: Any) -> None:
    """The notebook's code cells in their order and in one namespace, as a kernel runs them."""
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    seen: dict[str, Any] = {}
    try:
        for number, cell in enumerate(cells):
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [], "the notebook is kept without outputs"
                exec(compile("".join(cell["source"]), f"tour.ipynb, cell {number}", "exec"), seen)
    finally:
        if "cluster" in seen:
            seen["cluster"].stop()
    assert seen["spark"] is spark
    expected = {
        region: sum(n % 10 for n in range(200) if n % 3 == at) for at, region in enumerate(("eu", "us", "asia"))
    }
    assert seen["totals"] == expected
    assert (seen["from_files"], seen["archived_rows"], seen["again"].sent) == (200, 200, 200)
    by_region = {"EUR": expected["eu"] * 1.0, "USD": expected["us"] * 0.9, "JPY": expected["asia"] * 0.006}
    assert seen["euros"] == pytest.approx(by_region)
    assert {row["tags"]: row["messages"] for row in seen["by_tag"]} == {"eu": 67, "us": 67, "asia": 66}
    assert seen["plot"]._repr_html_().count("<rect") == 3
    assert (seen["redriven"].sent, seen["second"].sent) == (2, 0)
    assert seen["copies"].schema.names == seen["topic"].schema.names
    assert seen["findings"] == []
    assert "<svg" in seen["html"].read_text()
    shutil.rmtree(seen["folder"])
