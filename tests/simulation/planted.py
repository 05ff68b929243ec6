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


class Edit(NamedTuple):
    where: str  # module:function or module:Class.method, below contrailmq
    right: str
    wrong: str


class Planted(NamedTuple):
    name: str
    where: str
    right: str
    wrong: str
    kinds: tuple[str, ...] = ()  # of faults that it takes; none: any seed may find it
    has_slaves: bool = False  # it is one of replication: only seeds with slaves can find it
    acts: bool = False  # it takes a slave that stands in for its master
    pops: bool = False  # it takes consumers of POP
    rolls: bool = False  # it takes timers that roll
    flush: str = ""  # it takes this way to flush
    also: tuple[Edit, ...] = ()  # what else would catch it, or belongs to it

    @property
    def edits(self) -> tuple[Edit, ...]:
        return (Edit(self.where, self.right, self.wrong), *self.also)


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
        "a sync that takes too long counts as done",
        "broker.state.acknowledging:Acknowledging._until_durable",
        "then(Problem(ResponseCode.FLUSH_DISK_TIMEOUT, remark, is_late=True))",
        "then(None)",
        ("stall", "cut"),
        flush="SYNC_FLUSH",
    ),
    Planted(
        "a sync answers one message more than it has covered",
        "broker.state.parked:ParkedAnswers.advanced",
        "        waiting.popleft()[2](Outcome.DURABLE)",
        "        waiting.popleft()[2](Outcome.DURABLE)\n"
        "        if waiting and waiting[0][0] > durable_offset:\n"
        "            waiting.popleft()[2](Outcome.DURABLE)\n"
        "            break",
        CUTS,
        flush="SYNC_FLUSH",
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
    Planted(
        "the ids of the messages of a batch name each other's places",
        "broker.requests.send:SendProcessor._store_batch",
        "% offsets  # one by one",
        "% offsets[::-1]  # one by one",
    ),
    Planted(
        "a batch takes one offset of its queue, however many messages it holds",
        "store.log.commit_log:CommitLog._append_odd",
        "count = inner_count(known) if count else 0",
        "count = 1 if count else 0",
    ),
    Planted(
        "a topic that is deleted keeps its queues",
        "store.message_store:MessageStore.delete_topics",
        "names = set(topics)",
        "return 0",
        CALM,
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
        "the offset of a delay level is saved before its copies are on the disk",
        "broker.delayed.delay:DelayService._save",
        "self._store.flush(log_end)",
        "pass",
        CUTS,
        flush="ASYNC_FLUSH",
    ),
    Planted(
        "the journal of the delay levels is written before the copies are made",
        "broker.delayed.delay:DelayService._deliver_next",
        "            written = self._store.append_copies(copies) if copies else 0\n",
        "            if copies and self._last_copy is not None:\n"
        "                self._journal.note(self.offsets | {level: offsets[-1] + 1}, self._last_copy)\n"
        "            written = self._store.append_copies(copies) if copies else 0\n",
        KILLS,
    ),
    Planted(
        "the journal of the delay levels counts though its copies are gone",
        "broker.delayed.level_journal:LevelJournal.open",
        "if stands(self._store, entry.copy):",
        "if True:",
        CUTS,
        flush="ASYNC_FLUSH",
    ),
    Planted(
        "the journal of the timers counts though its copies are gone",
        "store.timer.delivered:DeliveredJournal.open",
        "if stands(store, run[end - 1].copy):",
        "if True:",
        CUTS,
        flush="ASYNC_FLUSH",
    ),
    Planted(
        "a timer that the store refused counts as delivered",
        "store.timer.delivery:Delivery._put_once",
        "self._stats.refused += 1\n    return False",
        "return True",
        ("full",),
    ),
    Planted(
        "what waits is looked at only every eight seconds",
        "broker.delayed.delay:DelayService.tick",
        "self.interval_ms = max(next_ms - now_ms, 0)",
        "self.interval_ms = 8000",
        CALM,
    ),
    Planted(
        "a message comes into the first queue when its delay is over",
        "broker.delayed.delay:DelayService._copies",
        "copies, places = self._copier.copies(records)",
        "copies, places = self._copier.copies(records)\n    copies = [copy._replace(queue_id=0) for copy in copies]",
    ),
    Planted(
        "a clean stop does not save how far the delay levels are",
        "broker.delayed.delay:DelayService.stop",
        "self._save(self._store.log_max_offset, self._snapshot())\n",
        "pass\n",
        ("stop",),
    ),
    Planted(
        "a timer is delivered one slot early",
        "store.timer.timer_store:TimerStore.tick",
        "enqueued = dequeued = 0",
        "enqueued = dequeued = 0\n    now_ms += self.precision_ms",
    ),
    Planted(
        "a timer that rolls is not put back",
        "store.timer.delivery:Delivery._put_once",
        "status = self._put(message, properties | added, is_roll=is_roll)",
        "status = PutStatus.PUT_OK if is_roll else self._put(message, properties | added, is_roll=is_roll)",
        rolls=True,
    ),
    Planted(
        "the timer wheel forgets what it has delivered before the copies are on the disk",
        "store.timer.timer_store:TimerStore.run_flush",
        "self._store.flush(plan.log_end)",
        "pass",
        CUTS,
        flush="ASYNC_FLUSH",
    ),
    Planted(
        "a recall is answered before its mark is synced",
        "broker.delayed.timers:TimerService._take_back",
        "connection, command, end_offset, ext",
        "connection, command, 0, ext",
        CUTS,
    ),
    # --- transactions
    Planted(
        "a transaction that was rolled back is committed",
        "broker.transactions.halves:TransactionService.end",
        "if header.commit_or_rollback == COMMIT else",
        "if header.commit_or_rollback in (COMMIT, ROLLBACK) else",
    ),
    Planted(
        "a half message is not asked about",
        "broker.transactions.halves:TransactionService._put_back",
        "self._ask_producer(half, properties, result)",
        "pass",
    ),
    Planted(
        "a message comes into the first queue when its transaction commits",
        "broker.transactions.committing:committed",
        "topic, queue_id, record, half, code, keys, unique_key, tags, flags = copy",
        "topic, queue_id, record, half, code, keys, unique_key, tags, flags = copy._replace(queue_id=0)",
    ),
    # --- retries
    Planted(
        "a group that is set back goes on where it was",
        "broker.state.offsets:OffsetTable.take_reset",
        "if not self._resets:",
        "if True:",
        CALM,
    ),
    Planted(
        "a broker keeps something of every message that it has stored",
        "broker.state.statistics:Statistics.note_put",
        "self.put.value += messages",
        "self.put.value += messages\n    self.__dict__.setdefault('kept', []).append(bytes(100_000))",
    ),
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
    Planted(
        "a retry comes at once",
        "broker.requests.retry:RetryProcessor._copy",
        "properties[Property.DELAY] = str(header.delay_level or FIRST_RETRY_LEVEL + stored.reconsume_times)",
        "pass",
    ),
    Planted(
        "a retry is shown as one of the retry topic",
        "client.consuming.push_consumer:PushConsumer._show",
        "message.topic = message.properties.get(Property.RETRY_TOPIC, message.topic)",
        "pass",
    ),
    Planted(
        "a retry gets an id of its own",
        "broker.requests.retry:RetryProcessor._copy",
        'properties[Property.WAIT] = "false"',
        'properties[Property.WAIT] = "false"\n    properties[Property.UNIQUE_KEY] = stored.offset_message_id',
    ),
    Planted(
        "a retry gets a property that nobody sent",
        "broker.requests.retry:RetryProcessor._copy",
        'properties[Property.WAIT] = "false"',
        'properties[Property.WAIT] = properties["retried"] = "false"',
    ),
    Planted(
        "a retry loses its flag",
        "broker.requests.retry:RetryProcessor._copy",
        'properties[Property.WAIT] = "false"',
        'properties[Property.WAIT] = "false"\n    message.flag = 0',
    ),
    Planted(
        "a dead letter loses its keys",
        "broker.requests.retry:RetryProcessor._copy",
        "properties.pop(Property.DELAY, None)",
        "properties.pop(Property.DELAY, None)\n        properties.pop(Property.KEYS, None)",
    ),
    Planted(
        "a message that is sent back is confirmed before its copy is synced",
        "broker.requests.retry:RetryProcessor.send_back",
        "result.physical_offset + result.size_bytes,",
        "0,",
        CUTS,
        flush="SYNC_FLUSH",
    ),
    # --- groups
    Planted(
        "the broker stores an offset one too far",
        "broker.state.offsets:OffsetTable.commit",
        'key = f"{topic}@{group}"',
        'key, offset = f"{topic}@{group}", offset + 1',
    ),
    Planted(
        "the broker stores no offsets of some queues",
        "broker.state.offsets:OffsetTable.commit",
        'key = f"{topic}@{group}"',
        'key = f"{topic}@{group}"\n    if queue_id == 1:\n        return',
    ),
    Planted(
        "a page that is full hides the message after it",
        "broker.requests.pull:PullProcessor._answer",
        "values = (suggested, result.next_offset,",
        "values = (suggested, result.next_offset + (result.count == pull.header.max_msg_nums),",
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
    Planted(
        "an orderly consumer commits what its listener failed on",
        "client.consuming.consume_orderly:OrderlyConsumption._settle",
        "if await self._try_again(messages):",
        "if False:",
    ),
    # --- POP
    Planted(
        "a group of POP moves on before its checkpoint is on the disk",
        "broker.pop.positions:Positions.moved",
        "if not record_end and not queue.uncommitted:",
        "if True:",
        CUTS,
        pops=True,
        flush="ASYNC_FLUSH",
    ),
    Planted(
        "an acknowledgement of POP is answered before its record is durable",
        "broker.pop.acking:Acking.ack",
        "return self._confirm(connection, command, self._ack(key, [header.offset], handle.pop_time_ms))",
        "self._ack(key, [header.offset], handle.pop_time_ms)\n"
        "    return encode_response(command, ResponseCode.SUCCESS)",
        CUTS,
        pops=True,
        flush="SYNC_FLUSH",
    ),
    Planted(
        "a message that comes again keeps its number of attempts",
        "broker.pop.reviving:Reviving._retried",
        "copy.reconsume_times = message.reconsume_times + 1",
        "copy.reconsume_times = message.reconsume_times",
        pops=True,
    ),
    Planted(
        "a start of a broker forgets acknowledgements of POP",
        "broker.pop.recovery:Recovery._apply_ack",
        "if body is not None:",
        "if body is not None and body.offset % 3 != 1:",
        KILLS,
        pops=True,
    ),
    Planted(
        "a FIFO queue gives the next batch before the last is acknowledged",
        "broker.pop.popping:Popping._visit",
        "if self._orders.is_blocked(key, pop.header.attempt_id):",
        "if False:",
        pops=True,
    ),
    Planted(
        "a FIFO queue gives a batch again before its time is over",
        "broker.pop.orders:OrderInfo.blocks",
        "any(steady_ms <= self.steady_ms[offset]",
        "any(steady_ms + 2000 <= self.steady_ms[offset]",
        pops=True,
    ),
    Planted(
        "a message that a consumer keeps longer is due in half of that time",
        "broker.pop.acking:Acking._change",
        "invisible_ms=header.invisible_time,",
        "invisible_ms=header.invisible_time // 2,",
        pops=True,
    ),
    # --- replication
    Planted(
        "an answer waits for what was sent to slaves, not for reports",
        "store.replication.serving:SlaveConnection._send",
        "feed.sent(len(body), self._server.monotonic_ms())",
        "feed.sent(len(body), self._server.monotonic_ms())\n"
        "    feed.acknowledged = feed.next_offset\n"
        "    self._server.reported(self)",
        has_slaves=True,
    ),
    Planted(
        "one slave counts as two",
        "store.replication.acknowledged:Acknowledged.reached_by",
        "self._counted[slaves - 1] if slaves <= len(self._counted)",
        "self._counted[(slaves - 1) // 2] if slaves <= 2 * len(self._counted)",
        ("kill", "part", "slow"),
        has_slaves=True,
    ),
    Planted(
        "an answer leaves when disk or slaves have the message, not both",
        "broker.state.acknowledging:_Both.__init__",
        "self._open = 2",
        "self._open = 1",
        has_slaves=True,
    ),
    Planted(
        "a slave reports before the flush",
        "store.replication.following:Following.heartbeat",
        "max(self._reported, self.reportable)",
        "max(self._reported, self._replica.end)",
        has_slaves=True,
    ),
    Planted(
        "a slave keeps the begin of a record over a new connection",
        "store.replication.replica:Replica._erase_unfinished",
        "    self._unfinished_bytes = 0",
        "    pass",
        ("slow", "reset"),
        has_slaves=True,
    ),
    Planted(
        "a slave takes a record that has not come whole",
        "store.replication.replica:Replica._whole_at",
        "if size_bytes > left:\n        return 0, True",
        "if size_bytes > left:\n        return left, True",
        has_slaves=True,
    ),
    Planted(
        "a slave skips the block that begins a file",
        "store.replication.following:Following.receive",
        "if len(body) > known:",
        "if len(body) > known and (not offset or offset % 65536):",
        has_slaves=True,
    ),
    Planted(
        "a master that waits for no slave sends what it has not synced",
        "store.replication.feed:Feed.size_due",
        "source.log_max_offset if config.waits_for_slaves else source.confirm_offset",
        "source.log_max_offset",
        has_slaves=True,
    ),
    Planted(
        "a slave that is ahead of its master is fed when the master has grown past its end",
        "store.replication.feed:Feed._begin",
        "if report > end:",
        "if False:",
        CUTS,
        has_slaves=True,
        also=(
            Edit("broker.cluster.master_log:_check_bounds", "if end > master_end:", "if False:"),
            Edit("broker.cluster.master_log:check_history", "if last >= begin:", "if False:"),
        ),
    ),
    Planted(
        "a slave keeps the queues of topics that its master deleted",
        "broker.cluster.slave_sync:SlaveSync._hear_deletions",
        "self._deleted = masters",
        "return",
        has_slaves=True,
    ),
    Planted(
        "a slave does not hear that its master's clock was set",
        "broker.cluster.slave_sync:SlaveSync._follow_clock",
        "if told.clock_stretches is not None and told.clock_steady_ms is not None:",
        "if False:",
        ("switch", "jump"),
        has_slaves=True,
    ),
    Planted(
        "a slave takes its master's positions before it has the log up to there",
        "broker.cluster.slave_sync:SlaveSync._take_when_reached",
        "self._ahead[what] = (end, take)",
        "await take()",
        ("stall", "full"),
        has_slaves=True,
    ),
    Planted(
        "a slave that stands in for its master takes what nobody took for handed over",
        "broker.cluster.escape:Escape._send",
        "self._routes.pop(found.topic, None)",
        "self._arrived.add(found.message.physical_offset)",
        ("masters-kill",),
        has_slaves=True,
        acts=True,
    ),
)
BY_NAME: Final = {one.name: one for one in PLANTED}


@contextlib.contextmanager
def planted(bug: Planted) -> Iterator[None]:
    """The package has this bug meanwhile."""
    with contextlib.ExitStack() as undo:
        for edit in bug.edits:
            undo.enter_context(_edited(bug.name, edit))
        yield


@contextlib.contextmanager
def _edited(bug: str, edit: Edit) -> Iterator[None]:
    module_name, _, path = edit.where.partition(":")
    module = importlib.import_module(f"contrailmq.{module_name}")
    owner: object = module
    for part in path.split(".")[:-1]:
        owner = getattr(owner, part)
    name = path.split(".")[-1]
    function = inspect.getattr_static(owner, name)
    assert isinstance(function, FunctionType), f"{edit.where} is no plain function"
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    if source.count(edit.right) != 1:
        raise LookupError(f"{edit.where} has {source.count(edit.right)} times the text that {bug!r} replaces")
    code = compile(
        source.replace(edit.right, edit.wrong), f"<planted {name}>", "exec", __future__.annotations.compiler_flag
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
