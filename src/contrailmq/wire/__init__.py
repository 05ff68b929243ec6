"""RocketMQ's remoting protocol: bytes to values and back, and one thin asyncio transport beside them.

Reading order: `codes` (the number tables), `header` and `frame` (one command, many commands), `requests` (typed ext
fields), `fastjson` and `bodies` (JSON bodies), then `connection` and `transport` (the only files here that do I/O).

Import the modules by name: this package imports none of them, so that you pay only for those you need.
"""
