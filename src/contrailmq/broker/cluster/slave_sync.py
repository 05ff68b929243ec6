"""What a slave copies from its master by asking: topics, groups, offsets of consumers, positions of what waits.

These tables are not in the log, which log_following.py copies. A slave asks its master for them over the ordinary port
and saves them in the same files, so that the day it is started as a master, consumers and deliveries go on where the
old master was.

    what                   code  how often   taken when
    topics                   21       10 s   the data version differs; in pages
    consumer offsets         43       10 s   a value differs (the version moves with every 500th commit only)
    delay levels             45       10 s   an offset or the version differs
    subscription groups     201       10 s   the data version differs; in pages
    timer metrics            61       10 s   the data version differs
    timer checkpoint         60        1 s   always: it says which slots the master has delivered

With the checkpoint a master of ours says how its clock was set (store/base/store_clock.py): a slave that is made the
master has messages wait as long as was asked all the same. It also says when topics or groups have changed, and they
are asked for at once.

With the topics a master of ours says which were deleted, and where its log ended then (state/deleted_topics.py). Queues
whose newest message lies before that are removed here when our log has come that far; where groups stood in them is
forgotten before an offset is handed over. RocketMQ's masters do not say it: there a queue keeps deleted messages until
the first one of the topic's new life comes to it.

A topic that the log brings and the table lacks has the tables asked for at once, at most once a second. When no master
answers three times in a row, the slave adopts it (adoption.py): what it has is read from it also when the master died
right after the topic's first message.

RocketMQ asks for the tables every 10 s (4.x, and under a controller) or 60 s (5.x alone), for the checkpoint every 3 s.
As there, what a master does not have any more is removed here too. RocketMQ merges consumer offsets instead, and so
keeps those of deleted groups for ever: a group of the same name made later would begin at the old place. Here the table
is the master's.

Positions (the offsets of consumers and delay levels, the timer checkpoint) say that something was done: a message was
delivered, a failed one sent back. Its copy lies further on in the master's log. So after each of these tables the slave
asks where that log ends, and takes the table when its own log has come that far: started as a master before, it does
again what the old one may have done, and loses nothing. Meanwhile newer tables are not asked for.

While the master does not answer it is asked each second. Offsets that were committed here meanwhile are sent to it
before anything is copied, or to the next master, where they are ahead of its own:
it does not deliver again what was consumed from its slave, and the copy of its table takes nothing back. Which they are
is kept in consumerOffset.json, for a slave that is started again before its master is. An offset that the master does
not take now (it is busy, it starts) stays and is sent again. One that it cannot take, of a topic that it does not have
or beyond the end of its queue there, is dropped with a line in the log; so is one of a group that no consumer has told
the master of within a minute.

The NameServers say who the master is, in their answer to each registration. A slave without one keeps what it has and
registers more often than others, to hear of one soon. Nothing here is fatal, and whatever goes wrong is logged when it
begins and when it ends, not each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

from msgspec.json import decode

from contrailmq._faults import LastingFault
from contrailmq.broker.adoption import Adoption, some
from contrailmq.broker.cluster.master_log import Asking, UnlikeError, check_history, log_bounds
from contrailmq.broker.delayed.delay import FILE_NAME as DELAY_FILE
from contrailmq.broker.delayed.delay import DelayService
from contrailmq.broker.delayed.timers import TimerService
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.config_files import DataVersion, Json, TableSaveError
from contrailmq.broker.state.deleted_topics import DELETED_FILE, DELETED_KEY, DeletedTopics
from contrailmq.broker.state.groups import GroupError, GroupTable
from contrailmq.broker.state.offsets import OFFSETS_FILE, REMOVED, SEPARATOR, OffsetTable
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.broker.state.topics import TopicError, TopicTable
from contrailmq.message import ContrailError
from contrailmq.store import Stretch
from contrailmq.wire.admin_requests import (
    GetAllSubscriptionGroup,
    GetAllSubscriptionGroupResponse,
    GetAllTopicConfig,
    GetAllTopicConfigResponse,
    GetTimerCheckPoint,
    GetTimerCheckPointResponse,
)
from contrailmq.wire.bodies import encode_body, loads_fastjson
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import RemoteProtocolError, WireError
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.requests import GetMaxOffset, OffsetResponse, UpdateConsumerOffset

log = logging.getLogger("contrailmq.broker")

TABLES_MS: Final = 10_000
CHECKPOINT_MS: Final = 1000
ASK_TIMEOUT_S: Final = 3.0
GONE_ROUNDS: Final = 3  # without an answer, and topics that the master did not tell of are adopted
PAGE: Final = 500  # topics or groups per answer: a master of ours makes that many in some 5 ms
PAGES_MAX: Final = 10_000  # of one table: a master that never comes to an end is not asked for ever
# How long offsets wait for the master to hear of their group. Consumers tell it by a heartbeat, every 30 s.
GROUP_WAIT_MS: Final = 60_000
# Answers to an offset that mean the same the next time.
_NEVER: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)

_UNKNOWN: Final = "the master's address"
_UNREACHABLE: Final = "the master"
_CHECKPOINT: Final = "timer checkpoint"
_HISTORY: Final = "tables"  # all of them

T = TypeVar("T")
D = TypeVar("D")
Copy = Callable[[str], Awaitable[None]]
Take = Callable[[], Awaitable[None]]


class NotCopiedError(ContrailError):
    """The master answered, but not with something that can be copied; `code` is that of an answer that says no."""

    def __init__(self, text: str, code: int = ResponseCode.SUCCESS) -> None:
        super().__init__(text)
        self.code = code


class SlaveSync:
    """Owner: BrokerServer. `master_told` is called with what the NameServers say; `run` copies for ever."""

    def __init__(
        self,
        node: BrokerNode,
        client: Asking,
        saver: TableSaver,
        delay: DelayService,
        timers: TimerService,
        adoption: Adoption,
        *,
        look_again: Callable[[], None],
    ) -> None:
        """`look_again` has the NameServers asked for the master before their turn."""
        self._node = node
        self._client = client
        self._saver = saver
        self._delay = delay
        self._timers = timers
        self._adoption = adoption
        adoption.on_missing = self._topic_missing
        self._look_again = look_again
        self._is_due = asyncio.Event()
        self._asked_ms = -TABLES_MS  # when the tables were asked for
        self._unanswered = 0  # rounds in a row
        self._faults: dict[str, LastingFault] = {}
        self._copied_from: dict[RequestCode, str] = {}  # versions say something about tables of one master only
        self._ahead: dict[str, tuple[int, Take]] = {}  # positions that wait for the log to reach an offset
        self._groupless: dict[str, int] = {}  # keys of offsets whose group the master lacks -> since when
        self._deleted: DeletedTopics | None = None  # the master's, until our log has come as far
        self._clock_version = ""  # of what is known of the master's clock
        self._tables_told = self._tables_asked = ""  # versions of its topics and groups: the newest, and what is here
        self.master = ""
        saver.add(DELAY_FILE, self._delay_snapshot)

    def _delay_snapshot(self) -> Callable[[], str]:
        text = self._delay.text()
        return lambda: text

    def master_told(self, address: str, ha_address: str) -> None:
        """Follow this master from now on; an empty address: the NameServers know none."""
        if address == self._node.address:
            address = ""  # this broker's own entry, from before its role changed
        if address != self.master:
            log.info("this slave copies from master %s, before from %s", address or "none", self.master or "none")
            self.master = address
            self._ahead.clear()  # they belong to another log, perhaps
            self._deleted, self._clock_version = None, ""
            self._is_due.set()
        if not address:
            self._miss_master("no NameServer knows one")

    async def run(self) -> None:
        """Copy for ever; the caller cancels it."""
        if not self._node.config.namesrv_addresses:
            self._miss_master("a NameServer names it, but namesrvAddr is not set")
        while True:
            await self.round()
            try:
                async with asyncio.timeout(CHECKPOINT_MS / 1000):
                    await self._is_due.wait()
            except TimeoutError:
                pass  # the usual case

    async def round(self) -> None:
        """What is due now: the tables, or the timer checkpoint alone."""
        now_ms = self._node.monotonic_ms()
        missing = list(self._adoption.missing)
        if now_ms >= self._asked_ms + TABLES_MS or self._is_due.is_set() or missing or self._unanswered:
            self._is_due.clear()
            self._asked_ms = now_ms
            is_answered = await self.copy_all()
            if not is_answered:
                self._look_again()
        else:
            is_answered = await self.copy_checkpoint()
        self._unanswered = 0 if is_answered else self._unanswered + 1
        if is_answered:
            for name in missing:  # the table has it now, or the master has deleted it
                self._adoption.missing.pop(name, None)
        elif self._adoption.missing and self._unanswered >= GONE_ROUNDS:
            self._adopt()
            await asyncio.to_thread(self._node.store.unify_queues)

    def _topic_missing(self) -> None:
        """The log brought a topic that the table lacks."""
        if self._node.monotonic_ms() >= self._asked_ms + CHECKPOINT_MS:
            self._is_due.set()  # else the next round is near

    def _adopt(self) -> None:
        for name in self._adoption.adopt_missing():
            self._saver.mark_soon(name)
        self._copied_from.clear()  # whatever versions say: these tables are not the master's

    async def copy_all(self) -> bool:
        """Ask for everything once; False when there is no master or it cannot be reached."""
        self._clock_version = ""  # compare the clocks again: no two run at the same pace
        has_timers = self._node.store.config.timer_wheel_enable
        copies: dict[str, Copy] = {}
        if has_timers:
            copies["timer checkpoint"] = self._copy_checkpoint  # first: it has the version of the tables
        copies |= {
            "topics": self._copy_topics,  # before offsets: those of topics that are gone are not handed over
            "consumer offsets": self._copy_offsets,
            "subscription groups": self._copy_groups,
            "delay levels": self._copy_delay,
        }
        if has_timers:
            copies["timer metrics"] = self._copy_metrics
        return await self._from_master(copies)

    async def copy_checkpoint(self) -> bool:
        """Ask for the timer checkpoint alone, and for offsets when the master lacks some that were committed here."""
        copies: dict[str, Copy] = {}
        if any(key not in self._groupless for key, _ in self._node.offsets.changes):
            copies["consumer offsets"] = self._copy_offsets
        if self._node.store.config.timer_wheel_enable:
            copies["timer checkpoint"] = self._copy_checkpoint
        is_answered = await self._from_master(copies)
        if self._tables_told != self._tables_asked:
            self._is_due.set()
        return is_answered

    # --- one table each

    async def _copy_topics(self, master: str) -> None:
        def request(begin: int, version: str) -> GetAllTopicConfig:
            return GetAllTopicConfig(topic_seq=begin, data_version=version, max_topic_num=PAGE, with_deleted=True)

        self._tables_asked = self._tables_told
        fresh = TopicTable(now_ms=self._node.now_ms)
        data = await self._pages(
            master,
            RequestCode.GET_ALL_TOPIC_CONFIG,
            "topicConfigTable",
            self._node.topics.version,
            request,
            lambda answer: answer.header(GetAllTopicConfigResponse).total_topic_num,
        )
        if await self._is_read(fresh.read, data):
            self._node.topics.take_over(fresh)
        await self._hear_deletions(data)
        # Before the table is saved, and again if that failed: the log may have brought messages of a batch topic first.
        await asyncio.to_thread(self._node.store.unify_queues)
        if data is not None:
            await self._saver.save("topics.json")

    async def _hear_deletions(self, data: Json | None) -> None:
        if data is None or DELETED_KEY not in data:
            return
        masters = DeletedTopics()
        _read(masters.read, data)
        ours = self._node.deleted.log_ends()
        self._forget_groups_in({name for name, end in masters.log_ends().items() if ours.get(name) != end})
        self._deleted = masters
        await self._take_deletions()

    async def _take_deletions(self) -> None:
        """Remove what the master deleted before the place that our log has come to."""
        if self._deleted is None:
            return
        node, reached = self._node, self._node.store.dispatched_offset
        before = node.deleted.log_ends()
        fresh = node.deleted.follow(self._deleted, reached=reached)
        if fresh:
            queues = node.store.delete_queues_before(fresh)
            self._forget_groups_in(fresh)
            log.info("removed %d queues of %d topics that the master deleted: %s", queues, len(fresh), some(fresh))
        if not self._deleted.beyond(reached):
            self._deleted = None
        if node.deleted.log_ends() != before:
            await self._saver.save(DELETED_FILE, OFFSETS_FILE)

    def _forget_groups_in(self, topics: Collection[str]) -> None:
        """Where they stood in the deleted queues would skip as many messages of new ones."""
        self._node.offsets.remove_topics(topics)
        for name in topics:
            self._node.held.release_topic(name)

    async def _copy_groups(self, master: str) -> None:
        def request(begin: int, version: str) -> GetAllSubscriptionGroup:
            return GetAllSubscriptionGroup(group_seq=begin, data_version=version, max_group_num=PAGE)

        fresh = GroupTable(now_ms=self._node.now_ms)
        data = await self._pages(
            master,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            "subscriptionGroupTable",
            self._node.groups.version,
            request,
            lambda answer: answer.header(GetAllSubscriptionGroupResponse).total_group_num,
        )
        if await self._is_read(fresh.read, data):
            self._node.groups.take_over(fresh)
            await self._saver.save("subscriptionGroup.json")

    async def _copy_offsets(self, master: str) -> None:
        if OFFSETS_FILE in self._ahead and not self._node.offsets.changes:
            return
        answer = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
        fresh = OffsetTable(now_ms=self._node.now_ms)
        data = await asyncio.to_thread(_object, answer.body)
        if "offsetTable" not in data:
            raise NotCopiedError("the answer has no offsetTable")
        await asyncio.to_thread(_read, fresh.read, data)
        before = dict(self._node.offsets.changes)
        try:
            await self._hand_over(master, fresh)
        finally:
            if self._node.offsets.changes != before:  # else the next start would hand over again, and undo a reset
                await self._saver.save(OFFSETS_FILE)

        async def take() -> None:
            for key, queue_id, offset in self._committed_here(fresh):  # meanwhile, or the master has not taken it yet
                _commit(fresh, key, queue_id, offset)
            await self._save(OFFSETS_FILE, is_changed=self._node.offsets.take_over(fresh))

        await self._take_when_reached(master, OFFSETS_FILE, take)

    def _committed_here(self, fresh: OffsetTable) -> list[tuple[str, int, int]]:
        """Key, queue and offset of what the master lacks; `fresh` is its table."""
        return [
            (key, queue_id, offset)
            for (key, queue_id), offset in self._node.offsets.changes.items()
            if queue_id != REMOVED and offset > (fresh.stored(key, queue_id) or 0)
        ]

    async def _hand_over(self, master: str, fresh: OffsetTable) -> None:
        """Tell the master what was committed here and is ahead of its own; `fresh` is its table, and then ours.

        NotCopiedError when the master does not take it now: the rest waits for the next round.
        """
        changes, taken = self._node.offsets.changes, []
        lacking = self._committed_here(fresh)
        wanted = {(key, queue_id) for key, queue_id, _ in lacking}
        for place in [place for place in changes if place not in wanted]:
            del changes[place]
        for key, queue_id, offset in lacking:
            theirs = fresh.stored(key, queue_id) or 0
            if await self._is_decided(master, key, queue_id, offset, fresh) and changes.get((key, queue_id)) == offset:
                del changes[key, queue_id]
            if fresh.stored(key, queue_id) == offset:
                taken.append(f"{key} queue {queue_id} from {theirs} to {offset}")
        if taken:
            log.info("handed over %d offsets committed at this slave to the master: %s", len(taken), some(taken))
        self._groupless = {
            key: since for key, since in self._groupless.items() if any(key == one for one, _ in changes)
        }

    async def _is_decided(self, master: str, key: str, queue_id: int, offset: int, fresh: OffsetTable) -> bool:
        """Offer one offset; False when its group is to be waited for."""
        topic, _, group = key.partition(SEPARATOR)
        ext = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
        try:
            await self._check_end(master, topic, queue_id, offset)
            await self._ask(master, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        except NotCopiedError as exc:
            now_ms = self._node.monotonic_ms()
            if exc.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                if now_ms - self._groupless.setdefault(key, now_ms) < GROUP_WAIT_MS:
                    return False
            elif exc.code not in _NEVER:
                raise
            log.warning(
                "offset %d of %s, queue %d, committed at this slave, is dropped: %s", offset, key, queue_id, exc
            )
            return True
        _commit(fresh, key, queue_id, offset)
        return True

    async def _check_end(self, master: str, topic: str, queue_id: int, offset: int) -> None:
        """Our log is the beginning of the master's: where its queue is shorter, it is another one by now."""
        place = GetMaxOffset(topic=topic, queue_id=queue_id)
        answer = await self._ask(master, RequestCode.GET_MAX_OFFSET, place)
        end = answer.header(OffsetResponse).offset
        if offset > end:
            raise NotCopiedError(
                f"the queue ends at {end} there, so its topic was deleted and made again",
                ResponseCode.INVALID_PARAMETER,
            )

    async def _copy_delay(self, master: str) -> None:
        if DELAY_FILE in self._ahead:
            return
        answer = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET)

        async def take() -> None:
            is_changed = _read(lambda body: self._delay.follow(body.decode()), answer.body)
            await self._save(DELAY_FILE, is_changed=is_changed)

        await self._take_when_reached(master, DELAY_FILE, take)

    async def _copy_metrics(self, master: str) -> None:
        answer = await self._ask(master, RequestCode.GET_TIMER_METRICS)
        _read(self._timers.follow_metrics, answer.body)

    async def _copy_checkpoint(self, master: str) -> None:
        if _CHECKPOINT in self._ahead:
            return
        began_ms = self._node.monotonic_ms()
        question = GetTimerCheckPoint(clock_version=self._clock_version)
        answer = await self._ask(master, RequestCode.GET_TIMER_CHECK_POINT, question)
        told = answer.header(GetTimerCheckPointResponse)
        self._follow_clock(told, took_ms=self._node.monotonic_ms() - began_ms)
        self._tables_told = told.tables_version or ""

        async def take() -> None:
            _read(self._timers.follow, answer.body)

        await self._take_when_reached(master, _CHECKPOINT, take)

    def _follow_clock(self, told: GetTimerCheckPointResponse, *, took_ms: int) -> None:
        """Read the times of our copies as the master does, which has set its clock perhaps. RocketMQ's says nothing."""
        if told.clock_stretches is not None and told.clock_steady_ms is not None:
            stretches = _read(lambda text: decode(text, type=list[Stretch]), told.clock_stretches)
            now_ms = told.clock_steady_ms + took_ms // 2
            self._node.store.store_clock.follow(stretches, now_ms, error_ms=took_ms)
            self._clock_version = told.clock_version or ""

    async def _take_when_reached(self, master: str, what: str, take: Take) -> None:
        """Take positions of the master, now or when our log has what theirs has by now."""
        _, end = await log_bounds(self._client, master)
        self._ahead[what] = (end, take)
        await self.take_reached()

    async def take_reached(self) -> None:
        """Take the deletions and positions that our log has come up to."""
        await self._take_deletions()
        reached = self._node.store.dispatched_offset
        for what, (end, take) in list(self._ahead.items()):
            if end <= reached and self._ahead.pop(what, None) is not None:
                await take()

    async def _is_read(self, read: Callable[[Json], object], data: Json | None) -> bool:
        """Read a whole table, off the loop; False when the master had nothing new."""
        if data is None:
            return False
        await asyncio.to_thread(_read, read, data)
        return True

    async def _save(self, name: str, *, is_changed: bool) -> None:
        if is_changed:
            await self._saver.save(name)

    # --- asking

    async def _from_master(self, copies: Mapping[str, Copy]) -> bool:
        """Copy one after the other; what the master answers wrongly does not keep the rest from being copied."""
        master = self.master
        if not master:
            return False
        copies = {_HISTORY: self._check_history, "positions": lambda _: self.take_reached(), **copies}
        for what, copy in copies.items():
            try:
                await copy(master)
            except TableSaveError:
                continue  # the saver logged it and tries again; what was copied is in effect
            except (NotCopiedError, UnlikeError, RemoteProtocolError) as exc:
                self._miss(what, f"not copied from {master}: {exc}")
                if what == _HISTORY:
                    return False  # the tables of another log: as good as no master
                continue
            except WireError as exc:
                self._miss(
                    _UNREACHABLE, f"{master} does not answer: {exc}; this slave keeps what it has and asks again"
                )
                return False
            self._over(what)
        self._over(_UNREACHABLE)
        self._over(_UNKNOWN)
        return True

    async def _check_history(self, master: str) -> None:
        """A master that came back without its log has lost its tables too: ours are the better ones then."""
        await check_history(self._client, self._node.store, master)

    async def _ask(self, master: str, code: RequestCode, ext: Fields | None = None) -> Command:
        answer = await self._client.invoke(master, code, ext, b"", ASK_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise NotCopiedError(f"{code.name} was answered {answer.code}: {answer.remark or 'no reason'}", answer.code)
        return answer

    async def _pages(
        self,
        master: str,
        code: RequestCode,
        name: str,
        own: DataVersion,
        request: Callable[[int, str], Fields],
        total: Callable[[Command], int | None],
    ) -> Json | None:
        """The whole table `name` of the answers, page by page; None when it has our own version.

        A table that changes on the way is begun again. A master without pages (before 5.3.4) gives no total, and all.
        """
        whole: Json = {}
        entries: dict[str, object] = {}
        for _ in range(PAGES_MAX):
            version = whole.get("dataVersion")
            text = "" if version is None else encode_body(version).decode()
            answer = await self._ask(master, code, request(len(entries), text))
            page = await asyncio.to_thread(_object, answer.body)
            if _parts(page.get("dataVersion")) == own.parts and self._copied_from.get(code) == master:
                return None
            if version is not None and page.get("dataVersion") != version:
                whole, entries = {}, {}
                continue
            found, count = page.get(name), total(answer)
            if not isinstance(found, dict):
                raise NotCopiedError(f"the answer has no {name}")
            entries |= found
            whole = _merged(whole, page) | {name: entries}
            if count is None or len(entries) >= count:
                self._copied_from[code] = master
                return whole
            if not found:
                raise NotCopiedError(f"{len(entries)} of {count} entries of {name} were sent, and then none")
        raise NotCopiedError(f"{name} changes faster than {PAGES_MAX} pages of {PAGE} entries are sent")

    # --- what is wrong

    def _miss_master(self, why: str) -> None:
        name = self._node.config.broker_name
        self._miss(
            _UNKNOWN,
            f"not known: {why}; start the master of {name} (brokerId=0), or start this broker as one "
            "(brokerRole=ASYNC_MASTER, brokerId=0): until then it keeps what it has",
        )

    def _miss(self, what: str, why: str) -> None:
        fault = self._faults.get(what)
        if fault is None:
            text = f"slave {self._node.config.broker_name}: {what}"
            fault = self._faults[what] = LastingFault(log, text, level=logging.WARNING)
        fault.goes_on(why)

    def _over(self, what: str) -> None:
        if what in self._faults:
            self._faults[what].is_over(f"well again, with {self.master}")


def _commit(table: OffsetTable, key: str, queue_id: int, offset: int) -> None:
    topic, _, group = key.partition(SEPARATOR)
    table.commit(group, topic, queue_id, offset)


def _object(body: bytes) -> Json:
    data = loads_fastjson(body, is_trusted=True)
    if not isinstance(data, dict):
        raise NotCopiedError(f"the answer is a {type(data).__name__}, not an object")
    return data


def _read(read: Callable[[D], T], data: D) -> T:
    """Have a table read what a master sent; whatever is wrong with it has one name from here on."""
    try:
        return read(data)
    except (ValueError, KeyError, TypeError, AttributeError, TopicError, GroupError) as exc:
        raise NotCopiedError(f"the answer cannot be read: {type(exc).__name__}: {exc}") from exc


def _parts(version: object) -> tuple[int, int, int] | None:
    if not isinstance(version, dict):
        return None
    read = DataVersion(timestamp=0)
    _read(read.read, version)
    return read.parts


def _merged(whole: Json, page: Json) -> Json:
    """What comes with every page (forbiddenTable), joined."""
    joined = dict(whole)
    for key, value in page.items():
        before = joined.get(key)
        joined[key] = before | value if isinstance(before, dict) and isinstance(value, dict) else value
    return joined
