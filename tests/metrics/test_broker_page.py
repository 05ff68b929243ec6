"""A real broker's page after real traffic, read by Prometheus' own parser, and its probes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrailmq import (
    Admin,
    LitePullConsumer,
    Message,
    Producer,
    TransactionProducer,
    TransactionState,
)
from contrailmq.broker.metrics import instruments as our
from contrailmq.metrics import Kind
from contrailmq.metrics.settings import MetricsSettingError
from contrailmq.namesrv import figures as namesrv_figures
from contrailmq.testing import LocalCluster
from metrics.scraping import get, label_names, scrape, value, values
from waiting_for import until

pytestmark = pytest.mark.servers
ROOT = Path(__file__).parents[2]
PROM = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
COMMON = {"cluster": "DefaultCluster", "node_type": "broker"}


def page_of(cluster: LocalCluster, index: int = 0) -> str:
    metrics = cluster.broker(index).metrics
    assert metrics is not None
    return metrics.address


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A broker with traffic: 30 messages in T, of which group G took 10 and is gone, a timer, transactions."""
    with LocalCluster(config=PROM) as made:
        with Producer("P", namesrv=made.namesrv) as producer:
            for number in range(20):
                producer.send(Message("T", b"x" * 100, properties={"n": str(number)}))
            producer.send_batch([Message("T", b"y" * 5000) for _ in range(10)])
            producer.send(Message("T2", b"ordered", sharding_key="s"))
            producer.send(Message("T2", b"later", delay_level=18))
            producer.send(Message("T2", b"timer", delay=100.0))
        with LitePullConsumer("G", namesrv=made.namesrv) as pull:
            queues = pull.fetch_queues("T")
            pull.assign(queues)
            for queue in queues:
                pull.seek_to_begin(queue)
            taken = 0
            while taken < 30:
                taken += len(pull.poll(timeout=60.0))
        with Admin(namesrv=made.namesrv) as admin:
            for queue in admin.queues("T"):
                admin.set_offset("G", queue, min(3, admin.max_offset(queue)))
        send_transactions(made.namesrv)
        yield made


def send_transactions(namesrv: str) -> None:
    states = {b"c": TransactionState.COMMIT, b"r": TransactionState.ROLLBACK, b"u": TransactionState.UNKNOWN}
    with TransactionProducer(
        "TP",
        namesrv=namesrv,
        execute=lambda message, _arg: states[message.body],
        check=lambda message: TransactionState.UNKNOWN,
    ) as producer:
        for body in (b"c", b"c", b"r", b"u"):
            producer.send_in_transaction(Message("TX", body), None)


def test_messages_in_are_counted_by_topic_and_kind(cluster: LocalCluster) -> None:
    page = scrape(page_of(cluster))
    labels = COMMON | {"node_id": cluster.broker().config.broker_name, "is_system": "false"}
    assert value(page, "rocketmq_messages_in_total", topic="T", message_type="normal", **labels) == 30
    assert value(page, "rocketmq_messages_in_total", topic="T2", message_type="fifo", **labels) == 1
    assert value(page, "rocketmq_messages_in_total", topic="TX", message_type="transaction", **labels) == 2
    assert value(page, "rocketmq_messages_in_total", topic="SCHEDULE_TOPIC_XXXX", message_type="delay") == 1
    assert value(page, "rocketmq_throughput_in_total", topic="T") > 20 * 100 + 10 * 5000


def test_sizes_are_those_of_records_and_of_a_batch_the_average(cluster: LocalCluster) -> None:
    page = scrape(page_of(cluster))
    buckets = {
        le: value(page, "rocketmq_message_size_bucket", topic="T", le=le) for le in ("1024.0", "4096.0", "524288.0")
    }
    assert buckets == {"1024.0": 20, "4096.0": 20, "524288.0": 21}
    assert value(page, "rocketmq_message_size_count", topic="T") == 21


def test_the_lag_of_a_group_that_is_offline_is_there(cluster: LocalCluster) -> None:
    """The issue that RocketMQ's page has: such a group vanishes from it."""
    with Admin(namesrv=cluster.namesrv) as admin:
        assert admin.consumers("G") is None
        expected = admin.lag("G", "T")
    page = scrape(page_of(cluster))
    labels = {"consumer_group": "G", "topic": "T", "is_retry": "false", "is_system": "false"}
    assert 0 < expected < 30
    assert value(page, "rocketmq_consumer_lag_messages", **labels) == expected
    inflight = value(page, "rocketmq_consumer_inflight_messages", **labels)
    assert inflight + value(page, "rocketmq_consumer_ready_messages", **labels) == expected
    assert 0 < value(page, "rocketmq_consumer_lag_latency_milliseconds", **labels) < 600_000
    assert value(page, "rocketmq_messages_out_total", topic="T", consumer_group="G") >= 30


def test_transactions_and_timers_are_there(cluster: LocalCluster) -> None:
    page = scrape(page_of(cluster))
    assert value(page, "rocketmq_commit_messages_total", topic="TX") == 2
    assert value(page, "rocketmq_rollback_messages_total", topic="TX") == 1
    assert value(page, "rocketmq_half_messages", topic="TX") == 1
    assert value(page, "rocketmq_finish_message_latency_milliseconds_count", topic="TX") == 2
    assert value(page, "rocketmq_delay_message_latency_seconds_bucket", topic="T2", le="60.0") == 0
    assert value(page, "rocketmq_delay_message_latency_seconds_bucket", topic="T2", le="600.0") == 1
    assert value(page, "contrailmq_delayed_messages", level="18") == 1


