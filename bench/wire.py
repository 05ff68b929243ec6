"""`contrailmq bench wire`: what the protocol costs per message, in CPU microseconds, on one core, without sockets.

Shows: one SEND_MESSAGE_V2 request parsed alone and in a chunk of many, its ext fields decoded in three ways, and the
answer made from a template and without one. The baseline is `json.loads` of the same header in the same run. Does not
show: sockets, the loop, the broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import msgspec

from bench.machine import best_cpu_us, machine
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.frame import FrameParser, ReplyTemplate, encode_request, encode_response
from contrailmq.wire.header import HOT_DECODERS, decode_any
from contrailmq.wire.requests import SendMessageV2

ROUNDS: Final = 5
COUNT: Final = 10_000
CHUNK_FRAMES: Final = 64

_SENT: Final = ReplyTemplate({"queueId": int, "msgId": bytes, "queueOffset": int}, {"TRACE_ON": "true"})


def measure_wire(body_bytes: int = 1024) -> dict[str, object]:
    """Best of several rounds each: on a shared machine the least disturbed round is the truest."""
    fields = SendMessageV2(
        producer_group="producer_group",
        topic="TopicTest",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties="UNIQ_KEY\x017F0000010001AABBCCDD0000ABCD0001\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    )
    frame = encode_request(RequestCode.SEND_MESSAGE_V2, fields, bytes(body_bytes), opaque=1_000_000)
    chunk, [command] = frame * CHUNK_FRAMES, FrameParser().feed(frame)
    header = command.raw_header
    in_one_pass = HOT_DECODERS[b"310"]
    typed, table = msgspec.json.Decoder(SendMessageV2, strict=False), msgspec.json.Decoder(dict[str, str])
    figures: dict[str, object] = {
        "machine": machine(),
        "frame_bytes": len(frame),
        "header_bytes": len(header),
    }
    measured: dict[str, Callable[[], object]] = {
        "parse_one_frame_cpu_us": lambda: FrameParser().feed(frame),
        "header_with_typed_fields_cpu_us": lambda: in_one_pass(header),
        "header_then_typed_fields_cpu_us": lambda: typed.decode(decode_any(header).ext_fields),
        "header_then_dict_of_fields_cpu_us": lambda: table.decode(decode_any(header).ext_fields),
        "reply_from_template_cpu_us": lambda: _SENT.render(command, (1, b"7F00000100002A9F0000000000000000", 5)),
        "reply_without_template_cpu_us": lambda: encode_response(
            command, 0, {"queueId": 1, "msgId": "7F00000100002A9F0000000000000000", "queueOffset": 5}
        ),
        "json_loads_of_the_header_cpu_us": lambda: json.loads(header),
    }
    parser = FrameParser()
    figures[f"parse_in_chunks_of_{CHUNK_FRAMES}_cpu_us"] = round(
        best_cpu_us(lambda: parser.feed(chunk), COUNT // CHUNK_FRAMES, ROUNDS) / CHUNK_FRAMES, 2
    )
    for name, action in measured.items():
        figures[name] = round(best_cpu_us(action, COUNT, ROUNDS), 2)
    return figures
