"""What `--json` gives, command by command: the schema that docs/admin.md prints, and tests hold answers against.

A field is written as `name kind`. Kinds: text, number, flag (true or false), list, object, any; with `?` it may be
null. Times are numbers, epoch milliseconds, under names that end in `_ms`; durations are seconds, sizes bytes, unless a
name says otherwise. New fields may be added; what is here keeps its name and meaning.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple


class Shape(enum.Enum):
    """How often the fields come."""

    ONE = "an object"
    LIST = "a list of objects"
    LINES = "a line for each, an object"
    TABLE = "an object of names and values"  # whose names are RocketMQ's


class Answer(NamedTuple):
    shape: Shape
    fields: tuple[tuple[str, str], ...]
    exits: str = ""  # exit codes besides 0, 1 and 2


MESSAGE: Final = (
    "message_id text; offset_message_id text; topic text; queue_id number; queue_offset number; "
    "physical_offset number; tags text?; keys list; properties object; born_time_ms number; born_host text; "
    "store_time_ms number; store_host text; reconsume_times number; body text"
)
MOVES: Final = "topic text; broker text; queue number; old_offset number?; offset number; skipped number; again number"


def _answer(shape: Shape, fields: str = "", exits: str = "") -> Answer:
    parts = (part.strip().rpartition(" ") for part in fields.split(";") if part.strip())
    return Answer(shape, tuple((name, kind) for name, _, kind in parts), exits)


ANSWERS: Final[Mapping[str, Answer]] = {
    "topic list": _answer(Shape.LIST, "topic text"),
    "topic create": _answer(Shape.ONE, "topic text; queues number; brokers list"),
    "topic update": _answer(Shape.ONE, "topic text; brokers list; unreachable_messages number"),
    "topic delete": _answer(Shape.ONE, "topic text; is_deleted flag"),
    "topic status": _answer(Shape.LIST, "broker text; queue number; min number; max number; last_written_ms number?"),
    "topic lite": _answer(Shape.LIST, "broker text; lite_topics number; expire_after_minutes number; groups list"),
    "topic lite-status": _answer(
        Shape.LIST, "broker text; min number; max number; last_written_ms number?; subscribers number"
    ),
    "topic route": _answer(
        Shape.LIST, "broker text; read_queues number; write_queues number; permission number; addresses object"
    ),
    "topic groups": _answer(Shape.LIST, "group text"),
    "group list": _answer(Shape.LIST, "group text; topics number; lag number?"),
    "group create": _answer(Shape.ONE, "group text; brokers list"),
    "group update": _answer(Shape.ONE, "group text; brokers list"),
    "group delete": _answer(Shape.ONE, "group text; is_deleted flag"),
    "group progress": _answer(
        Shape.LIST,
        "topic text; broker text; queue number; broker_offset number; consumer_offset number; lag number; "
        "last_consumed_ms number?",
    ),
    "group members": _answer(Shape.LIST, "client_id text; address text; language text; version number"),
    "group reset": _answer(Shape.LIST, MOVES),
    "group skip": _answer(Shape.LIST, MOVES),
    "message get": _answer(Shape.ONE, MESSAGE),
    "message by-key": _answer(Shape.LIST, MESSAGE),
    "message by-time": _answer(Shape.LIST, MESSAGE),
    "message send": _answer(
        Shape.ONE, "status text; message_id text; broker text; queue_id number; queue_offset number"
    ),
    "message tail": _answer(Shape.LINES, f"broker text; {MESSAGE}"),
    "message trace": _answer(
        Shape.LIST, "time_ms number?; after_ms number?; what text; group text; is_good flag; detail text"
    ),
    "message resend": _answer(
        Shape.ONE,
        "message_id text; topic text; new_message_id text; broker text; queue_id number; queue_offset number",
    ),
    "message resend --group": _answer(
        Shape.ONE, "message_id text; group text; client_id text; result text; spent_ms number; remark text?"
    ),
    "offset reset": _answer(Shape.LIST, MOVES),
    "offset clone": _answer(Shape.ONE, "source text; target text; topic text"),
    "dlq list": _answer(Shape.LIST, MESSAGE),
    "dlq resend": _answer(Shape.ONE, "group text; sent number; sent_before number; has_more flag; message_ids list"),
    "dlq resend --dry-run": _answer(Shape.LIST, MESSAGE),
    "dlq export": _answer(Shape.ONE, "group text; file text; format text; letters number"),
    "cluster list": _answer(Shape.LIST, "cluster text; broker text; id number; address text"),
    "broker status": _answer(Shape.TABLE),
    "broker pending": _answer(Shape.LIST, "kind text; of text; pending number"),
    "broker damage": _answer(
        Shape.LIST,
        "topic text; queue number; queue_offset number; physical_offset number; bytes number; reason text",
    ),
    "broker config": _answer(Shape.TABLE),
    "broker set": _answer(Shape.TABLE),
    "ha status": _answer(
        Shape.LIST,
        "broker text; id number?; slave text; master text?; connected flag?; acknowledged number?; silent_s number?; "
        "lag_bytes number?; lag_s number?; in_sync flag?; bytes_per_s number?; acting text?",
    ),
    "migrate plan": _answer(
        Shape.ONE,
        "status text; brokers number; findings list",
        "3: something is to be done first, 4: something would not carry over",
    ),
    "producers": _answer(
        Shape.LIST,
        "group text; client_id text; address text; language text; version number; last_seen_ms number?",
    ),
    "export": _answer(Shape.ONE, "format number; topics list; groups list; kv object; settings object"),
    "export --to": _answer(Shape.ONE, "file text; topics number; groups number"),
    "import": _answer(
        Shape.ONE, "changes list; not_in_file number; is_applied flag; failed list", "3: --dry-run, and it differs"
    ),
    "check": _answer(
        Shape.ONE,
        "status text; brokers number; groups number; findings list",
        "3: warnings, 4: something critical",
    ),
}
