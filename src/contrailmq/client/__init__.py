"""Producers, consumers and administration over RocketMQ's remoting protocol.

Everything is written for asyncio; `contrailmq.aio` lists those names. The blocking faces in `sync.py` run the same
objects on one background loop; `contrailmq` lists them.
"""
