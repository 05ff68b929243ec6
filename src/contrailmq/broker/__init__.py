"""The broker: RocketMQ's remoting protocol over a message store.

Reading order: `config`, the tables (`topics`, `groups`, `offsets`, `connections`, `order_locks`, `long_polling`),
`node` (what the processors share), `handlers`, the processors (`send`, `pull`, `retry`, `members`, `admin/`), then
`server`.
"""

from contrailmq.broker.config import BrokerConfig, BrokerConfigError
from contrailmq.broker.server import BrokerServer

__all__ = ["BrokerConfig", "BrokerConfigError", "BrokerServer"]
