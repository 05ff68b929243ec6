"""The NameServer: which brokers are alive and which topics they serve.

Reading order: `routes` (the tables, pure), `registration` (the body of REGISTER_BROKER), `kv_config`, `config`,
`server`. NameServers share nothing: brokers register with each of them, clients ask any of them.
"""

from contrailmq.namesrv.config import NamesrvConfig
from contrailmq.namesrv.server import NameServer

__all__ = ["NameServer", "NamesrvConfig"]
