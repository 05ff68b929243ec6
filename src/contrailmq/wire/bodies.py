"""JSON bodies of producers, consumers, NameServers and registration. Those of tools: `admin_bodies`.

Decode with `decode_body(data, Kind)`, write with `encode_body(value)`; both are `fastjson`'s. Readers accept any order,
missing members and more of them; writers give what Java's and Go's parsers take: no white space, Java's order.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.fastjson import (
    Body,
    MessageQueueBody,
    bare_keys,
    decode_body,
    encode_body,
    loads_fastjson,
    new_dict,
    new_list,
    queue_table,
    written,
)

__all__ = [
    "Body",
    "BrokerData",
    "BrokerMemberGroup",
    "BrokerMemberGroupBody",
    "CheckClientBody",
    "ClusterInfo",
    "ConsumerData",
    "ConsumerList",
    "DataVersion",
    "HeartbeatData",
    "KVTable",
    "LockBatchBody",
    "LockedQueues",
    "MessageQueueBody",
    "ProducerData",
    "QueueData",
    "RegisterBrokerBody",
    "SubscriptionData",
    "TopicConfig",
    "TopicConfigWrapper",
    "TopicList",
    "TopicQueueMapping",
    "TopicRouteData",
    "decode_body",
    "encode_body",
    "encode_cluster_info",
    "encode_route",
    "loads_fastjson",
    "queue_table",
]

CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


def enum_name(value: str | int, names: tuple[str, ...]) -> str:
    """The name of an enum member that a peer sent as a name (Java) or as an ordinal (C++)."""
    if isinstance(value, str):
        return value
    if not 0 <= value < len(names):
        raise RemoteProtocolError(f"ordinal {value} has no name among {', '.join(names)}")
    return names[value]


# ----------------------------------------------------------------------------------------------------------- heartbeat


class SubscriptionData(Body, kw_only=True):
    class_filter_mode: bool = written(False)
    code_set: list[int] = msgspec.field(default_factory=new_list)  # Go sends its hash codes as strings
    expression_type: str | None = None  # TAG when absent
    sub_string: str = written("*")
    sub_version: int = written(0)
    tags_set: list[str] = msgspec.field(default_factory=new_list)
    topic: str


class ProducerData(Body, kw_only=True):
    group_name: str


class ConsumerData(Body, kw_only=True):
    consume_from_where: str | int = written("CONSUME_FROM_LAST_OFFSET")
    consume_type: str | int = written("CONSUME_PASSIVELY")
    group_name: str
    message_model: str | int = written("CLUSTERING")
    subscription_data_set: list[SubscriptionData] = msgspec.field(default_factory=new_list)
    unit_mode: bool = written(False)

    def __post_init__(self) -> None:
        self.consume_from_where = enum_name(self.consume_from_where, CONSUME_FROM_WHERE)
        self.consume_type = enum_name(self.consume_type, CONSUME_TYPES)
        self.message_model = enum_name(self.message_model, MESSAGE_MODELS)


class HeartbeatData(Body, kw_only=True):
    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = msgspec.field(default_factory=new_list)
    heartbeat_fingerprint: int = written(0)
    producer_data_set: list[ProducerData] = msgspec.field(default_factory=new_list)
    without_sub: bool = written(False)


class CheckClientBody(Body, kw_only=True):
    """CHECK_CLIENT_CONFIG(46)."""

    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


class ConsumerList(Body, kw_only=True):
    """Answer to GET_CONSUMER_LIST_BY_GROUP(38)."""

    consumer_id_list: list[str]


# --------------------------------------------------------------------------------------------------------- order locks


class LockBatchBody(Body, kw_only=True):
    """LOCK_BATCH_MQ(41), UNLOCK_BATCH_MQ(42)."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueueBody] = msgspec.field(default_factory=new_list)
    only_this_broker: bool = written(False)


class LockedQueues(Body, kw_only=True):
    queues: list[MessageQueueBody] = msgspec.field(name="lockOKMQSet", default_factory=new_list)


# -------------------------------------------------------------------------------------------- registration and routing


class DataVersion(Body, kw_only=True):
    """Grows with every change of a broker's topics; the NameServer compares it."""

    counter: int = written(0)
    state_version: int = written(0)
    timestamp: int = written(0)


class TopicConfig(Body, kw_only=True, gc=False):
    attributes: dict[str, str] = msgspec.field(default_factory=new_dict)
    order: bool = written(False)
    perm: int = written(6)
    read_queue_nums: int = written(16)
    topic_filter_type: str | int = written("SINGLE_TAG")
    topic_name: str = written("")
    topic_sys_flag: int = written(0)
    write_queue_nums: int = written(16)

    def __post_init__(self) -> None:
        self.topic_filter_type = enum_name(self.topic_filter_type, ("SINGLE_TAG", "MULTI_TAG"))


