"""What a broker measures: its instruments, where their figures come from, and whether it is fit to be asked."""

from __future__ import annotations

from contrailmq.broker.metrics.figures import BrokerFigures
from contrailmq.broker.metrics.health import live_reasons, ready_reasons

__all__ = ["BrokerFigures", "live_reasons", "ready_reasons"]
