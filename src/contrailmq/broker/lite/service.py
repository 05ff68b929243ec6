"""Lite topics put together, and what acts by time: batches that are due again, pops whose time is over, clients that
are silent, lite topics that expire. Only a master hands out messages."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Final

from contrailmq.broker.handlers import Handlers
from contrailmq.broker.lite.acking import LiteAcking
from contrailmq.broker.lite.admin import LiteAdmin
from contrailmq.broker.lite.expiring import LiteExpiring
from contrailmq.broker.lite.popping import LitePopping
from contrailmq.broker.lite.registry import Registry
from contrailmq.broker.lite.sending import LiteSending
from contrailmq.broker.lite.subscribing import LiteSubscribing
from contrailmq.broker.lite.telling import Telling
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.checks import Checks
from contrailmq.broker.pop.service import PopService
from contrailmq.broker.pop.waiting import Waiters
from contrailmq.broker.state.duty import Duty
from contrailmq.broker.state.persistence import TableSaver

BUSY_MS: Final = 20
IDLE_MS: Final = 100
CLOSED_MS: Final = 1000  # how often connections that are gone are looked for


class LiteService:
    name = "lite topics"

    def __init__(self, node: BrokerNode, saver: TableSaver, readers: Executor, pop: PopService) -> None:
        self._node = node
        self._orders = pop.orders
        self.registry = Registry()
        self.waiters = Waiters(wakes_newest=False)
        self.telling = Telling(node, self.registry, pop.orders, pop.positions, self.waiters)
        self.popping = LitePopping(
            node,
            readers,
            checks=Checks(node),
            registry=self.registry,
            orders=pop.orders,
            positions=pop.positions,
            telling=self.telling,
            waiters=self.waiters,
        )
        self.subscribing = LiteSubscribing(node, self.registry, pop.orders, self.telling)
        self.expiring = LiteExpiring(node, self.registry, saver.mark_soon)
        self._admin = LiteAdmin(node, self.registry, pop.orders, self.telling)
        acking = LiteAcking(node, pop.orders, self.telling)
        pop.acking.ack_lite, pop.acking.change_lite = acking.ack, acking.change
        self.rewrite = LiteSending(node).rewrite
        self.interval_ms = IDLE_MS
        self._is_running = False
        self._closed_ms = self._silent_ms = 0

    def register(self, handlers: Handlers) -> None:
        for part in (self.popping, self.subscribing, self._admin):
            part.register(handlers)

    def start(self) -> None:
        node = self._node
        if node.duty is not Duty.DELIVER or node.is_slave:
            return
        self._is_running = True
        self.telling.load()
        self._silent_ms = node.monotonic_ms() + node.config.lite_subscription_check_interval

    def stop(self) -> None:
        self._is_running = False

    def release_all(self) -> None:
        """Wake everything: the broker is going away."""
        self.waiters.release()

    def tick(self, now_ms: int) -> None:
        if not self._is_running:
            return
        node, config = self._node, self._node.config
        self.waiters.total_max, self.waiters.key_max = config.max_pop_polling_size, config.pop_polling_size
        monotonic_ms = node.monotonic_ms()
        self.telling.tick(node.store.store_clock.steady_ms())
        self.waiters.expire(monotonic_ms)
        if monotonic_ms >= self._closed_ms:
            self._closed_ms = monotonic_ms + CLOSED_MS
            self.waiters.forget_closed()
            self.popping.forget_closed()
        if monotonic_ms >= self._silent_ms:
            self._silent_ms = monotonic_ms + config.lite_subscription_check_interval
            self.subscribing.expire()
        self.expiring.tick()
        self.interval_ms = BUSY_MS if self.telling.waits or len(self.waiters) else IDLE_MS

    def figures(self) -> dict[str, str]:
        """Lines for GET_BROKER_RUNTIME_INFO."""
        return {
            "liteClients": str(len(self.registry.clients)),
            "liteSubscriptions": str(self.registry.count),
            "liteWaiting": str(len(self.waiters)),
        }
