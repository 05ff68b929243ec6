"""The clients for asyncio: `async with`, `await`, `async for`.

import contrailmq.aio as aio

async with aio.Producer("shop", namesrv="127.0.0.1:9876") as producer:
    result = await producer.send(Message("Orders", b"..."))
"""

from contrailmq.client.admin.admin import Admin
from contrailmq.client.consuming.lite_pull_consumer import LitePullConsumer
from contrailmq.client.consuming.push_consumer import PushConsumer
from contrailmq.client.consuming.simple_consumer import SimpleConsumer
from contrailmq.client.producing.producer import Producer, create_reply
from contrailmq.client.producing.transaction_producer import TransactionProducer

__all__ = [
    "Admin",
    "LitePullConsumer",
    "Producer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
    "create_reply",
]
