"""The broker: RocketMQ's remoting protocol over a message store. Tables first, processors on top of them."""

from contrailmq.broker.advertise import advertised_address
from contrailmq.broker.config import BrokerConfig, BrokerConfigError
from contrailmq.broker.connections import ClientTable
from contrailmq.broker.groups import GroupTable
from contrailmq.broker.long_polling import HeldPulls
from contrailmq.broker.offsets import OffsetTable
from contrailmq.broker.order_locks import OrderLocks
from contrailmq.broker.statistics import Statistics
from contrailmq.broker.topics import TopicTable

__all__ = [
    "BrokerConfig",
    "BrokerConfigError",
    "ClientTable",
    "GroupTable",
    "HeldPulls",
    "OffsetTable",
    "OrderLocks",
    "Statistics",
    "TopicTable",
    "advertised_address",
]
