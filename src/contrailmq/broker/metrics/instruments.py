"""The instruments of a broker. docs/metrics.md lists them, and a test compares.

First RocketMQ's, with its names, labels, units, buckets and switches (BrokerMetricsConstant,
DefaultStoreMetricsConstant, RemotingMetricsConstant), then ours, which begin with contrailmq_.
"""

from __future__ import annotations

from typing import Final

from contrailmq.broker.state.latencies import BOUNDS_MS
from contrailmq.broker.state.statistics import DELAY_BOUNDS_S, FINISH_BOUNDS_S, SIZE_BOUNDS
from contrailmq.metrics import Instrument, Kind
from contrailmq.store import DURATION_BOUNDS_US

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
STATS: Final = "enableStatsMetrics"
REQUESTS: Final = "enableRequestMetrics"
CONNECTIONS: Final = "enableConnectionMetrics"
LAG: Final = "enableLagAndDlqMetrics"
TRANSACTIONS: Final = "enableTransactionMetrics"
REMOTING: Final = "enableRemotingMetrics"
STORE: Final = "enableMessageStoreMetrics"
SWITCHES: Final = (STATS, REQUESTS, CONNECTIONS, LAG, TRANSACTIONS, REMOTING, STORE)

RPC_BOUNDS: Final = BOUNDS_MS[:-1]
CREATE_BOUNDS: Final = (10, 100, 1000, 3000, 5000)
SECONDS: Final = tuple(bound / 1_000_000 for bound in DURATION_BOUNDS_US)

_PUT: Final = ("topic", "message_type", "is_system")
_GET: Final = ("topic", "consumer_group", "is_system", "is_retry")
_BEHIND: Final = ("consumer_group", "topic", "is_retry", "is_system")
_ON_DISK: Final = ("storage_type", "storage_medium")