def test_requests_are_timed_by_code_and_answer(cluster: LocalCluster) -> None:
    page = scrape(page_of(cluster))
    labels = {"request_code": "send_message_v2", "response_code": "success", "is_long_polling": "false"}
    assert value(page, "rocketmq_rpc_latency_milliseconds_count", protocol_type="remoting", **labels) >= 25
    assert value(page, "rocketmq_rpc_latency_milliseconds_bucket", le="3000.0", **labels) >= 20
    assert not values(page, "rocketmq_rpc_latency_milliseconds_bucket", le="5000.0")
    assert values(page, "rocketmq_rpc_latency_milliseconds_count", request_code="lite_pull_message")


def test_put_dispatch_and_flush_are_timed(cluster: LocalCluster) -> None:
    page = scrape(page_of(cluster))
    assert value(page, "contrailmq_put_latency_seconds_count") >= 30
    assert value(page, "contrailmq_dispatch_latency_seconds_count") >= 1
    assert 0 < value(page, "contrailmq_put_latency_seconds_sum") < 60
    assert value(page, "contrailmq_loop_delay_seconds_count") >= 1
    assert value(page, "contrailmq_store_writable") == 1


def test_every_series_has_the_labels_of_its_instrument_and_the_common_ones(cluster: LocalCluster) -> None:
    page = scrape(page_of(cluster))
    for instrument in our.INSTRUMENTS:
        suffix = "_count" if instrument.kind is Kind.HISTOGRAM else ""
        found = label_names(page, instrument.scraped_name + suffix)
        assert found in (set(), {"cluster", "node_type", "node_id", *instrument.labels}), instrument


def test_a_switch_takes_its_group_off_the_page_while_the_broker_runs(cluster: LocalCluster) -> None:
    address = cluster.broker_addresses[0]
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.update_broker_config(address, {"enableRequestMetrics": "false"})
        page = scrape(page_of(cluster))
        admin.update_broker_config(address, {"enableRequestMetrics": "true"})
    assert not values(page, "rocketmq_messages_in_total")
    assert values(page, "rocketmq_topic_number")
    assert values(scrape(page_of(cluster)), "rocketmq_messages_in_total")


def test_a_broker_that_serves_is_live_and_ready(cluster: LocalCluster) -> None:
    assert get(page_of(cluster), "/live") == (200, "live\n")
    assert get(page_of(cluster), "/ready") == (200, "ready\n")
    assert get(page_of(cluster), "/")[0] == 404


def test_a_broker_without_its_name_server_stays_ready_and_one_that_never_found_it_is_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # accepts, and never answers
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        with LocalCluster(config=PROM, store=tmp_path) as cluster:
            assert get(page_of(cluster), "/ready")[0] == 200
            server = cluster.broker()
            server.config.namesrv_addr = nobody
            status, text = get(page_of(cluster), "/ready")
            assert (status, text) == (
                503,
                f"not ready\nnot registered with NameServer {nobody}: it has not answered yet\n",
            )
            server.config.namesrv_addr = cluster.namesrv
            server.store.set_disk_full("the disk is 95 % full")
            status, text = get(page_of(cluster), "/ready")
            server.store.set_disk_full(None)
    assert status == 503
    assert "it takes no messages: " in text
    assert "the disk is 95 % full" in text


def test_a_taken_port_stops_the_start_and_names_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with (
            pytest.raises(MetricsSettingError, match=f"metricsPromExporterPort='{port}': cannot listen"),
            LocalCluster(config=PROM | {"metricsPromExporterPort": port}, store=tmp_path),
        ):
            pytest.fail("two servers share a port")
    with LocalCluster(config=PROM, store=tmp_path):  # nothing was left locked
        pass


def test_the_guide_lists_every_instrument_with_kind_unit_and_labels() -> None:
    guide = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*) \|", guide, re.MULTILINE)
    listed = {(name, kind, labels.strip()) for name, kind, labels in rows}
    expected = {
        (each.scraped_name, each.kind.value, " ".join(each.labels))
        for each in (*our.INSTRUMENTS, *namesrv_figures.INSTRUMENTS)
    }
    assert listed == expected


def test_what_waits_is_said_by_the_master_and_by_its_slave_only_while_it_is_away() -> None:
    """Boards add up what brokers say; a slave that follows has offsets of seconds ago, and all half messages ever."""
    waiting = (
        "rocketmq_consumer_lag_messages", "rocketmq_consumer_inflight_messages", "rocketmq_consumer_ready_messages",
        "rocketmq_half_messages", "rocketmq_timing_messages", "contrailmq_delayed_messages",
        "rocketmq_timer_dequeue_lag",
    )  # fmt: skip
    with LocalCluster(slaves=1, config=PROM) as cluster:
        with Producer("P", namesrv=cluster.namesrv) as producer, Admin(namesrv=cluster.namesrv) as admin:
            for number in range(4):
                producer.send(Message("T", b"x"))
                producer.send(Message("T", b"x", delay=3600.0 + number))
                producer.send(Message("T", b"x", delay_level=18))
            admin.create_group("offline")
            for queue in admin.queues("T"):
                admin.set_offset("offline", queue, 0)
        send_transactions(cluster.namesrv)
        master, slave = page_of(cluster), page_of(cluster, 1)

        def shown(address: str) -> set[str]:
            page = scrape(address)
            return {name for name in waiting if values(page, name)}

        until(lambda: shown(master) == set(waiting), seen=lambda: shown(master))
        assert value(scrape(slave), "contrailmq_ha_following") == 1
        assert shown(slave) == set()
        until(lambda: len(cluster.broker(1).node.offsets), "the slave has the groups' offsets")
        cluster.kill_broker(0)
        until(lambda: waiting[0] in shown(slave), "it speaks for its master", seen=lambda: shown(slave))
        assert "rocketmq_half_messages" not in shown(slave), "it has not looked which of them were ended"
