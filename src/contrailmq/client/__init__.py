"""Producers, consumers and administration over RocketMQ's remoting protocol.

Everything is written for asyncio; `contrailmq.aio` lists those names. The blocking faces in `sync.py` run the same
objects on one background loop; `contrailmq` lists them. `raw.QueueReader` is a plain blocking reader without any loop.
"""

from contrailmq.client.batch import split_batch
from contrailmq.client.raw import QueueReader, RawPull, RawSent
from contrailmq.client.selectors import by_hash, by_machine_room, by_random

__all__ = ["QueueReader", "RawPull", "RawSent", "by_hash", "by_machine_room", "by_random", "split_batch"]
