"""Known bugs, planted one at a time, to learn what the checker finds.

Each replaces some text of one function of the package by other text, for the duration. Text that is not there any more
is an error: whoever changed the function looks for another way to be wrong in the same way.
"""

from __future__ import annotations
import __future__

import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Final, NamedTuple


class Planted(NamedTuple):
    name: str
    where: str  # module:function or module:Class.method, below contrailmq
    right: str
    wrong: str
    kinds: tuple[str, ...] = ()  # of faults that it takes; none: any seed may find it


CUTS: Final = ("cut",)
KILLS: Final = ("kill",)
CALM: Final = ("calm",)  # under faults a client may have to send a message back twice
PLANTED: Final = (
    # --- durability
    Planted(
        "the log is not synced",
        "store.log.mapped_file:MappedFile.flush",
        "self._files.sync(self.descriptor)",
        "pass",
        CUTS,
    ),
    Planted(
        "sends are answered before the flush",
        "broker.state.acknowledging:Acknowledging._until_durable",
        "if not needs.durable_up_to:",
        "if True:",
        CUTS,
    ),
    Planted(
        "a look-alike of the WAIT property is believed",
        "message.properties:text_wants_durable",
        "_NO_WAIT not in text or wants_durable(decode_properties(text))",
        "_NO_WAIT not in text",
        CUTS,
    ),
    Planted(
        "a failed sync is ignored",
        "store.log.flush:LogFlusher._flush_in_turn",
        "raise FlushFailedError(self._fail(exc)) from exc",
        "self._files.flushed_where, moved = self._files.wrote_offset, True",
        ("sync-error",),
    ),
    Planted(
        "a new log file's name is not synced",
        "store.log.allocation:Allocator._make",
        "self._files.sync_directory(path.parent)",
        "pass",
        CUTS,
    ),
    Planted(
        "a flush ends at the border of a file and claims the rest",
        "store.log.mapped_file_queue:MappedFileQueue.flush",
        "if not moved or where < file.end:\n            break\n",
        "self.flushed_where = self.wrote_offset if where == file.end else self.flushed_where\n        break\n",
        CUTS,
    ),
    # --- recovery
    Planted(
        "recovery cuts one record too many",
        "store.recovery.recovery:_Recovery.run",
        "cut_files = self.log.truncate_dirty_files(end)",
        "end = end if self.was_clean_exit or walked.last_offset < 0 else walked.last_offset\n"
        "    cut_files = self.log.truncate_dirty_files(end)",
        KILLS,
    ),
    Planted(
        "recovery trusts all files but the last",
        "store.recovery.recovery:_Recovery._first_file",
        "newest = self.queues.physical_max",
        "return len(self.files) - 1",
        CUTS,
    ),
    Planted(
        "recovery enters nothing into the index",
        "store.recovery.reconcile:Reconciler._enter",
        "if (keys := index_keys(record)) is not None:",
        "if (keys := None) is not None:",
        CUTS,
    ),
    # --- appending and dispatch
    Planted(
        "a queue offset is given twice",
        "store.log.commit_log:CommitLog._write",
        "state.next_offset = queue_offset + count",
        "state.next_offset = queue_offset + (count if offset % 41 else 0)",
    ),
    Planted(
        "the last record before a roll gets no unit",
        "store.dispatch:Dispatcher._enter",
        "self._queues.append_all(chunk)",
        "self._queues.append_all([one for one in chunk if one[1] % 65536 < 63000])",
    ),
    Planted("records are not indexed", "store.dispatch:Dispatcher._enter", "if self._index is not None:", "if False:"),
    Planted(
        "the index drops keys when a file is full",
        "store.index.index_service:IndexService.put_all",
        "items = _after(items, done) if left else []",
        "items = []",
    ),
    Planted(
        "a tag has the hash of another",
        "broker.requests.send:SendProcessor._new_tag_code",
        "code = self._tag_codes[tags] = tags_code(tags)",
        "code = self._tag_codes[tags] = tags_code(tags + ' ')",
    ),
    Planted(
        "the answer to a send names the wrong offset",
        "broker.requests.send:SendProcessor._render",
        "offset = result.queue_offset",
        "offset = result.queue_offset + (result.queue_offset % 16 == 15)",
    ),
    # --- delays and timers
    Planted(
        "a delay level is delivered one poll early",
        "broker.delayed.delay:DelayService._deliver_level",
        "if next_ms > now_ms:",
        "if next_ms > now_ms + POLL_MS:",
    ),
    Planted(
        "a delay level passes over a message",
        "broker.delayed.delay:DelayService._deliver_next",
        "self.offsets[level] = offsets[written - 1] + 1",
        "self.offsets[level] = offsets[written - 1] + 1 + (offsets[written - 1] % 3 == 2)",
    ),
    Planted(
        "a timer is delivered one slot early",
        "store.timer.timer_store:TimerStore.tick",
        "enqueued = dequeued = 0",
        "enqueued = dequeued = 0\n    now_ms += self.precision_ms",
    ),
    # --- transactions
    Planted(
        "a transaction that was rolled back is committed",
        "broker.transactions.halves:TransactionService.end_transaction",
        "if header.commit_or_rollback == COMMIT:",
        "if header.commit_or_rollback in (COMMIT, ROLLBACK):",
    ),
    Planted(
        "a half message is not asked about",
        "broker.transactions.halves:TransactionService._put_back",
        "self._ask_producer(half, properties, result)",
        "pass",
    ),
    # --- retries
    Planted(
        "a dead letter is stored twice",
        "broker.requests.retry:RetryProcessor.send_back",
        "result = put_rewritten(node, message)",
        "result = put_rewritten(node, message)\n"
        "    if message.topic.startswith('%DLQ%'):\n"
        "        put_rewritten(node, self._copy(header, group, command.version))",
        CALM,
    ),
    Planted(
        "a retry loses its keys",
        "broker.requests.retry:RetryProcessor._copy",
        'properties[Property.WAIT] = "false"',
        "properties.pop(Property.KEYS, None)",
    ),
    # --- groups
    Planted(
        "the broker stores an offset one too far",
        "broker.state.offsets:OffsetTable.commit",
        'key = f"{topic}@{group}"',
        'key, offset = f"{topic}@{group}", offset + 1',
    ),
    Planted(
        "a consumer moves its offset before its listener ran",
        "client.consuming.consume_concurrent:ConcurrentConsumption.begin",
        "now_s = self._loop.time()",
        "now_s = self._loop.time()\n    self._offsets.raise_to(assignment.queue, chunk[-1].queue_offset + 1)",
    ),
    Planted(
        "a message that is done hides those before it",
        "client.consuming.process_queue:ProcessQueue.remove",
        "return next(iter(cache)) if cache else self.queue_offset_max + 1",
        "return self.queue_offset_max + 1",
    ),
    Planted(
        "a lite pull consumer commits what it has not handed out",
        "client.consuming.lite_pull_consumer:LitePullConsumer._move_consumed",
        "table.raise_to(queue, offset)",
        "table.raise_to(queue, self._assignments[queue].cache.queue_offset_max + 1)",
    ),
    Planted(
        "an orderly consumer commits one too far",
        "client.consuming.process_queue:ProcessQueue.commit",
        "return last + 1",
        "return last + 2",
    ),
)
BY_NAME: Final = {one.name: one for one in PLANTED}


@contextlib.contextmanager
def planted(bug: Planted) -> Iterator[None]:
    """The package has this bug meanwhile."""
    module_name, _, path = bug.where.partition(":")
    module = importlib.import_module(f"contrailmq.{module_name}")
    owner: object = module
    for part in path.split(".")[:-1]:
        owner = getattr(owner, part)
    name = path.split(".")[-1]
    function = inspect.getattr_static(owner, name)
    assert isinstance(function, FunctionType), f"{bug.where} is no plain function"
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    if source.count(bug.right) != 1:
        raise LookupError(f"{bug.where} has {source.count(bug.right)} times the text that {bug.name!r} replaces")
    code = compile(
        source.replace(bug.right, bug.wrong), f"<planted {name}>", "exec", __future__.annotations.compiler_flag
    )
    names: dict[str, object] = {}
    exec(code, vars(module), names)
    holders = [owner] if owner is not module else [one for one in _package() if getattr(one, name, None) is function]
    with contextlib.ExitStack() as undo:
        for holder in holders:
            undo.callback(setattr, holder, name, function)
            setattr(holder, name, names[name])
        yield


def _package() -> list[object]:
    return [module for key, module in sys.modules.items() if key.startswith("contrailmq.")]
