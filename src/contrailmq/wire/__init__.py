"""RocketMQ's remoting protocol: bytes to values and back, and one thin asyncio transport beside them.

Reading order: `codes` (the number tables), `header` and `frame` (one command, many commands), `requests` (typed ext
fields), `bodies` (JSON bodies), then `connection` and `transport` (the only files here that do I/O).
"""

from contrailmq.wire import acl, admin_bodies, codes, frame, header, requests, transport

__all__ = ["acl", "admin_bodies", "codes", "frame", "header", "requests", "transport"]
