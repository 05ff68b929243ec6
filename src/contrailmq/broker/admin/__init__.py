"""Administration: what mqadmin, the dashboard and other brokers ask for."""

from contrailmq.broker.admin.clients import ClientAdmin
from contrailmq.broker.admin.groups import GroupAdmin
from contrailmq.broker.admin.offsets import OffsetAdmin
from contrailmq.broker.admin.progress import ProgressAdmin
from contrailmq.broker.admin.runtime import RuntimeAdmin
from contrailmq.broker.admin.topics import TopicAdmin

__all__ = ["ClientAdmin", "GroupAdmin", "OffsetAdmin", "ProgressAdmin", "RuntimeAdmin", "TopicAdmin"]
