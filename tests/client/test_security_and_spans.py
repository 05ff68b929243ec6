"""TLS with certificates of our own, and OpenTelemetry spans."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer, SendStatus
from contrailmq.client import QueueReader
from contrailmq.client.hooks import OpenTelemetryHooks
from contrailmq.message import ContrailError
from contrailmq.testing import LocalCluster
from contrailmq.wire.tls import server_tls

from .fake_peer import FakePeer, name_server, route_to, stored
from .waiting import Inbox

CERTS = Path(__file__).resolve().parents[1] / "wire" / "certs"
SERVER = {
    "tls.server.mode": "enforcing",
    "tls.server.certPath": str(CERTS / "server.pem"),
    "tls.server.keyPath": str(CERTS / "server.key"),
    "tls.server.trustCertPath": str(CERTS / "ca.pem"),
    "tls.server.need.client.auth": "require",
}


def client_context(*, with_certificate: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTS / "ca.pem"))
    context.check_hostname = False  # the fixtures' certificates name no host
    if with_certificate:
        context.load_cert_chain(CERTS / "client.pem", CERTS / "client.key")
    return context


def test_clients_speak_tls_with_a_ca_and_a_certificate() -> None:
    async def work() -> None:
        tls = server_tls(SERVER)
        async with (
            FakePeer(stored, tls=tls) as broker,
            name_server(lambda _: route_to(("a", broker.address)), tls=tls) as namesrv,
        ):
            async with aio.Producer("g", namesrv=namesrv.address, tls=client_context()) as producer:
                assert (await producer.send(Message("T", b"x"))).status is SendStatus.OK
            with QueueReader(namesrv=namesrv.address, tls=client_context()) as reader:
                assert await asyncio.to_thread(reader.queues, "T")
            for wrong, why in ((client_context(with_certificate=False), "none of the NameServers"), (None, "TLS only")):
                async with aio.Producer("g", namesrv=namesrv.address, tls=wrong) as producer:
                    with pytest.raises(ContrailError, match=why):
                        await producer.send(Message("T", b"x"), timeout=2.0)

    asyncio.run(asyncio.wait_for(work(), 120))


def test_the_name_that_a_certificate_is_checked_against_can_be_given() -> None:
    async def work() -> None:
        tls = server_tls(SERVER)
        strict = client_context()
        strict.check_hostname = True
        async with name_server(lambda _: None, tls=tls) as namesrv:
            admin = aio.Admin(namesrv=namesrv.address, tls=strict, tls_server_name="somebody.else")
            with pytest.raises(ContrailError, match=r"somebody\.else|certificate"):
                await admin.route("T")
            await admin.shutdown()

    asyncio.run(asyncio.wait_for(work(), 120))


def test_spans_of_sender_and_listener_belong_together(cluster: LocalCluster) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    inbox = Inbox()
    with Producer("spans", namesrv=cluster.namesrv, hooks=OpenTelemetryHooks()) as producer:
        result = producer.send(Message("Spans", b"x"))
    with PushConsumer(
        "spans", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, hooks=OpenTelemetryHooks()
    ) as consumer:
        consumer.subscribe("Spans")
        consumer.listen(inbox)
        inbox.wait_for(1)
    sent, processed = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
    assert (sent.name, processed.name) == ("Spans send", "Spans process")
    assert processed.parent.span_id == sent.context.span_id
    assert sent.attributes["messaging.message.id"] == result.message_id