# --- RocketMQ's
WATERMARK: Final = Instrument(
    "rocketmq_processor_watermark", _G, "Requests that wait in this processor", ("processor",), setting=STATS
)
PERMISSION: Final = Instrument("rocketmq_broker_permission", _G, "2 write, 4 read, 6 both", setting=STATS)
TOPICS: Final = Instrument("rocketmq_topic_number", _G, "Topics, those of the system included", setting=STATS)
GROUPS: Final = Instrument("rocketmq_consumer_group_number", _G, "Groups, those of the system included", setting=STATS)
IN_MESSAGES: Final = Instrument("rocketmq_messages_in_total", _C, "Messages stored", _PUT, setting=REQUESTS)
IN_BYTES: Final = Instrument("rocketmq_throughput_in_total", _C, "Bytes of records stored", _PUT, setting=REQUESTS)
SIZES: Final = Instrument(
    "rocketmq_message_size", _H, "Bytes of a record, of a batch on average", _PUT, bounds=SIZE_BOUNDS, setting=REQUESTS
)
OUT_MESSAGES: Final = Instrument("rocketmq_messages_out_total", _C, "Messages pulled", _GET, setting=REQUESTS)
OUT_BYTES: Final = Instrument("rocketmq_throughput_out_total", _C, "Bytes pulled", _GET, setting=REQUESTS)
TOPIC_CREATION: Final = Instrument(
    "rocketmq_topic_create_execution_time", _H, "How long creating or changing a topic took",
    ("invocation_status", "is_system"), "milliseconds", CREATE_BOUNDS, REQUESTS,
)  # fmt: skip
GROUP_CREATION: Final = Instrument(
    "rocketmq_consumer_group_create_execution_time", _H, "How long creating or changing a group took",
    ("invocation_status", "is_system"), "milliseconds", CREATE_BOUNDS, REQUESTS,
)  # fmt: skip
PRODUCERS: Final = Instrument(
    "rocketmq_producer_connections", _G, "Connected producers", ("language", "version", "protocol_type"),
    setting=CONNECTIONS,
)  # fmt: skip
CONSUMERS: Final = Instrument(
    "rocketmq_consumer_connections", _G, "Connected consumers",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"), setting=CONNECTIONS,
)  # fmt: skip
LAG_MESSAGES: Final = Instrument(
    "rocketmq_consumer_lag_messages", _G, "Messages not committed yet, of groups that are offline too", _BEHIND,
    setting=LAG,
)  # fmt: skip
LAG_LATENCY: Final = Instrument(
    "rocketmq_consumer_lag_latency", _G, "Age of the oldest message not committed yet", _BEHIND, "milliseconds",
    setting=LAG,
)  # fmt: skip
INFLIGHT: Final = Instrument(
    "rocketmq_consumer_inflight_messages", _G, "Messages pulled and not committed", _BEHIND, setting=LAG
)
QUEUEING_LATENCY: Final = Instrument(
    "rocketmq_consumer_queueing_latency", _G, "Age of the oldest message not pulled yet", _BEHIND, "milliseconds",
    setting=LAG,
)  # fmt: skip
READY: Final = Instrument("rocketmq_consumer_ready_messages", _G, "Messages not pulled yet", _BEHIND, setting=LAG)
DEAD_LETTERS: Final = Instrument(
    "rocketmq_send_to_dlq_messages_total", _C, "Messages that became dead letters",
    ("consumer_group", "topic", "is_system"), setting=LAG,
)  # fmt: skip
COMMITS: Final = Instrument(
    "rocketmq_commit_messages_total", _C, "Transactions committed", ("topic",), setting=TRANSACTIONS
)
ROLLBACKS: Final = Instrument(
    "rocketmq_rollback_messages_total", _C, "Transactions rolled back", ("topic",), setting=TRANSACTIONS
)
HALVES: Final = Instrument("rocketmq_half_messages", _G, "Half messages that wait", ("topic",), setting=TRANSACTIONS)
FINISH_TIME: Final = Instrument(
    "rocketmq_finish_message_latency", _H, "Seconds from a half message's birth to its commit, whatever the unit says",
    ("topic",), "ms", FINISH_BOUNDS_S, TRANSACTIONS,
)  # fmt: skip
RPC_LATENCY: Final = Instrument(
    "rocketmq_rpc_latency", _H, "From decoding a request to its answer",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"), "milliseconds", RPC_BOUNDS,
    REMOTING,
)  # fmt: skip
STORAGE: Final = Instrument(
    "rocketmq_storage_size", _G, "Used space of the partition of the store", _ON_DISK, "bytes", setting=STORE
)
FLUSH_BEHIND: Final = Instrument(
    "rocketmq_storage_flush_behind_bytes", _G, "Bytes of the log that are not synced", _ON_DISK, "bytes", setting=STORE
)
DISPATCH_BEHIND: Final = Instrument(
    "rocketmq_storage_dispatch_behind_bytes", _G, "Bytes of the log that are in no queue yet", _ON_DISK, "bytes",
    setting=STORE,
)  # fmt: skip
RESERVE_TIME: Final = Instrument(
    "rocketmq_storage_message_reserve_time", _G, "Age of the oldest message", _ON_DISK, "milliseconds", setting=STORE
)
TIMER_ENQUEUE_LAG: Final = Instrument(
    "rocketmq_timer_enqueue_lag", _G, "Timer messages not on the wheel yet", _ON_DISK, setting=STORE
)
TIMER_ENQUEUE_LATENCY: Final = Instrument(
    "rocketmq_timer_enqueue_latency", _G, "How late the wheel takes timers in", _ON_DISK, "milliseconds", setting=STORE
)
TIMER_DEQUEUE_LAG: Final = Instrument(
    "rocketmq_timer_dequeue_lag", _G, "Timers that are due and not delivered", _ON_DISK, setting=STORE
)
TIMER_DEQUEUE_LATENCY: Final = Instrument(
    "rocketmq_timer_dequeue_latency", _G, "How late timers are delivered", _ON_DISK, "milliseconds", setting=STORE
)
TIMERS: Final = Instrument(
    "rocketmq_timing_messages", _G, "Timers that wait", (*_ON_DISK, "topic"), setting=STORE
)  # fmt: skip
TIMERS_IN: Final = Instrument(
    "rocketmq_timer_enqueue_total", _C, "Timers put on the wheel, again after each roll", (*_ON_DISK, "topic"),
    setting=STORE,
)  # fmt: skip
TIMERS_OUT: Final = Instrument(
    "rocketmq_timer_dequeue_total", _C, "Timers taken off the wheel", (*_ON_DISK, "topic"), setting=STORE
)
DELAYS: Final = Instrument(
    "rocketmq_delay_message_latency", _H, "Delays that senders of timers asked for", (*_ON_DISK, "topic"), "seconds",
    DELAY_BOUNDS_S, STORE,
)  # fmt: skip

