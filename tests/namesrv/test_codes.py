"""Every request code of a NameServer is served, and whatever its fields and body hold, it is answered."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.wire.admin_requests import RegisterBroker
from contrailmq.wire.bodies import DataVersion, QueueData, TopicRouteData, encode_body
from contrailmq.wire.codes import RequestCode as Code
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import BINARY, JSON, Command

from .test_server import IDENTITY, ext, registration

EXAMPLES = 5000 if os.environ.get("CONTRAILMQ_LONG") else 500

# The whole table of what a NameServer serves: code, fields, body, and the answer when nothing but a broker with the
# topics T and U is known.
SERVED: dict[int, tuple[dict[str, str], bytes, int]] = {
    100: ({"namespace": "n", "key": "k", "value": "v"}, b"", 0),
    101: ({"namespace": "n", "key": "none"}, b"", 22),
    102: ({"namespace": "n", "key": "none"}, b"", 0),
    103: (ext(), registration("T", "U"), 0),
    104: ({**IDENTITY, "brokerAddr": "nobody:1"}, b"", 0),
    105: ({"topic": "T"}, b"", 0),
    106: ({}, b"", 0),
    205: ({"brokerName": "a"}, b"", 0),
    206: ({}, b"", 0),
    216: ({"topic": "nothing"}, b"", 0),
    217: ({"topic": "V"}, encode_body(TopicRouteData(queue_datas=[QueueData(broker_name="a")])), 0),
    219: ({"namespace": "none"}, b"", 22),
    224: ({"cluster": "c"}, b"", 0),
    304: ({}, b"", 0),
    311: ({}, b"", 0),
    312: ({}, b"", 0),
    313: ({}, b"", 0),
    318: ({}, b"waitSecondsForService=45\n", 0),
    319: ({}, b"", 0),
    322: (IDENTITY, encode_body(DataVersion(counter=1)), 0),
    327: ({"brokerName": "a"}, b"", 0),
    901: ({"clusterName": "c", "brokerName": "a"}, b"", 0),
    904: (IDENTITY, b"", 0),
}


class Answers:
    """Stands where a connection stands."""

    is_open = True
    address = "10.0.0.1:4711"

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def reply(self, data: bytes) -> None:
        self.frames.append(data)


class Asked:
    """A NameServer that knows one broker, and the answer to one request after another."""

    def __init__(self, home: Path) -> None:
        self.server = NameServer(NamesrvConfig(rocketmq_home=str(home)))
        self._answers: Any = Answers()

    async def ask(self, frame: bytes) -> Command:
        requests = FrameParser().feed(frame)
        self.server.handle(self._answers, requests)
        while self.server._tasks:
            await asyncio.wait(set(self.server._tasks))
        [answer] = FrameParser().feed(self._answers.frames.pop())
        assert not self._answers.frames
        assert answer.opaque == requests[0].opaque
        assert answer.is_response
        return answer


@pytest.mark.parametrize("form", [JSON, BINARY])
@pytest.mark.parametrize("code", SERVED)
def test_every_code_is_answered_in_both_forms(code: int, form: int, tmp_path: Path) -> None:
    async def main() -> None:
        asked = Asked(tmp_path)
        await asked.ask(encode_request(Code.REGISTER_BROKER, ext(), registration("T", "U"), opaque=1))
        fields, body, expected = SERVED[code]
        answer = await asked.ask(encode_request(code, fields, body, opaque=2, serialize_type=form))
        assert (answer.code, answer.serialize_type) == (expected, form), answer.remark

    asyncio.run(main())


def test_no_other_code_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        asked = Asked(tmp_path)
        assert set(asked.server._table) == set(SERVED)
        for code in {*Code, -1, 0, 99_999, 2**31 - 1} - set(SERVED):
            answer = await asked.ask(encode_request(code, {}, opaque=3))
            assert (answer.code, answer.remark) == (3, f" request type {int(code)} not supported")

    asyncio.run(main())


FIELDS = sorted(
    {name for fields, _body, _code in SERVED.values() for name in fields} | set(RegisterBroker.__struct_encode_fields__)
)
odd_values = st.sampled_from(
    [
        "",
        "0",
        "-1",
        "1",
        "true",
        "false",
        "null",
        "a",
        "c",
        "T",
        "9" * 30,
        "9" * 5000,
        "1e9",
        "nan",
        "\0",
        "é" * 200,
        "%s",
        "../x",
        "a:1",
        " ",
    ]
)
odd_bodies = st.binary(max_size=60) | st.sampled_from(
    [body for _fields, body, _code in SERVED.values()]
    + [
        b"{}",
        b"[]",
        b"null",
        b'{"queueDatas":[{"brokerName":"a","perm":' + b"9" * 400 + b"}]}",
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":' + b"9" * 30 + b"}}}",
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":null}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":-1,"topicSysFlag":' + b"9" * 30 + b"}}}}",
        b'{"filterServerList":[null]}',
        b"x\x9c",
        b"\\u12\n=\n!#\n\xff",
        b"serverChannelMaxIdleTimeSeconds=-1\nscanNotActiveBrokerInterval=0\n",
    ]
)


def test_whatever_fields_and_body_hold_there_is_one_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fields of all codes with odd values, one server for all examples: what one leaves behind, the next one meets."""
    count = 0

    async def main() -> None:
        asked = Asked(tmp_path)
        loop = asyncio.get_running_loop()
        errors: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _loop, context: errors.append(context))
        frames: asyncio.Queue[bytes] = asyncio.Queue()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            st.sampled_from(sorted(SERVED)),
            st.dictionaries(st.sampled_from(FIELDS), odd_values),
            odd_bodies,
            st.booleans(),
        )
        @example(103, {**ext(), "heartbeatTimeoutMillis": "9" * 30}, registration("T", "U"), True)
        @example(103, {**ext(), "bodyCrc32": "-1"}, registration("T", "U"), True)
        def made(code: int, fields: dict[str, str], body: bytes, is_whole: bool) -> None:
            nonlocal count
            count += 1
            frames.put_nowait(
                encode_request(code, {**SERVED[code][0], **fields} if is_whole else fields, body, opaque=9)
            )

        made()
        while not frames.empty():
            answer = await asked.ask(frames.get_nowait())
            assert answer.code == 0 or answer.remark or answer.code in (17, 22)
        asked.server.scan()
        assert not errors

    asyncio.run(main())
    assert count >= EXAMPLES
