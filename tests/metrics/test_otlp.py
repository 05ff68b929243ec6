"""OTLP: the same figures, under their bare names, reach a collector over gRPC."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from contrailmq import Message, Producer
from contrailmq.broker.config import BrokerConfig, BrokerConfigError
from contrailmq.message import ContrailError
from contrailmq.testing import LocalCluster

grpc = pytest.importorskip("grpc")
service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc")
messages = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")

pytestmark = pytest.mark.servers


class Collector:
    """Takes what is exported. `take` waits for the next export."""

    def __init__(self) -> None:
        self.exports: queue.Queue[tuple[object, dict[str, str]]] = queue.Queue()
        self._server = grpc.server(ThreadPoolExecutor(1))
        service.add_MetricsServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def Export(self, request: object, context: object) -> object:
        headers = dict(context.invocation_metadata())  # type: ignore[attr-defined]
        self.exports.put((request, headers))
        return messages.ExportMetricsServiceResponse()

    def take(self) -> tuple[dict[str, object], dict[str, str]]:
        request, headers = self.exports.get(timeout=300)
        found = {
            metric.name: metric
            for resource in request.resource_metrics  # type: ignore[attr-defined]
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        return found, headers

    def stop(self) -> None:
        self._server.stop(None)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


def settings(collector: Collector, **more: str) -> dict[str, str]:
    return {
        "metricsExporterType": "OTLP_GRPC",
        "metricsGrpcExporterTarget": f"http://127.0.0.1:{collector.port}",
        "metricGrpcExporterIntervalInMills": "200",
        "metricsGrpcExporterHeader": "Token:secret,other:x",
        "metricsLabel": "zone:eu-1",
        **more,
    }


def attributes(point: object) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}  # type: ignore[attr-defined]


def sent(namesrv: str, count: int) -> None:
    with Producer("P", namesrv=namesrv) as producer:
        for _ in range(count):
            producer.send(Message("T", b"x" * 100))


def messages_in(found: dict[str, object]) -> int | None:
    metric = found.get("rocketmq_messages_in_total")
    points = metric.sum.data_points if metric is not None else []  # type: ignore[attr-defined]
    return next((point.as_int for point in points if attributes(point)["topic"] == "T"), None)


def test_a_collector_gets_every_kind_of_figure_with_labels_and_headers(collector: Collector) -> None:
    with LocalCluster(config=settings(collector)) as cluster:
        sent(cluster.namesrv, 7)
        while True:
            found, headers = collector.take()
            if messages_in(found) == 7:
                break
    assert headers["token"] == "secret"
    metric = found["rocketmq_messages_in_total"]
    assert metric.sum.is_monotonic  # type: ignore[attr-defined]
    assert metric.sum.aggregation_temporality == 2  # type: ignore[attr-defined]  # cumulative
    labels = next(
        attributes(point)
        for point in metric.sum.data_points  # type: ignore[attr-defined]
        if attributes(point)["topic"] == "T"
    )
    assert labels["zone"] == "eu-1"
    assert (labels["node_type"], labels["message_type"]) == ("broker", "normal")
    (size,) = [
        point
        for point in found["rocketmq_message_size"].histogram.data_points  # type: ignore[attr-defined]
        if attributes(point)["topic"] == "T"
    ]
    assert (size.count, list(size.bucket_counts), size.explicit_bounds[0]) == (7, [7, 0, 0, 0, 0, 0, 0], 1024)
    gauge = found["contrailmq_disk_free"]
    assert gauge.unit == "bytes"  # type: ignore[attr-defined]
    assert gauge.gauge.data_points[0].as_int > 0  # type: ignore[attr-defined]


def test_in_delta_the_growth_is_sent_and_adds_up(collector: Collector) -> None:
    with LocalCluster(config=settings(collector, metricsInDelta="true")) as cluster:
        total = 0
        for count in (3, 5):
            sent(cluster.namesrv, count)
            before = total
            while total < before + count:
                found, _ = collector.take()
                total += messages_in(found) or 0
            assert total == before + count
    metric = found["rocketmq_messages_in_total"]
    assert metric.sum.aggregation_temporality == 1  # type: ignore[attr-defined]
    assert attributes(metric.sum.data_points[0])["aggregation"] == "delta"  # type: ignore[attr-defined]


def test_a_collector_that_is_away_costs_nothing_but_a_line(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.stop()
    with LocalCluster(config=settings(collector, metricGrpcExporterTimeOutInMills="100")) as cluster:
        while "metrics are not sent to" not in caplog.text:
            sent(cluster.namesrv, 1)


def test_without_the_sdk_the_start_says_what_to_install(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.metric_exporter", None)
    with (
        pytest.raises(ContrailError, match=r"pip install 'contrailmq\[otel\]'"),
        LocalCluster(config=settings(collector)),
    ):
        pytest.fail("it started without an exporter")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"metricsExporterType": "OTLP_GRPC"}, "metricsGrpcExporterTarget='': OTLP_GRPC needs it"),
        ({"metricsExporterType": "LOG"}, "metricsExporterType='LOG': LOG is not there"),
        ({"metricsExporterType": "promm"}, "metricsExporterType='promm': DISABLE, PROM or OTLP_GRPC"),
        ({"metricsLabel": "a b:c"}, "metricsLabel='a b:c': 'a b' is no label"),
        ({"metricsLabel": "zone"}, "metricsLabel='zone': name:value"),
        ({"metricsPromExporterPort": "70000"}, "metricsPromExporterPort=70000: 0 to 65535"),
        ({"metricsOtelCardinalityLimit": "0"}, "metricsOtelCardinalityLimit=0: 1 to 1000000"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_allowed(said: dict[str, str], text: str) -> None:
    with pytest.raises(BrokerConfigError) as refused:
        BrokerConfig.from_properties(said)
    assert text in str(refused.value)


@pytest.mark.parametrize("kind", ["PROM", "prom", "2"])
def test_the_exporter_is_named_or_numbered(kind: str) -> None:
    config, warnings = BrokerConfig.from_properties({"metricsExporterType": kind})
    assert (config.export_settings().kind.name, warnings) == ("PROM", [])
