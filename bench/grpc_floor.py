"""A gRPC server that does nothing: what gRPC itself costs, by our server and by grpcio's, for `python -m bench grpc`.

    python -m bench.grpc_floor PORT BATCH ours|grpcio

It answers SendMessage, AckMessage, ReceiveMessage (BATCH messages) and Telemetry with bytes that were made before, and
looks at no request. Both are asyncio; ours runs on the loop that our server has.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc

from contrailmq.proxy.protocol import SERVICE, v2
from contrailmq.proxy.rpc.calls import BOTH_STREAM, SERVER_STREAM, UNARY, Call, Method
from contrailmq.proxy.rpc.port import CallPort
from contrailmq.proxy.statuses import Code, status
from contrailmq.wire.transport import new_event_loop

BODY_BYTES = 1024
MESSAGE_BYTES_MAX = 130 * 1024 * 1024
# What our server would have on grpcio.
GRPC_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", 4096),
    ("grpc.so_reuseport", 0),
)
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


def _methods(batch: int) -> dict[str, Method]:
    sent, acked, received = _answers(batch)

    async def send(request: bytes, context: Call) -> bytes:
        return sent

    async def acknowledge(request: bytes, context: Call) -> bytes:
        return acked

    async def receive(request: bytes, context: Call) -> None:
        for part in received:
            await context.write(part)

    async def telemetry(requests: AsyncIterator[bytes], context: Call) -> None:
        async for request in requests:
            await context.write(request)

    calls: dict[str, tuple[int, Any]] = {
        "SendMessage": (UNARY, send),
        "AckMessage": (UNARY, acknowledge),
        "ReceiveMessage": (SERVER_STREAM, receive),
        "Telemetry": (BOTH_STREAM, telemetry),
    }
    return {
        f"/{SERVICE}/{name}": Method(name, kind, read=bytes, write=bytes, call=call, failed=_raised)
        for name, (kind, call) in calls.items()
    }


def _raised(error: Exception) -> Any:
    raise error


async def serve_ours(port: int, batch: int) -> None:
    await CallPort(_methods(batch), Counter(), host="127.0.0.1", port=port).start()
    await asyncio.Event().wait()


async def serve_grpcio(port: int, batch: int) -> None:
    server = grpc.aio.server(options=GRPC_OPTIONS)
    server.add_generic_rpc_handlers((_handlers(batch),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    number, size = int(sys.argv[1]), int(sys.argv[2])
    if sys.argv[3] == "ours":
        new_event_loop().run_until_complete(serve_ours(number, size))
    else:
        asyncio.run(serve_grpcio(number, size))
