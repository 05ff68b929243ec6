"""Connections, order locks, held pulls, statistics and settings on a clock that the test moves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contrailmq.broker.cluster.advertise import advertised_address
from contrailmq.broker.config import (
    DIFFERENCES,
    BrokerConfig,
    BrokerConfigError,
    store_properties,
)
from contrailmq.broker.filters import SubscriptionFilter, parse_subscription
from contrailmq.broker.state.connections import Client, ClientTable
from contrailmq.broker.state.long_polling import HeldPull, HeldPulls
from contrailmq.broker.state.order_locks import OrderLocks
from contrailmq.broker.state.statistics import IDLE_MS, Statistics
from contrailmq.message import MessageQueue, encode_properties
from contrailmq.store.config import StoreConfig
from contrailmq.wire.header import Command, Fields


class Link:
    """A connection that is only a name."""

    def __init__(self, port: int = 1) -> None:
        self.peer = ("10.0.0.1", port)
        self.is_open = True

    def oneway(self, code: int, ext: Fields | None = None, body: bytes = b"") -> None:
        raise AssertionError("tables send nothing")

    def invoke(
        self, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> asyncio.Future[Command]:
        raise AssertionError("tables send nothing")

    def close(self, cause: str = "") -> None:
        self.is_open = False


def client(link: Link, client_id: str, seen_ms: int = 0) -> Client:
    return Client(link, client_id, "JAVA", 479, seen_ms)


def join(table: ClientTable, link: Link, client_id: str, *topics: str, seen_ms: int = 0, version: int = 1) -> bool:
    return table.register_consumer(
        "g",
        client(link, client_id, seen_ms),
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=[parse_subscription(topic, "*", version=version) for topic in topics],
    )


def test_members_change_when_one_joins_or_topics_change_and_not_on_a_repeat() -> None:
    table, one, two = ClientTable(), Link(1), Link(2)
    assert join(table, one, "c1", "T")
    assert not join(table, one, "c1", "T", version=2)
    assert join(table, two, "c2", "T")
    assert join(table, two, "c2", "T", "U")
    group = table.consumer_group("g")
    assert group is not None
    assert group.client_ids() == ["c1", "c2"]
    assert table.groups_subscribed_to("U") == {"g"}
    assert table.unregister_consumer("g", one)
    assert not table.unregister_consumer("g", one)


def test_an_older_subscription_never_replaces_a_newer_one() -> None:
    table, link = ClientTable(), Link()
    join(table, link, "c", "T", version=5)
    join(table, link, "c", "T", version=3)
    subscription = table.subscription("g", "T")
    assert subscription is not None
    assert subscription.version == 5


def test_a_heartbeat_without_subscriptions_keeps_them() -> None:
    table, link = ClientTable(), Link()
    join(table, link, "c", "T")
    changed = table.register_consumer(
        "g",
        client(link, "c"),
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        from_where="",
        subscriptions=None,
    )
    assert not changed
    assert table.subscription("g", "T") is not None


def test_a_closed_connection_leaves_every_group() -> None:
    table, link = ClientTable(), Link()
    join(table, link, "c", "T")
    table.register_producer("p", client(link, "c"))
    assert table.drop_connection(link) == ["g"]
    assert table.consumer_group("g") is None
    assert table.producers("p") == []
    assert table.drop_connection(link) == []


def test_silent_clients_expire_and_live_ones_stay() -> None:
    table, old, fresh = ClientTable(), Link(1), Link(2)
    join(table, old, "c1", "T", seen_ms=0)
    join(table, fresh, "c2", "T", seen_ms=100_000)
    table.register_producer("p", client(old, "c1", 0))
    assert table.expire(120_000) == ([], [])
    assert table.expire(120_001) == ([old], ["g"])
    group = table.consumer_group("g")
    assert group is not None
    assert group.client_ids() == ["c2"]
    assert table.producer_groups() == {}


def test_producers_take_turns_and_closed_ones_are_passed_over() -> None:
    table, links = ClientTable(), [Link(n) for n in range(3)]
    for number, link in enumerate(links):
        table.register_producer("p", client(link, f"c{number}"))
    links[1].is_open = False
    found = {chosen.client_id for _ in range(4) if (chosen := table.next_producer("p"))}
    assert found == {"c0", "c2"}
    assert table.find_producer("c1") is None
    assert table.find_producer("c2") is not None
    assert table.next_producer("unknown") is None


QUEUES = [MessageQueue("T", "b", n) for n in range(3)]


def test_a_lock_excludes_others_until_it_expires_or_is_given_up() -> None:
    locks = OrderLocks()
    assert locks.lock("g", "c1", QUEUES[:2], 0) == QUEUES[:2]
    assert locks.lock("g", "c2", QUEUES, 30_000) == QUEUES[2:]
    assert locks.lock("h", "c2", QUEUES, 0) == QUEUES
    locks.unlock("g", "c2", QUEUES)
    assert locks.owner("g", QUEUES[0], 60_000) == "c1"
    assert locks.owner("g", QUEUES[0], 60_001) is None
    assert locks.lock("g", "c2", QUEUES[:1], 60_001) == QUEUES[:1]
    locks.unlock("g", "c1", QUEUES)
    assert locks.is_any_locked("g", 60_001)
    assert locks.expire(200_000) == 4
    assert not locks.is_any_locked("g", 200_000)


def held(
    pulls: HeldPulls,
    woken: list[str],
    name: str,
    *,
    offset: int = 0,
    deadline_ms: int = 15_000,
    queue_id: int = 0,
    wanted: SubscriptionFilter | None = None,
    link: Link | None = None,
) -> bool:
    pull = HeldPull(
        offset=offset,
        deadline_ms=deadline_ms,
        filter=wanted,
        connection=link or Link(),
        resume=lambda: woken.append(name),
    )
    return pulls.try_hold("T", queue_id, pull)


def arrive(pulls: HeldPulls, offset: int, *, tags_code: int = 0, queue_id: int = 0, **properties: str) -> None:
    encoded = encode_properties(properties)
    pulls.arrived("T", queue_id, queue_offset=offset, tags_code=tags_code, properties=encoded)


def test_an_arrival_wakes_every_pull_of_its_queue_and_no_other() -> None:
    pulls, woken = HeldPulls(), list[str]()
    held(pulls, woken, "one")
    held(pulls, woken, "two")
    held(pulls, woken, "elsewhere", queue_id=1)
    held(pulls, woken, "ahead", offset=5)
    arrive(pulls, 0)
    assert woken == ["one", "two"]
    assert len(pulls) == 2
    arrive(pulls, 5)
    assert woken == ["one", "two", "ahead"]
    assert ("T", 0) not in pulls.queues


def test_a_filtered_arrival_does_not_wake_but_the_check_does() -> None:
    pulls, woken = HeldPulls(), list[str]()
    held(pulls, woken, "tag", wanted=parse_subscription("T", "TagA").filter)
    held(pulls, woken, "sql", wanted=parse_subscription("T", "region = 'eu'", "SQL92").filter)
    arrive(pulls, 0, tags_code=2598920, region="us")
    assert woken == []
    arrive(pulls, 1, tags_code=2598919, region="us")
    assert woken == ["tag"]
    arrive(pulls, 2, region="eu")
    assert woken == ["tag", "sql"]
    held(pulls, woken, "late", wanted=parse_subscription("T", "TagA").filter, offset=3)
    pulls.recheck(lambda topic, queue_id: 3)
    assert woken == ["tag", "sql"]
    pulls.recheck(lambda topic, queue_id: 4)
    assert woken == ["tag", "sql", "late"]


def test_pulls_time_out_in_order_and_only_once() -> None:
    pulls, woken = HeldPulls(), list[str]()
    held(pulls, woken, "late", deadline_ms=200)
    held(pulls, woken, "early", deadline_ms=100)
    pulls.expire(99)
    assert woken == []
    pulls.expire(100)
    pulls.expire(150)
    assert woken == ["early"]
    pulls.expire(1000)
    assert woken == ["early", "late"]
    assert len(pulls) == 0


def test_a_pull_of_a_closed_connection_is_forgotten_without_an_answer() -> None:
    pulls, woken, link = HeldPulls(), list[str](), Link()
    held(pulls, woken, "gone", link=link)
    link.is_open = False
    pulls.recheck(lambda topic, queue_id: 0)
    assert len(pulls) == 0
    assert woken == []


def test_a_full_table_holds_no_more_and_stopping_wakes_all() -> None:
    pulls, woken = HeldPulls(held_max=2), list[str]()
    assert held(pulls, woken, "a")
    assert held(pulls, woken, "b")
    assert not held(pulls, woken, "c")
    pulls.release_all()
    assert woken == ["a", "b"]


def test_many_short_waits_leave_no_dead_deadlines_behind() -> None:
    pulls, woken = HeldPulls(), list[str]()
    for number in range(10_000):
        held(pulls, woken, "x", offset=number)
        arrive(pulls, number)
    assert len(woken) == 10_000
    assert len(pulls._deadlines) < 200


def test_rates_come_from_samples() -> None:
    statistics = Statistics()
    statistics.tick(0, wall_ms=0)
    statistics.note_put("T", 1, 100)
    statistics.tick(10_000, wall_ms=10_000)
    for _ in range(20):
        statistics.note_put("T", 3, 300)
    statistics.tick(20_000, wall_ms=20_000)
    counter = statistics.find("TOPIC_PUT_NUMS", "T")
    assert counter is not None
    rate = counter.rate("minute")
    assert (rate.sum, rate.per_second, rate.per_operation) == (60, 6.0, 3.0)
    assert statistics.put.value == 61
    assert statistics.put.averages() == "6 3.05 3.05"
    assert statistics.find("TOPIC_PUT_NUMS", "unknown") is None


def test_what_the_broker_writes_for_itself_is_apart_from_what_people_send() -> None:
    """POP alone puts three messages of its own for each that is taken."""
    statistics = Statistics()
    for topic in ("T", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
        statistics.note_put(topic, 2, 100)
        statistics.note_get("g", topic, 3, 100)
    assert (statistics.put.value, statistics.put_by_people.value) == (6, 2)
    assert (statistics.get.value, statistics.get_by_people.value) == (9, 3)
    statistics.tick(0, wall_ms=0)
    statistics.tick(1, wall_ms=86_400_000)
    assert statistics.put_by_people.this_morning == 2


def test_idle_counters_are_dropped_and_a_new_day_notes_the_morning() -> None:
    statistics = Statistics()
    statistics.tick(0, wall_ms=0)
    statistics.note_get("g", "T", 5, 500)
    for now_ms in range(0, 86_400_000 + 1, 3_600_000):
        statistics.tick(now_ms, wall_ms=now_ms)
    assert statistics.find("GROUP_GET_NUMS", "T@g") is None
    assert statistics.get.this_morning == 5
    assert IDLE_MS < 86_400_000
    statistics.note_put("T", 1, 1)
    statistics.forget(topic="T")
    assert statistics.find("TOPIC_PUT_NUMS", "T") is None


def test_a_clock_that_is_set_back_does_not_stop_the_rates_nor_one_set_forward_drop_counters() -> None:
    statistics = Statistics()
    for turn, wall_ms in enumerate([5 * 86_400_000, 86_400_000, 9 * 86_400_000]):
        statistics.note_put("T", 30, 30)
        statistics.tick(turn * 10_000, wall_ms=wall_ms)
    counter = statistics.find("TOPIC_PUT_NUMS", "T")
    assert counter is not None
    assert counter.rate("minute").per_second == 3.0


def test_settings_have_rocketmqs_keys_and_round_trip() -> None:
    config, warnings = BrokerConfig.from_properties(
        {"brokerName": "a", "brokerIP1": "10.0.0.1", "listenPort": "0", "autoCreateTopicEnable": "false"}
    )
    assert warnings == []
    assert (config.broker_name, config.broker_ip1, config.auto_create_topic_enable) == ("a", "10.0.0.1", False)
    again, _ = BrokerConfig.from_properties(config.to_properties())
    assert again == config


def test_an_unknown_key_is_a_warning_that_names_the_nearest() -> None:
    _, warnings = BrokerConfig.from_properties({"autoCreateTopicsEnable": "true", "sendMessageThreadPoolNums": "16"})
    assert warnings == [
        "settings of RocketMQ's without effect here: sendMessageThreadPoolNums",
        "setting autoCreateTopicsEnable is not known: did you mean autoCreateTopicEnable?",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "70000"),
        ("listenPort", "many"),
        ("brokerId", "-1"),
        ("traceOn", "yes"),
        ("brokerName", "a b"),
        ("namesrvAddr", "nowhere"),
        ("defaultTopicQueueNums", "0"),
        ("brokerPermission", "8"),
        ("flushConsumerOffsetInterval", "0"),
        ("channelExpiredTimeout", "-1"),
        ("transactionCheckInterval", "0"),
        ("unsentBytesMax", "0"),
        ("heldPullsMax", "-1"),
        ("pullBytesMax", "16777216"),
    ],
)
def test_a_bad_value_names_its_key(key: str, value: str) -> None:
    with pytest.raises(BrokerConfigError, match=key):
        BrokerConfig.from_properties({key: value})


def test_an_update_changes_all_or_nothing() -> None:
    config = BrokerConfig(broker_name="a")
    with pytest.raises(BrokerConfigError, match="restart"):
        config.update({"traceOn": "false", "listenPort": "1"})
    assert config.trace_on
    config.update({"traceOn": "false"})
    assert not config.trace_on


def test_every_deliberate_difference_is_our_default() -> None:
    ours = BrokerConfig().to_properties() | store_properties(StoreConfig("unused"))
    assert {key: ours[key] for key in DIFFERENCES} == {key: entry[1] for key, entry in DIFFERENCES.items()}


def test_every_deliberate_difference_stands_in_the_documents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    for key, (theirs, ours, reason) in DIFFERENCES.items():
        assert f"| {key} | {theirs} | {ours} | {reason} |" in page


def test_a_loopback_address_is_warned_about_when_the_name_server_is_remote() -> None:
    remote = advertised_address(configured="127.0.0.1", bind_address="", namesrv_addresses=["10.1.1.1:9876"])
    assert remote.warning is not None
    assert "set brokerIP1" in remote.warning
    local = advertised_address(configured="", bind_address="127.0.0.1", namesrv_addresses=["127.0.0.1:9876"])
    assert local.warning is None
    assert local.ip == "127.0.0.1"
    docker = advertised_address(configured="172.17.0.2", bind_address="", namesrv_addresses=["10.1.1.1:9876"])
    assert docker.warning is not None


def test_an_address_found_inside_a_container_is_warned_about_and_one_that_was_set_is_not() -> None:
    """Networks of containers have any private address: 172.18.0.0/16 and 10.0.0.0/8 as often as Docker's first."""

    def warning(configured: str, bind_address: str) -> str | None:
        servers = ["10.1.1.1:9876"]
        found = advertised_address(
            configured=configured, bind_address=bind_address, namesrv_addresses=servers, is_in_container=True
        )
        return found.warning

    assert "10.9.0.7 looks like a container's address" in (warning("", "10.9.0.7") or "")
    assert warning("10.9.0.7", "") is None


def test_a_setting_without_effect_is_refused_as_such_and_not_as_unknown() -> None:
    with pytest.raises(BrokerConfigError, match="sendMessageThreadPoolNums='4': has no effect here: threads"):
        BrokerConfig(broker_name="a").update({"sendMessageThreadPoolNums": "4"})