class TopicQueueMapping(Body, kw_only=True):
    """A broker's part of a static topic."""

    bname: str | None = None
    curr_id_map: dict[int, int] = msgspec.field(default_factory=new_dict)
    dirty: bool = written(False)
    epoch: int = written(0)
    scope: str | None = None
    topic: str | None = None
    total_queues: int = written(0)


class TopicConfigWrapper(Body, kw_only=True):
    """Topics of a broker: in REGISTER_BROKER(103) and as the answer to GET_ALL_TOPIC_CONFIG(21)."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=new_dict)
    topic_queue_mapping_detail_map: dict[str, msgspec.Raw] | None = None
    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] | None = None


class RegisterBrokerBody(Body, kw_only=True):
    filter_server_list: list[str] = msgspec.field(default_factory=new_list)
    topic_config_serialize_wrapper: TopicConfigWrapper = msgspec.field(default_factory=TopicConfigWrapper)


class QueueData(Body, kw_only=True, gc=False):  # 100,000 of them would be looked at in every collection
    broker_name: str
    perm: int = written(6)
    read_queue_nums: int = written(0)
    topic_sys_flag: int = written(0)
    write_queue_nums: int = written(0)


class BrokerData(Body, kw_only=True):
    """The addresses of one broker group by broker id; 0 is the master."""

    broker_addrs: dict[int, str] = msgspec.field(default_factory=new_dict)
    broker_name: str
    cluster: str | None = None
    enable_acting_master: bool = written(False)
    zone_name: str | None = None


class TopicRouteData(Body, kw_only=True):
    """Answer to GET_ROUTEINFO_BY_TOPIC(105)."""

    broker_datas: list[BrokerData] = msgspec.field(default_factory=new_list)
    filter_server_table: dict[str, list[str]] = msgspec.field(default_factory=new_dict)
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = msgspec.field(default_factory=new_list)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None


class ClusterInfo(Body, kw_only=True):
    """Answer to GET_BROKER_CLUSTER_INFO(106)."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=new_dict)
    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=new_dict)


class TopicList(Body, kw_only=True):
    broker_addr: str | None = None
    topic_list: list[str] = msgspec.field(default_factory=new_list)


class KVTable(Body, kw_only=True):
    table: dict[str, str] = msgspec.field(default_factory=new_dict)


class BrokerMemberGroup(Body, kw_only=True):
    broker_addrs: dict[int, str] = msgspec.field(default_factory=new_dict)
    broker_name: str
    cluster: str


class BrokerMemberGroupBody(Body, kw_only=True):
    broker_member_group: BrokerMemberGroup | None = None


class _BareBrokerData(Body, kw_only=True):
    broker_addrs: msgspec.Raw
    broker_name: str
    cluster: str | None = None
    enable_acting_master: bool = written(False)
    zone_name: str | None = None


class _BareRoute(Body, kw_only=True):
    broker_datas: list[_BareBrokerData]
    filter_server_table: dict[str, list[str]]
    order_topic_conf: str | None = None
    queue_datas: list[QueueData]
    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None


class _BareClusterInfo(Body, kw_only=True):
    broker_addr_table: dict[str, _BareBrokerData]
    cluster_addr_table: dict[str, list[str]]


def encode_route(route: TopicRouteData, *, is_standard: bool) -> bytes:
    """A route as JSON, or with bare broker ids, which Go clients up to 2.1.1 need (quoted ids all read as 0 there).

    Standard JSON is ASCII, as Java's is for those who ask for it (BrowserCompatible): other characters are escaped.
    """
    if is_standard:
        return _escaped(encode_body(route))
    return encode_body(
        _BareRoute(
            broker_datas=[_bare(data) for data in route.broker_datas],
            filter_server_table=route.filter_server_table,
            order_topic_conf=route.order_topic_conf,
            queue_datas=route.queue_datas,
            topic_queue_mapping_by_broker=route.topic_queue_mapping_by_broker,
        )
    )


def _escaped(data: bytes) -> bytes:
    """JSON with every character outside of ASCII as \\uXXXX, as two of them where UTF-16 needs two."""
    if data.isascii():
        return data
    return _NOT_ASCII.sub(_escape, data.decode()).encode()


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex().upper()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")


def encode_cluster_info(info: ClusterInfo) -> bytes:
    """Cluster info with bare broker ids: Java writes it so whatever the requester's version."""
    return encode_body(
        _BareClusterInfo(
            broker_addr_table={name: _bare(data) for name, data in info.broker_addr_table.items()},
            cluster_addr_table=info.cluster_addr_table,
        )
    )


def _bare(data: BrokerData) -> _BareBrokerData:
    return _BareBrokerData(
        broker_addrs=bare_keys(data.broker_addrs),
        broker_name=data.broker_name,
        cluster=data.cluster,
        enable_acting_master=data.enable_acting_master,
        zone_name=data.zone_name,
    )
