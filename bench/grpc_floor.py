"""A gRPC server that does nothing: what grpcio itself costs, in the same run as `python -m bench grpc`.

    python -m bench.grpc_floor PORT BATCH

It answers SendMessage, AckMessage, ReceiveMessage (BATCH messages) and Telemetry with bytes that were made before, and
looks at no request. It has the options of our server, and is asyncio as ours is.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

from contrailmq.proxy.protocol import SERVICE, v2
from contrailmq.proxy.server import GRPC_OPTIONS
from contrailmq.proxy.statuses import Code, status

BODY_BYTES = 1024
_HANDLE = "1000000 1763500000000 60000 3 0 broker-a 3 1000000 123456789012"  # as long as a real one


def _answers(batch: int) -> tuple[bytes, bytes, list[bytes]]:
    """Of SendMessage, AckMessage and ReceiveMessage."""
    message_id = "01" + "A" * 32
    done = status(Code.OK)
    sent = v2.SendMessageResponse(status=done, entries=[v2.SendResultEntry(status=done, message_id=message_id)])
    acked = v2.AckMessageResponse(
        status=done, entries=[v2.AckMessageResultEntry(message_id=message_id, receipt_handle=_HANDLE, status=done)]
    )
    message = v2.Message(topic=v2.Resource(name="bench_grpc"), body=b"x" * BODY_BYTES)
    message.system_properties.message_id, message.system_properties.receipt_handle = message_id, _HANDLE
    end = v2.ReceiveMessageResponse()
    end.delivery_timestamp.FromMilliseconds(1_763_500_000_000)
    parts = [v2.ReceiveMessageResponse(status=done), *[v2.ReceiveMessageResponse(message=message)] * batch, end]
    return sent.SerializeToString(), acked.SerializeToString(), [part.SerializeToString() for part in parts]


def _handlers(batch: int) -> grpc.GenericRpcHandler:
    sent, acked, received = _answers(batch)

    async def send(request: bytes, context: Any) -> bytes:
        return sent

    async def acknowledge(request: bytes, context: Any) -> bytes:
        return acked

    async def receive(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for part in received:
            yield part

    async def telemetry(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    table: dict[str, Any] = {
        "SendMessage": grpc.unary_unary_rpc_method_handler(send),
        "AckMessage": grpc.unary_unary_rpc_method_handler(acknowledge),
        "ReceiveMessage": grpc.unary_stream_rpc_method_handler(receive),
        "Telemetry": grpc.stream_stream_rpc_method_handler(telemetry),
    }
    return grpc.method_handlers_generic_handler(SERVICE, table)


async def main(port: int, batch: int) -> None:
    server = grpc.aio.server(options=GRPC_OPTIONS)
    server.add_generic_rpc_handlers((_handlers(batch),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
