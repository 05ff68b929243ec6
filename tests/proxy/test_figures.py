"""Probes and figures of a proxy."""

from __future__ import annotations

import asyncio
import urllib.request

import grpc

from contrailmq.metrics import ExporterKind, ExportSettings
from contrailmq.testing import LocalCluster
from proxy.calling import Caller, proxy_of, topic


def page(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        text: bytes = answer.read()
    return text.decode()


def test_a_proxy_is_up_ready_and_counts_its_calls(cluster: LocalCluster) -> None:
    async def main() -> None:
        settings = ExportSettings(ExporterKind.PROM, port=0)
        async with (
            proxy_of(cluster.namesrv, metrics=settings, remoting_port=0) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            await Caller(channel).call("QueryRoute", topic=topic("plain"))
            where = server.metrics.address
            for path in ("/live", "/ready"):
                await asyncio.to_thread(page, where, path)
            text = await asyncio.to_thread(page, where, "/metrics")
            [up] = [line for line in text.splitlines() if line.startswith("rocketmq_proxy_up{")]
            assert up.endswith(" 1")
            assert 'node_type="proxy"' in up
            assert 'proxy_mode="cluster"' in up
            [calls] = [line for line in text.splitlines() if line.startswith("contrailmq_proxy_calls_total{")]
            assert 'call="QueryRoute"' in calls
            assert calls.endswith(" 1")

    asyncio.run(asyncio.wait_for(main(), 120))
