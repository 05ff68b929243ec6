"""The report of odd stores: clocks that disagree, configuration of no known shape, several brokers, long names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contrailmq.message import Message, SystemTopic
from contrailmq.spark.jobs.report import GroupLag, report
from contrailmq.spark.jobs.report_page import page
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.base.clock import ManualClock
from spark.conftest import expected

ONE = LocalEngine(workers=1)
NOW_MS = 1_790_000_000_000


def filled(folder: Path, messages: list[tuple[int, Message]], *, latency_ms: int = 0, host: bytes = b"") -> str:
    """A store with these messages, each in the queue named beside it, stored at NOW_MS and born before that."""
    config = StoreConfig(folder, mapped_file_size_commit_log=65_536, max_hash_slot_num=10, max_index_num=40)
    with MessageStore(config, clock=ManualClock(NOW_MS)) as store:
        for queue_id, message in messages:
            put = store.put(message, queue_id, born_time_ms=NOW_MS - latency_ms, born_host=host)
            assert put.status.name == "PUT_OK"
    return str(folder)


def test_what_takes_no_time_or_was_born_later_by_another_clock_took_0_ms(tmp_path: Path) -> None:
    """A step of the histogram is 4.5 % wide, and 0 has one of its own."""
    for latency_ms, least, most in ((0, 0, 0), (-250, 0, 0), (1, 1, 1), (100, 100, 104), (3000, 3000, 3135)):
        store = filled(tmp_path / str(latency_ms), [(0, Message("Timed", b"x"))] * 3, latency_ms=latency_ms)
        (topic,) = report(store, ONE).topics
        assert least <= topic.latency_p50_ms <= most
        assert topic.latency_p50_ms == topic.latency_p99_ms


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("consumerOffset.json", '{"offsetTable":{"Orders@g":{"0":"abc"}}}', "'abc' is not a whole number"),
        ("consumerOffset.json", '{"offsetTable":{"Orders@g":{"x":1}}}', "'x' is not a whole number"),
        ("consumerOffset.json", '{"offsetTable":{"Orders@g":{"0":1.5}}}', "1.5 is not a whole number"),
        ("consumerOffset.json", '{"offsetTable":{"Orders@g":[1]}}', "Orders@g is [1], not an object"),
        ("consumerOffset.json", '{"offsetTable":null}', "offsetTable is None, not an object"),
        ("consumerOffset.json", '{"offsetTable"', "is not JSON"),
        ("delayOffset.json", '{"offsetTable":5}', "offsetTable is 5, not an object"),
        ("delayOffset.json", "[]", "what it holds is [], not an object"),
        ("timermetrics", '{"timingCount":[1]}', "timingCount is [1], not an object"),
        ("timermetrics", '{"timingCount":{"Orders":{"count":[]}}}', "[] is not a whole number"),
    ],
)
def test_a_configuration_of_no_known_shape_is_named_and_its_backup_or_nothing_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, text: str, why: str
) -> None:
    """A store whose configuration says: 3 messages behind, 2 waiting for level 1, 5 timers."""
    waiting = [(0, Message(SystemTopic.SCHEDULE, b"x"))] * 4
    store = filled(tmp_path, [*waiting, *[(0, Message("Orders", b"x"))] * 4])
    config = tmp_path / "config"
    config.mkdir(exist_ok=True)
    good = {
        "consumerOffset.json": '{"offsetTable":{"Orders@g":{0:1}}}',
        "delayOffset.json": '{"offsetTable":{1:2}}',
        "timermetrics": '{"timingCount":{"Orders":{"count":5,"timeStamp":1}}}',
    }
    for file, content in good.items():
        (config / file).write_text(content)

    def shown() -> tuple[list[int], dict[int, int]]:
        found = report(store, ONE)
        return [lag.lag for lag in found.lags], {delay.level: delay.waiting for delay in found.delays}

    assert shown() == ([3], {1: 2, 0: 5})
    assert caplog.messages == []
    (config / name).write_text(text)
    (config / f"{name}.bak").write_text(good[name])
    assert shown() == ([3], {1: 2, 0: 5})
    (config / f"{name}.bak").unlink()
    without = {"consumerOffset.json": ([], {1: 2, 0: 5}), "delayOffset.json": ([3], {1: 4, 0: 5})}
    assert shown() == without.get(name, ([3], {1: 2}))
    assert len(caplog.messages) == 2
    for warning in caplog.messages:
        assert str(config / name) in warning
        assert why in warning
        assert "mend or remove it" in warning


def test_offsets_of_more_queues_than_a_stranger_may_send_are_read(tmp_path: Path) -> None:
    """Java writes bare numbers as names, and a broker of many groups has many of them."""
    store = filled(tmp_path, [(0, Message("Orders", b"x"))] * 4)
    (tmp_path / "config").mkdir(exist_ok=True)
    groups = ",".join(f'"Orders@g{number}":{{0:1,1:0,2:0,3:0}}' for number in range(6000))
    (tmp_path / "config" / "consumerOffset.json").write_text(f'{{"offsetTable":{{{groups}}}}}')
    assert [lag.lag for lag in report(store, ONE).lags] == [3] * 6000


def test_topics_of_the_broker_itself_have_no_lag(tmp_path: Path) -> None:
    store = filled(tmp_path, [(0, Message("Orders", b"x")), (0, Message(SystemTopic.SCHEDULE, b"x"))])
    (tmp_path / "config").mkdir(exist_ok=True)
    text = '{"offsetTable":{"Orders@g":{0:0},"SCHEDULE_TOPIC_XXXX@g":{0:0},"rmq_sys_own@g":{0:0}}}'
    (tmp_path / "config" / "consumerOffset.json").write_text(text)
    assert [tuple(lag) for lag in report(store, ONE).lags] == [("g", "Orders", 1)]


def test_producers_are_told_by_their_address_whatever_its_port(tmp_path: Path) -> None:
    """Two stores, each filled from one host; one is of IPv6."""
    hosts = {"a": bytes([10, 0, 0, 1, 0, 0, 0, 80]), "b": bytes([*bytes(15), 1, 0, 0, 0, 81])}
    for number, (name, host) in enumerate(hosts.items(), 1):
        filled(tmp_path / name, [(0, Message("Orders", b"x"))] * number, host=host)
    assert report(f"{tmp_path}/a,{tmp_path}/b", ONE).hosts == [("Orders", "::1", 2), ("Orders", "10.0.0.1", 1)]


def test_queues_of_two_brokers_are_counted_and_told_apart(tmp_path: Path) -> None:
    """Broker a has one message in each of four queues of Orders, broker b two, and Once is on b alone."""
    orders = [(queue_id, Message("Orders", b"x")) for queue_id in range(4)]
    a = filled(tmp_path / "a" / "store", orders)
    b = filled(tmp_path / "b" / "store", [*orders, *orders, (0, Message("Once", b"x"))])
    both = report(f"{a},{b}", ONE)
    assert {row.topic: (row.queues, row.messages) for row in both.topics} == {"Orders": (8, 12), "Once": (1, 1)}
    rows = both.to_json()
    wanted = {
        ("Once", 0, b): 1,
        **{("Orders", queue_id, store): number for store, number in ((a, 1), (b, 2)) for queue_id in range(4)},
    }
    assert {(row["topic"], row["queue_id"], row["store"]): row["messages"] for row in rows["queues"]} == wanted
    assert len(rows["queues"]) == len(rows["queue_minutes"]) == 9
    assert sum(row["log_bytes"] for row in rows["queues"]) == both.log_bytes
    over_time = {
        (row["topic"], int(row["queue"]), row["store"]): row["messages"]
        for row in rows["queue_minutes"]
        if row["time_ms"] == NOW_MS // 60_000 * 60_000
    }
    assert over_time == wanted
    shown = page(both)
    for label in ("a/store · Orders / 3", "b/store · Orders / 3", "b/store · Once / 0"):
        assert f">{label}<title>{label}</title>" in shown  # a bar
    assert "</i>b/store · Orders / 3</span>" in shown  # a colour
    alone = page(report(a, ONE))
    assert ">Orders / 3<title>" in alone
    assert " · Orders" not in alone


def test_labels_of_long_names_keep_their_ends_by_which_they_differ(tmp_path: Path) -> None:
    """Queues of one topic of 127 characters, and tags that differ in their last letter."""
    topic = "Orders_of_all_our_branches_" + "x" * 100
    messages = [(number, Message(topic, b"x", tags=f"tag-{'y' * 60}-{number}")) for number in range(3)]
    shown = page(report(filled(tmp_path, messages), ONE))
    labels = re.findall(r'<text x="360"[^>]*>([^<]*)<title>([^<]*)</title>', shown)
    assert {len(short) for short, _ in labels} == {46}
    assert all(short.startswith(("Orders_of_all_our_b", "127.0.0.1 ")) for short, _ in labels)
    queues = {short[-4:]: whole for short, whole in labels if " / " in whole}
    assert queues == {f" / {number}": f"{topic} / {number}" for number in range(3)}
    tags = {short[-6:]: whole for short, whole in labels if " : " in whole}
    assert tags == {f"yyyy-{number}": f"{topic} : tag-{'y' * 60}-{number}" for number in range(3)}
    (legend,) = re.findall(r"\.key\{([^}]*)\}", shown)
    assert "overflow-wrap:anywhere" in legend  # else the page scrolls sideways


def test_names_that_look_like_markup_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    tag = "<script>alert('&amp;')</script>"
    found = report(filled(tmp_path, [(0, Message("Orders", b"x", tags=tag))]), ONE)
    group = "<img src=x>"
    shown = page(
        replace(
            found,
            stores=["/data/<b>"],
            topics=[found.topics[0]._replace(topic="<u>")],
            queues=[("<i>", 0, 1, 1, "/data/<b>")],
            over_time={**found.over_time, "queue": []},
            lags=[GroupLag(group, "Orders", 1)],
            retries=[("dlq", group, 1)],
        )
    )
    text = "&lt;script&gt;alert(&#x27;&amp;amp;&#x27;)&lt;/script&gt;"
    assert f"</i>Orders : {text}</span>" in shown  # a colour
    assert f"<title>Orders : {text}</title>" in shown  # a bar
    assert re.search(f"<title>[-0-9: ]+Orders : {re.escape(text)}: 1</title>", shown)  # a column
    assert "<div>/data/&lt;b&gt; · " in shown
    assert "<td>&lt;u&gt;</td>" in shown
    for label in ("&lt;i&gt; / 0", "&lt;img src=x&gt; on Orders", "dlq &lt;img src=x&gt;"):
        assert f">{label}<title>{label}</title>" in shown
    assert not re.search("<(script|img|u|b>/)", shown)


def test_empty_bodies_have_0_bytes(tmp_path: Path) -> None:
    (topic,) = report(filled(tmp_path, [(0, Message("Empty", b""))] * 3), ONE).topics
    assert (topic.size_p50, topic.size_p99) == (0, 0)


def test_percentiles_of_latencies_are_those_of_the_messages(golden_store: Callable[[str], str]) -> None:
    """The true one is the least latency that so many messages do not pass."""
    latencies: dict[str, list[int]] = {}
    for message in expected("clean")["messages"]:
        latencies.setdefault(message["topic"], []).append(message["storeTimestamp"] - message["bornTimestamp"])
    found = report(golden_store("clean"), ONE).topics
    assert sum(row.latency_p99_ms > 0 for row in found) > 3
    for row in found:
        of_topic = sorted(max(0, latency) for latency in latencies[row.topic])
        for shown, hundredths in ((row.latency_p50_ms, 50), (row.latency_p99_ms, 99)):
            true = of_topic[-(-len(of_topic) * hundredths // 100) - 1]
            assert true <= shown <= true * 1.045, (row.topic, hundredths)
