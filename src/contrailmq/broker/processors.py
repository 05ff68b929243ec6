"""What answers clients and administrators, and what acts by time, wired to one node.

A server and a broker without sockets are wired here alike, so no test runs a broker that is put together differently.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from contrailmq.broker.admin import ClientAdmin, GroupAdmin, OffsetAdmin, ProgressAdmin, RuntimeAdmin, TopicAdmin
from contrailmq.broker.adoption import Adoption
from contrailmq.broker.delayed.delay import DelayService
from contrailmq.broker.delayed.timers import TimerService
from contrailmq.broker.handlers import Handlers
from contrailmq.broker.lite.service import LiteService
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.assignment import Assignment
from contrailmq.broker.pop.service import PopService
from contrailmq.broker.requests.consumer_offsets import OffsetProcessor
from contrailmq.broker.requests.members import MemberProcessor
from contrailmq.broker.requests.pull import PullProcessor
from contrailmq.broker.requests.query import QueryProcessor
from contrailmq.broker.requests.reply import ReplyProcessor
from contrailmq.broker.requests.retry import RetryProcessor
from contrailmq.broker.requests.send import SendProcessor
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.broker.transactions.half_batches import HalfBatches
from contrailmq.broker.transactions.halves import METRICS_FILE, TransactionService


class Processors:
    """`tables` writes tables, `readers` read what is not in memory; `configured` is called after settings have changed.

    The services of POP, lite topics, transactions, delay levels and timers take requests from now on, and rewrite
    messages. Nothing is due before their owner starts them (`services`).
    """

    def __init__(
        self,
        node: BrokerNode,
        handlers: Handlers,
        saver: TableSaver,
        *,
        tables: Executor,
        readers: Executor,
        configured: Callable[[], None],
    ) -> None:
        handlers.latencies = node.latencies
        self.adoption = Adoption(node)
        for name in self.adoption.at_opening():
            saver.mark_soon(name)
        node.on_new_queues = self.adoption.at_delivery
        self.send = SendProcessor(node)
        self.pull = PullProcessor(node, readers)
        self.members = MemberProcessor(node)
        self.runtime = RuntimeAdmin(node, saver, configured=self._configured)
        self._told = configured
        self.transactions = TransactionService(node, tables, saver.mark_soon)
        saver.add(METRICS_FILE, lambda: _fixed(self.transactions.metrics.to_json()))
        self.delay = DelayService(node, tables, readers)
        self.timers = TimerService(node, tables, readers)
        self.pop = PopService(node, saver, readers)
        self.lite = LiteService(node, saver, readers, self.pop)
        self.members.on_left = self.pop.waiters.left
        self.assignment = Assignment(node, saver)
        self.pop.log.timer_behind_ms = self.timers.behind_ms
        # POP first: it looks at how far the timer had come, before that goes on.
        self.services = (self.pop, self.transactions, self.delay, self.timers, self.lite)
        for processor in (
            self.send,
            ReplyProcessor(node, self.send),
            self.pull,
            self.members,
            OffsetProcessor(node, saver, self.pop),
            RetryProcessor(node),
            QueryProcessor(node, readers),
            TopicAdmin(node, saver),
            GroupAdmin(node, saver),
            ProgressAdmin(node),
            OffsetAdmin(node, saver, self.pop.set_by_hand),
            ClientAdmin(node),
            self.runtime,
            HalfBatches(node, self.send, self.transactions),
            self.assignment,
            *self.services,
        ):
            processor.register(handlers)
        node.rewrites += (self.lite.rewrite, self.transactions.rewrite, self.delay.rewrite, self.timers.rewrite)
        self.runtime.figures += (
            service.figures for service in (self.delay, self.timers, self.transactions, self.pop, self.lite)
        )

    def _configured(self) -> None:
        self.send.configure()  # some settings are part of every answer
        self._told()


def _fixed(text: str) -> Callable[[], str]:
    return lambda: text
