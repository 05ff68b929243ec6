"""Metrics and `admin check` beside Apache's: the pages of both brokers after the same traffic, name by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from apache import Apache, Program
from typer.testing import CliRunner

from contrailmq import Admin, ConsumeFromWhere, LitePullConsumer, Message, Producer
from contrailmq.cli import app
from contrailmq.testing import LocalCluster
from free_ports import free_port
from metrics.scraping import Sample, label_names, scrape
from waiting_for import until

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

# What docs/metrics.md says is not there, and what Java's exporter adds to every page.
NOT_THERE = re.compile(r"rocketmq_(pop_|rocksdb_|tiered_|timer_message_snapshot)")
SCOPE = {"otel_scope_name", "otel_scope_version"}


@pytest.fixture(scope="module")
def theirs(rocketmq: Apache) -> Iterator[tuple[str, Program, str]]:
    """NameServer, broker, address of its page."""
    port = free_port()
    with rocketmq.cluster(
        autoCreateTopicEnable="true",
        metricsExporterType="PROM",
        metricsPromExporterPort=port,
        metricsPromExporterHost="127.0.0.1",
    ) as (namesrv, broker):
        until(lambda: "TBW102" in Admin(namesrv=namesrv).topics())
        yield namesrv, broker, f"127.0.0.1:{port}"


def traffic(namesrv: str) -> LitePullConsumer:
    """A consumer that is still connected: Apache's page shows no other."""
    with Producer("P", namesrv=namesrv) as producer:
        for _ in range(10):
            producer.send(Message("T", b"x" * 100))
        producer.send(Message("T", b"later", delay_level=18))
        producer.send(Message("T", b"timer", delay=3600.0))
    consumer = LitePullConsumer("G", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("T")
    consumer.start()
    taken = 0
    while taken < 10:
        taken += len(consumer.poll(timeout=120.0))
    consumer.commit()
    return consumer


def bounds(page: dict[Sample, float], name: str) -> set[str]:
    return {value for found, labels in page if found == name for label, value in labels if label == "le"}


def test_our_page_has_every_name_label_and_bucket_of_theirs(theirs: tuple[str, Program, str]) -> None:
    namesrv, _, address = theirs
    consumer = traffic(namesrv)
    try:
        until(lambda: "rocketmq_consumer_lag_messages" in {name for name, _ in scrape(address)})
        apaches = scrape(address)
    finally:
        consumer.shutdown()
    names = {name for name, _ in apaches if name.startswith("rocketmq_") and not NOT_THERE.match(name)}
    assert len(names) > 20
    with LocalCluster(config={"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}) as cluster:
        consumer = traffic(cluster.namesrv)
        metrics = cluster.broker().metrics
        assert metrics is not None
        own = metrics.address
        until(lambda: names <= {name for name, _ in scrape(own)})  # the wheel takes the timer in by itself
        ours = scrape(own)
        consumer.shutdown()
    missing = sorted(names - {name for name, _ in ours})
    assert not missing
    differing = {
        name: (label_names(apaches, name) - SCOPE) ^ label_names(ours, name)
        for name in sorted(names)
        if label_names(apaches, name) - SCOPE != label_names(ours, name)
    }
    # Theirs have it for what was popped, ours for what was pulled too.
    assert differing == {"rocketmq_messages_out_total": {"is_retry"}, "rocketmq_throughput_out_total": {"is_retry"}}
    assert {name: bounds(apaches, name) for name in names} == {name: bounds(ours, name) for name in names}


def test_admin_check_looks_at_apaches_cluster(theirs: tuple[str, Program, str]) -> None:
    namesrv, _, _ = theirs
    with Producer("P", namesrv=namesrv) as producer:
        queue = producer.send(Message("Checked", b"x")).queue
        with Admin(namesrv=namesrv) as admin:
            admin.create_group("Left")
            admin.set_offset("Left", queue, 0)
    result = CliRunner().invoke(app, ["admin", "check", "--json", "--namesrv", namesrv])
    assert result.exit_code in (3, 4), result.output
    findings = json.loads(result.stdout)["findings"]
    assert {
        "severity": "warning",
        "about": "lag",
        "where": "Left",
        "text": "nobody consumes, and the backlog is 1 message",
        "remedy": "start its consumers, or `contrailmq admin group delete Left` if it is not needed",
    } in findings
    assert not [finding for finding in findings if finding["about"] in ("broker", "replication", "clock")], findings