# --- ours
PUT_TIME: Final = Instrument(
    "contrailmq_put_latency", _H, "From the first append of a wakeup until its messages can be read, or under "
    "SYNC_FLUSH are durable", (), "seconds", SECONDS,
)  # fmt: skip
FLUSH_TIME: Final = Instrument(
    "contrailmq_flush_latency", _H, "Syncs of the log that moved the durable offset", (), "seconds", SECONDS
)
DISPATCH_TIME: Final = Instrument(
    "contrailmq_dispatch_latency", _H, "Bringing queues and index up to date after appends", (), "seconds", SECONDS
)
REPLICATION_TIME: Final = Instrument(
    "contrailmq_replication_latency", _H, "From an append until a slave has it", (), "seconds", SECONDS
)
LOOP_DELAY: Final = Instrument(
    "contrailmq_loop_delay", _H, "How much later than asked for the event loop came back, ten times a second", (),
    "seconds", SECONDS,
)  # fmt: skip
LIMITS_HIT: Final = Instrument("contrailmq_limits_hit_total", _C, "Requests that a bound refused", ("limit",))
PEER_FAULTS: Final = Instrument("contrailmq_peer_faults_total", _C, "What peers did wrong", ("cause",))
PUT_FAILURES: Final = Instrument("contrailmq_put_failures_total", _C, "Messages that the store did not take")
EMPTY_PULLS: Final = Instrument("contrailmq_empty_pulls_total", _C, "Pulls that found nothing")
HELD_PULLS: Final = Instrument("contrailmq_held_pulls", _G, "Pulls that wait for messages")
PARKED: Final = Instrument("contrailmq_parked_answers", _G, "Answers that wait for the disk or for slaves", ("for",))
OPEN: Final = Instrument("contrailmq_connections", _G, "Connections of clients, brokers and administrators")
WRITABLE: Final = Instrument("contrailmq_store_writable", _G, "1 while the store takes messages")
DISK_USED: Final = Instrument("contrailmq_disk_used_ratio", _G, "Used share of the partition of the log, 0 to 1")
DISK_FREE: Final = Instrument("contrailmq_disk_free", _G, "Free space of the partition of the log", unit="bytes")
DISK_LIMIT: Final = Instrument(
    "contrailmq_disk_limit_ratio", _G, "Where cleaning begins, and where messages are refused", ("what",)
)
DAMAGED: Final = Instrument("contrailmq_damaged_records", _G, "Damaged records found and skipped since the start")
LOG_END: Final = Instrument("contrailmq_log_max_offset", _G, "Where the log ends", unit="bytes")
LEVELS: Final = Instrument("contrailmq_delayed_messages", _G, "Messages that wait on a delay level", ("level",))
SLAVE_LAG: Final = Instrument("contrailmq_ha_slave_lag", _G, "How far a slave is behind", ("slave",), "bytes")
SLAVE_IN_SYNC: Final = Instrument("contrailmq_ha_slave_in_sync", _G, "1 while a slave is in sync", ("slave",))
IN_SYNC: Final = Instrument("contrailmq_ha_in_sync_replicas", _G, "Copies that are in sync, this one included")
FOLLOW_LAG: Final = Instrument("contrailmq_ha_follow_lag", _G, "How far this slave is behind its master", (), "seconds")
FOLLOWING: Final = Instrument("contrailmq_ha_following", _G, "1 while this slave follows its master")
ROLE: Final = Instrument("contrailmq_broker_role", _G, "1 for the role it has: master, slave or acting", ("role",))
INFO: Final = Instrument("contrailmq_build_info", _G, "Always 1", ("version", "python"))
STARTED: Final = Instrument("contrailmq_start_time", _G, "When it started, of the epoch", unit="seconds")
CPU: Final = Instrument("contrailmq_cpu_seconds_total", _C, "CPU time of the process", unit="seconds")
MEMORY: Final = Instrument("contrailmq_resident_memory", _G, "Resident memory of the process", unit="bytes")
DESCRIPTORS: Final = Instrument("contrailmq_open_descriptors", _G, "Open files and sockets of the process")
PAIRS_LEFT_OUT: Final = Instrument(
    "contrailmq_lag_pairs_left_out",
    _G,
    "Pairs of group and topic beyond metricsOtelCardinalityLimit, without a lag here",
)
PAGE_TIME: Final = Instrument(
    "contrailmq_lag_survey", _G, "How long gathering the lag for this page took", unit="seconds"
)

INSTRUMENTS: Final = tuple(value for value in globals().values() if isinstance(value, Instrument))

# What waits in a group of brokers. Its master says it; a slave that follows does not, since boards add up (figures.py).
OF_GROUP: Final = frozenset(
    (
        LAG_MESSAGES, LAG_LATENCY, INFLIGHT, QUEUEING_LATENCY, READY,
        LEVELS, TIMERS, TIMER_DEQUEUE_LAG, TIMER_DEQUEUE_LATENCY,
    )
)  # fmt: skip
