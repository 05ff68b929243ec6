"""The fast frame and the ordinary one say the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrailmq.client.producing.send_template import SendTemplate
from contrailmq.message import encode_properties
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)


def parsed(frame: bytes) -> Command:
    (command,) = FrameParser().feed(frame)
    return command


@given(
    group=NAMES,
    topic=NAMES,
    broker=NAMES,
    properties=st.dictionaries(NAMES, NAMES, max_size=4),
    body=st.binary(max_size=50),
    numbers=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 3),
    is_batch=st.booleans(),
)
def test_a_template_renders_what_the_encoder_encodes(
    group: str,
    topic: str,
    broker: str,
    properties: dict[str, str],
    body: bytes,
    numbers: tuple[int, int, int],
    is_batch: bool,
) -> None:
    encoded = encode_properties(properties)
    template = SendTemplate(
        RequestCode.SEND_MESSAGE_V2,
        group=group,
        topic=topic,
        default_topic="TBW102",
        default_queues=4,
        broker_name=broker,
        is_batch=is_batch,
    )
    queue_id, flag, opaque = numbers
    fast = template.render(
        body, encoded, queue_id=queue_id, sys_flag=1, born_ms=1700000000000, flag=flag, opaque=opaque
    )
    ext = {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 1,
        "g": 1700000000000,
        "h": flag,
        "i": encoded.decode(),
        "j": 0,
        "k": "false",
        "m": "true" if is_batch else "false",
        "n": broker,
    }
    ordinary = encode_request(RequestCode.SEND_MESSAGE_V2, ext, body, opaque=opaque)
    assert fast == ordinary
