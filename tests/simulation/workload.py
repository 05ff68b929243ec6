"""The clients of a trial: three producers and three processes of consumers, on our own asyncio clients, unchanged.

p0 sends single messages, batches (to a topic of batches too), delayed ones (levels) and timers, some of which it takes
back. p1 sends by key, and is the operator: it makes the topics, gives them more queues, makes and deletes others, some
of them twice, and sets groups back. t0 sends in transactions whose outcome stands in `History.decided`, as it would in
a database. c0 and c1 share the group of concurrent listeners, c1 has the orderly one besides, c2 reads by lite pull and
commits by itself. Where the plan says so, c0 and c2 consume by POP besides, message by message and FIFO (`popping.py`).
Any of them may be killed and started again.

Producers send in the bursts of the plan and wait for the next one in its rests. Some of p0's messages go out together,
before the first of them is answered, and some listeners and readers take seconds: what is stored or committed too
early is seen meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from contrailmq import aio
from contrailmq.client.admin.admin_groups import OffsetPlace
from contrailmq.client.results import (
    ConsumeFromWhere,
    ConsumeResult,
    SendResult,
    SendStatus,
    TransactionState,
)
from contrailmq.message import (
    ContrailError,
    Message,
    MessageQueue,
    Property,
    StoredMessage,
    create_unique_id,
    parse_offset_message_id,
)
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from simulation.checker import RETRIES_MAX
from simulation.cluster import Cluster
from simulation.faults import Plan
from simulation.history import (
    BUNDLED,
    DEALS,
    KEEPERS,
    LATER,
    LINERS,
    ORDERED,
    ORDERED_TAG,
    PASSING,
    PLAIN,
    POP_TRIES_MAX,
    POPPED,
    POPPERS,
    READERS,
    SUBSCRIBED,
    TOPICS,
    WORKERS,
    Acknowledged,
    Delivery,
    History,
    Kind,
    MovedBack,
    Place,
    Queue,
    Sent,
)
from simulation.nodes import Node
from simulation.popping import PopConsumer

SIZES: Final = (0, 10, 200, 3000, 7000)
LEVELS_S: Final = {1: 1.0, 2: 2.0, 3: 4.0, 4: 7.0}  # of cluster.SHORT_WAITS
QUEUES: Final = {PLAIN: 2, ORDERED: 2, LATER: 2, DEALS: 2, BUNDLED: 1}  # on each broker, at first
ATTRIBUTES: Final = {BUNDLED: {"queue.type": "BatchCQ"}}
QUEUES_MAX: Final = 4
START_AGAIN_S: Final = 2.0
SLOW_ODDS: Final = 0.04  # that a listener takes seconds: an offset that runs ahead of it is seen meanwhile
FAIL_ODDS, FAIL_ODDS_OF_CLUMSY = 0.03, 0.5  # of the workers
FAIL_ODDS_OF_KEEPERS: Final = 0.1  # their queue then rests, and goes on with the same message
SLOW_READER_ODDS: Final = 0.1
SLOW_S: Final = (2.0, 8.0)
VOLLEY: Final = (3, 9)  # how many messages go out together
VOLLEY_CHOICE: Final = 0.4  # the dice that says so
TIMER_CHOICE: Final = 0.9
RECALL_ODDS: Final = 0.3  # that a timer is taken back
HURRIED_S: Final = 0.01
KEYS: Final = 5
FLAGS: Final = 10  # of users, 0 included
LINE_TRIES_MAX: Final = 1000  # of the FIFO group: answers get lost, and nothing is to be passed over
# Names that look like RocketMQ's own to whoever searches for them carelessly.
LOOK_ALIKES: Final = ({"AWAIT": "false"}, {"note": "WAIT false"}, {"MY_DELAY": "3"}, {"XTAGS": "blue"}, {})


C = TypeVar("C", aio.PushConsumer, aio.LitePullConsumer)


class Workload:
    """Starts and starts again the clients of one trial. `is_on` is False when no more is to be sent."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        plan: Plan,
        witness: Callable[[Sent, Acknowledged], None] = lambda _sent, _acknowledged: None,
    ) -> None:
        """`witness` is called with each acknowledgement."""
        self._witness = witness
        self._cluster, self.history, self._plan, self._pace = cluster, history, plan, plan.pace
        self.is_on = True
        self.is_hurried = False  # p0 sends many at once, without a pause: a log file is to be full soon
        self.is_fickle = False  # p0 sends timers and takes all of them back
        self.is_clumsy = False  # the workers fail often
        self._has_topics = False
        self._groups: set[str] = set()
        self._numbers: Counter[str] = Counter()
        self._popping: list[asyncio.Task[None]] = []
        self.mains = {
            "p0": self._send_mixed,
            "p1": self._send_ordered,
            "t0": self._send_deals,
            "c0": self._work,
            "c1": self._work_and_keep,
            "c2": self._read,
        }

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.mains)

    def start(self, name: str) -> Node:
        """Start a client, or start it again."""
        host = self._cluster.host(name)
        if not host.is_up:
            host.come_up()
        return self._cluster.start_client(name, self.mains[name])

    # --- producers

    async def _send_mixed(self, node: Node) -> None:
        chance = self._chance(node)
        async with aio.Producer("producers", namesrv=self._cluster.namesrv) as producer:
            await self._wait_for_topics()
            while await self._may_send(node):
                choice = VOLLEY_CHOICE if self.is_hurried else TIMER_CHOICE if self.is_fickle else chance.random()
                if choice < VOLLEY_CHOICE:
                    await self._send_one(node, producer, self._new(node, chance, PLAIN, Kind.SINGLE))
                elif choice < 0.5:
                    volley = [self._new(node, chance, PLAIN, Kind.SINGLE) for _ in range(chance.randrange(*VOLLEY))]
                    await asyncio.gather(*(self._send_one(node, producer, message) for message in volley))
                elif choice < 0.65:
                    topic, count = chance.choice((PLAIN, BUNDLED)), chance.randrange(2, 6)
                    await self._send_batch(
                        node, producer, [self._new(node, chance, topic, Kind.BATCH) for _ in range(count)]
                    )
                elif choice < 0.85:
                    level = chance.choice(tuple(LEVELS_S))
                    message = self._new(node, chance, LATER, Kind.LEVEL, LEVELS_S[level], delay_level=level)
                    await self._send_one(node, producer, message)
                else:
                    delay_s = chance.choice((1.0, 2.3, 6.0, 12.0))
                    message = self._new(node, chance, LATER, Kind.TIMER, delay_s, delay=delay_s)
                    result = await self._send_one(node, producer, message)
                    takes_back = self.is_fickle or chance.random() < RECALL_ODDS
                    if result is not None and result.recall_handle and takes_back:
                        await asyncio.sleep(chance.expovariate(5.0))
                        await self._recall(node, producer, message, result)
                await asyncio.sleep(HURRIED_S if self.is_hurried else chance.expovariate(1.5 * self._pace))
            await asyncio.Event().wait()

    async def _send_ordered(self, node: Node) -> None:
        chance = self._chance(node)

        def choose(queues: list[MessageQueue], message: Message, key: object) -> MessageQueue:
            return sorted(queues)[hash(key) % len(queues)]

        async with (
            aio.Producer("ordered-producers", namesrv=self._cluster.namesrv) as producer,
            aio.Admin(namesrv=self._cluster.namesrv) as admin,
        ):
            await self._make_topics(admin)
            while await self._may_send(node):
                key = chance.randrange(KEYS)
                message = self._new(node, chance, ORDERED, Kind.ORDERED, line=(node.name, str(key)))
                try:
                    result = await producer.send(message, selector=choose, arg=key)
                    self._acknowledge(node, message.body, result, 0)
                except ContrailError as exc:
                    self._refuse(message.body, exc)
                if chance.random() < 0.02:
                    await self._operate(node, admin, producer, chance)
                await asyncio.sleep(chance.expovariate(1.5 * self._pace))
            await asyncio.Event().wait()

    async def _send_deals(self, node: Node) -> None:
        chance, decided = self._chance(node), self.history.decided

        stored_s: dict[bytes, float] = {}

        async def execute(message: Message, _argument: object) -> TransactionState:
            stored_s[message.body] = node.world.now_s
            await asyncio.sleep(chance.expovariate(20.0))
            committed = decided.setdefault(message.body, chance.random() < 0.6)
            if chance.random() < 0.25:
                return TransactionState.UNKNOWN
            return TransactionState.COMMIT if committed else TransactionState.ROLLBACK

        async def check(message: StoredMessage) -> TransactionState:
            if chance.random() < 0.1:
                return TransactionState.UNKNOWN
            committed = decided.setdefault(message.body, False)  # nobody knows of it, so it did not happen
            return TransactionState.COMMIT if committed else TransactionState.ROLLBACK

        async with aio.TransactionProducer(
            "dealers", execute=execute, check=check, namesrv=self._cluster.namesrv
        ) as producer:
            await self._wait_for_topics()
            while await self._may_send(node):
                message = self._new(node, chance, DEALS, Kind.HALF)
                try:
                    result = await producer.send_in_transaction(message)
                    self._acknowledge(node, message.body, result.send_result, 0, at_s=stored_s.get(message.body))
                except ContrailError as exc:
                    self._refuse(message.body, exc)
                await asyncio.sleep(chance.expovariate(0.7 * self._pace))
            await asyncio.Event().wait()

    async def _may_send(self, node: Node) -> bool:
        """Wait for the next burst; False when there is none."""
        while self.is_on:
            burst = self._plan.next_burst(node.world.now_s)
            if burst is None:
                break
            if burst[0] <= node.world.now_s:
                return True
            await asyncio.sleep(burst[0] - node.world.now_s + 0.001)
        return False

    async def _send_one(self, node: Node, producer: aio.Producer, message: Message) -> SendResult | None:
        try:
            result = await producer.send(message)
        except ContrailError as exc:
            self._refuse(message.body, exc)
            return None
        self._acknowledge(node, message.body, result, 0)
        return result

    async def _recall(self, node: Node, producer: aio.Producer, message: Message, result: SendResult) -> None:
        self.history.to_recall.add(message.body)
        try:
            await producer.recall(message.topic, result.recall_handle or "")
            self.history.recalled[message.body] = node.world.now_s
            self.history.recalls[result.queue.broker_name] += 1
        except ContrailError as exc:
            node.world.note(f"recall: {type(exc).__name__}")

    async def _send_batch(self, node: Node, producer: aio.Producer, messages: list[Message]) -> None:
        try:
            if messages[0].topic == BUNDLED:  # with an id of its own, as Java's producers send it, it is one record
                packed = producer.pack(messages)
                packed.properties[Property.UNIQUE_KEY] = create_unique_id()
                result = await producer._send(producer._running(), packed, messages, None, None)
            else:
                result = await producer.send_batch(messages)
        except ContrailError as exc:
            for message in messages:
                self._refuse(message.body, exc)
            return
        for number, message in enumerate(messages):
            self._acknowledge(node, message.body, result, number)

    def _new(
        self,
        node: Node,
        chance: random.Random,
        topic: str,
        kind: Kind,
        delay_s: float = 0.0,
        *,
        line: tuple[str, ...] = (),
        **later: float,
    ) -> Message:
        number = self._numbers[node.name] = self._numbers[node.name] + 1
        body = f"{node.name} {number} ".encode() + bytes([chance.randrange(32, 127)]) * chance.choice(SIZES)
        tag = ORDERED_TAG if number % 2 == 0 else "odd"
        properties = {"number": str(number), "from": node.name, **chance.choice(LOOK_ALIKES)}
        flag = number % FLAGS
        message = Message(topic, body, tags=tag, keys=[f"k{number % 50}"], properties=properties, flag=flag, **later)  # type: ignore[arg-type]
        expected = {**properties, Property.TAGS: tag, Property.KEYS: f"k{number % 50}"}
        is_poison = kind is Kind.SINGLE and topic == PLAIN and chance.random() < 0.05
        self.history.sent[body] = Sent(topic, kind, expected, node.world.now_s, delay_s, line, is_poison, flag)
        return message

    def _refuse(self, body: bytes, cause: ContrailError) -> None:
        """Without the directory that this run has for its disks: no other run has the same."""
        self.history.refused[body] = str(cause).replace(str(self._cluster.path), "")

    def _acknowledge(
        self, node: Node, body: bytes, result: SendResult, number: int, *, at_s: float | None = None
    ) -> None:
        """`at_s` is when the broker's answer came, if that was earlier: of a half message, before it was decided."""
        if result.status is not SendStatus.OK:
            self.history.refused[body] = result.status.value
            return
        ids = result.offset_message_id.split(",")
        physical_offset = parse_offset_message_id(ids[min(number, len(ids) - 1)])[2]
        unique_ids, queue = result.message_id.split(","), Queue(*result.queue)
        if number < len(unique_ids) and queue.topic != BUNDLED:  # there the whole record has an id
            self.history.ids[body] = unique_ids[number]
        place = Place(queue, result.queue_offset + number)
        self.history.acknowledge(body, place, physical_offset, node.world.now_s if at_s is None else at_s)
        self._witness(self.history.sent[body], self.history.acknowledged[body])

    # --- the operator

    async def _make_topics(self, admin: aio.Admin) -> None:
        for topic in TOPICS:
            while True:
                try:
                    if len(await admin.masters()) == len(self._cluster.broker_names):
                        if await admin.topic_holders(topic) == {}:
                            await admin.create_topic(topic, queues=QUEUES[topic], attributes=ATTRIBUTES.get(topic))
                        break
                except ContrailError:
                    pass
                await asyncio.sleep(1.0)
        for group, tries in ((POPPERS, POP_TRIES_MAX), (LINERS, LINE_TRIES_MAX)) if self._plan.pops else ():
            await self._make_group(admin, SubscriptionGroupConfig(group_name=group, retry_max_times=tries))
        self._has_topics = True

    async def _make_group(self, admin: aio.Admin, config: SubscriptionGroupConfig) -> None:
        while config.group_name not in self._groups:
            try:
                await admin.create_group(config)
                self._groups.add(config.group_name)
            except ContrailError:
                await asyncio.sleep(1.0)

    async def _wait_for_topics(self) -> None:
        """Nobody sends before: brokers would make topics by themselves, with other numbers of queues."""
        while not self._has_topics:  # noqa: ASYNC110  another process sets it, on another loop
            await asyncio.sleep(0.5)

    async def _operate(self, node: Node, admin: aio.Admin, producer: aio.Producer, chance: random.Random) -> None:
        choice = chance.randrange(3)
        try:
            if choice == 0:
                group = chance.choice((WORKERS, KEEPERS, READERS))
                topic = chance.choice(tuple(SUBSCRIBED[group]))
                self.history.resets += 1
                began_s, is_known = node.world.now_s, await admin.consumers(group) is not None
                await admin.reset_offsets(group, topic, OffsetPlace.EARLIEST)
                if is_known:
                    self.history.moved_back.append(MovedBack(group, topic, began_s))
            elif choice == 1:
                topic = chance.choice((PLAIN, LATER))
                holders = await admin.topic_holders(topic)
                most = max(config.read_queue_nums for config in holders.values())
                if most < QUEUES_MAX:
                    await admin.update_topic(topic, read_queues=most + 1, write_queues=most + 1)
            else:
                await self._make_and_delete(node, admin, producer, chance)
        except ContrailError as exc:
            node.world.note(f"operator: {type(exc).__name__}")

    async def _make_and_delete(
        self, node: Node, admin: aio.Admin, producer: aio.Producer, chance: random.Random
    ) -> None:
        number = self._numbers["topics"] = self._numbers["topics"] + 1
        topic = f"{PASSING}{number}"
        await admin.create_topic(topic, queues=1)
        for _ in range(5):
            await self._send_one(node, producer, self._new(node, chance, topic, Kind.SINGLE))
        if chance.random() < 0.6:
            self.history.deleted.add(topic)
            await admin.delete_topic(topic)
            if chance.random() < 0.5:
                await admin.create_topic(topic, queues=2)
                message = self._new(node, chance, topic, Kind.SINGLE)
                self.history.first_again.add(message.body)
                await self._send_one(node, producer, message)

    # --- consumers

    async def _work(self, node: Node) -> None:
        self._pop(node)
        await self._push(node, WORKERS)
        await asyncio.Event().wait()

    async def _work_and_keep(self, node: Node) -> None:
        await self._push(node, WORKERS)
        await self._push(node, KEEPERS)
        await asyncio.Event().wait()

    def _pop(self, node: Node) -> None:
        for group, topics in POPPED.items() if self._plan.pops else ():
            for topic in topics:
                consumer = PopConsumer(
                    node,
                    group,
                    topic,
                    namesrv=self._cluster.namesrv,
                    history=self.history,
                    chance=random.Random(f"{group} {topic} {node.name} {node.process_id} of {self._plan.seed}"),
                    may_fail=lambda: self.is_on,
                )
                self._popping.append(asyncio.get_running_loop().create_task(self._pop_when_ready(consumer)))

    async def _pop_when_ready(self, consumer: PopConsumer) -> None:
        await self._wait_for_topics()
        await consumer.run()

    async def _push(self, node: Node, group: str) -> None:
        chance, history = self._chance(node), self.history
        is_orderly = group == KEEPERS
        member = f"{node.name}-{node.process_id}"

        async def hear(messages: list[StoredMessage]) -> ConsumeResult:
            is_slow = chance.random() < SLOW_ODDS
            await asyncio.sleep(chance.uniform(*SLOW_S) if is_slow else chance.expovariate(50.0))
            is_success = True
            for one in messages:
                sent = history.sent.get(one.body)
                is_poison = sent is not None and sent.is_poison
                of_workers = FAIL_ODDS_OF_CLUMSY if self.is_clumsy else FAIL_ODDS
                fails = FAIL_ODDS_OF_KEEPERS if is_orderly else of_workers
                is_success &= not is_poison and chance.random() > fails
            for one in messages:
                self._heard(node, group, member, one, is_success=is_success)
            return ConsumeResult.SUCCESS if is_success else ConsumeResult.RETRY

        def make() -> aio.PushConsumer:
            consumer = aio.PushConsumer(
                group,
                namesrv=self._cluster.namesrv,
                orderly=is_orderly,
                from_where=ConsumeFromWhere.FIRST_OFFSET,
                max_reconsume_times=-1 if is_orderly else RETRIES_MAX,
                rebalance_interval_s=self._plan.rebalance_s,
                persist_offsets_interval_s=self._plan.rebalance_s,
                pull_batch_size=self._plan.page,
                heartbeat_interval_s=2 * self._plan.rebalance_s,
                poll_namesrv_interval_s=2 * self._plan.rebalance_s,
            )
            for topic, tag in SUBSCRIBED[group].items():
                consumer.subscribe(topic, tag or "*")
            consumer.listen(hear)
            return consumer

        await _started(make)

    async def _read(self, node: Node) -> None:
        chance, member = self._chance(node), f"{node.name}-{node.process_id}"
        self._pop(node)

        def make() -> aio.LitePullConsumer:
            first = ConsumeFromWhere.FIRST_OFFSET
            consumer = aio.LitePullConsumer(
                READERS,
                namesrv=self._cluster.namesrv,
                auto_commit=False,
                from_where=first,
                rebalance_interval_s=self._plan.rebalance_s,
                persist_offsets_interval_s=self._plan.rebalance_s,
                pull_batch_size=self._plan.page,
                heartbeat_interval_s=2 * self._plan.rebalance_s,
                poll_namesrv_interval_s=2 * self._plan.rebalance_s,
            )
            for topic in SUBSCRIBED[READERS]:
                consumer.subscribe(topic)
            return consumer

        consumer = await _started(make)
        while True:
            messages = await consumer.poll(5.0)
            for message in messages:
                self._heard(node, READERS, member, message)
            is_slow = bool(messages) and chance.random() < SLOW_READER_ODDS
            if is_slow:
                await asyncio.sleep(chance.uniform(*SLOW_S))
            if is_slow or chance.random() < 0.3:
                try:
                    await consumer.commit()
                except ContrailError as exc:
                    node.world.note(f"commit: {type(exc).__name__}")
            if is_slow:
                await asyncio.sleep(chance.uniform(*SLOW_S))

    def _heard(self, node: Node, group: str, member: str, message: StoredMessage, *, is_success: bool = True) -> None:
        place = None
        if group == KEEPERS or not message.reconsume_times:  # what keepers fail on stays in its queue
            place = Place(Queue(message.topic, message.broker_name, message.queue_id), message.queue_offset)  # type: ignore[attr-defined]
        if group == WORKERS and not is_success and message.reconsume_times >= RETRIES_MAX:
            self.history.exhausted.add(message.body)
        properties, told = dict(message.properties), (message.topic, message.flag, message.reconsume_times)
        self.history.deliver(
            Delivery(node.world.now_s, group, member, message.body, properties, place, *told, is_success)
        )

    def _chance(self, node: Node) -> random.Random:
        return random.Random(f"{node.name} {node.process_id} of {self._plan.seed}")


async def _started(make: Callable[[], C]) -> C:
    """A consumer that runs; as a supervisor would, until a NameServer and a broker answer."""
    while True:
        consumer = make()
        try:
            await consumer.start()
            return consumer
        except ContrailError:
            await asyncio.sleep(START_AGAIN_S)
