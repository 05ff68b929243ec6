"""What atheris calls with each of its inputs; run by `test_fuzz`, as a process. Arguments are libFuzzer's."""

from __future__ import annotations

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["contrailmq"]):
    from contrailmq.wire.bodies import HeartbeatData, TopicRouteData
    from contrailmq.wire.errors import RemoteProtocolError
    from contrailmq.wire.fastjson import decode_body, loads_fastjson
    from contrailmq.wire.frame import FrameParser
    from contrailmq.wire.header import Command
    from wire.headers_by_code import REQUEST_HEADERS


def use(command: Command) -> None:
    kind = REQUEST_HEADERS.get(command.code)
    with contextlib.suppress(RemoteProtocolError):
        assert all(isinstance(value, str) for value in command.ext.values())
    with contextlib.suppress(RemoteProtocolError):
        if kind is not None:
            command.header(kind)


def one_input(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        for command in FrameParser().feed(data):
            use(command)
    for kind in (HeartbeatData, TopicRouteData):
        with contextlib.suppress(RemoteProtocolError):
            decode_body(data, kind)
    with contextlib.suppress(RemoteProtocolError):
        loads_fastjson(data)


atheris.Setup(sys.argv, one_input)
atheris.Fuzz()
