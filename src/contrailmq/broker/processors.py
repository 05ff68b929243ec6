"""What answers clients and administrators, wired to one node: for a server and for a broker without sockets alike."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from contrailmq.broker.admin import ClientAdmin, GroupAdmin, OffsetAdmin, ProgressAdmin, RuntimeAdmin, TopicAdmin
from contrailmq.broker.handlers import Handlers
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.requests.consumer_offsets import OffsetProcessor
from contrailmq.broker.requests.members import MemberProcessor
from contrailmq.broker.requests.pull import PullProcessor
from contrailmq.broker.requests.query import QueryProcessor
from contrailmq.broker.requests.reply import ReplyProcessor
from contrailmq.broker.requests.retry import RetryProcessor
from contrailmq.broker.requests.send import SendProcessor
from contrailmq.broker.state.persistence import TableSaver


class Processors:
    """`readers` read what is not in memory; `configured` is called after settings have changed."""

    def __init__(
        self, node: BrokerNode, saver: TableSaver, readers: ThreadPoolExecutor, *, configured: Callable[[], None]
    ) -> None:
        self.send = SendProcessor(node)
        self.pull = PullProcessor(node, readers)
        self.members = MemberProcessor(node)
        self.runtime = RuntimeAdmin(node, saver, configured=self._configured)
        self._told = configured
        self._all = (
            self.send,
            ReplyProcessor(node, self.send),
            self.pull,
            self.members,
            OffsetProcessor(node),
            RetryProcessor(node),
            QueryProcessor(node, readers),
            TopicAdmin(node, saver),
            GroupAdmin(node, saver),
            ProgressAdmin(node),
            OffsetAdmin(node, saver),
            ClientAdmin(node),
            self.runtime,
        )

    def _configured(self) -> None:
        self.send.configure()  # some settings are part of every answer
        self._told()

    def register(self, handlers: Handlers) -> None:
        for processor in self._all:
            processor.register(handlers)
