"""The tables, rule by rule, on a clock of our own."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from contrailmq.namesrv import routes
from contrailmq.namesrv.routes import BrokerKey, Outcome, Registration, RouteTables, TablesFullError, queue_data
from contrailmq.wire.bodies import (
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigWrapper,
    TopicQueueMapping,
)


def body(*topics: str, version: int = 1, state: int = 0, perm: int = 6, **more: Any) -> RegisterBrokerBody:
    table = {
        name: TopicConfig(topic_name=name, perm=perm, read_queue_nums=4, write_queue_nums=4, **more) for name in topics
    }
    wrapper = TopicConfigWrapper(
        data_version=DataVersion(counter=version, state_version=state), topic_config_table=table
    )
    return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)


def broker(name: str = "a", broker_id: int = 0, **more: Any) -> Registration:
    values: dict[str, Any] = {
        "cluster": "c",
        "broker_name": name,
        "broker_id": broker_id,
        "address": f"{name}:{broker_id}",
        "ha_address": f"{name}:{broker_id}:ha",
        "body": body("T", "U"),
        "connection": sys.intern(f"connection {name} {broker_id}"),
    }
    values |= more
    topics = values["body"].topic_config_serialize_wrapper.topic_config_table
    must_not_write = broker_id != 0 and bool(values.get("enable_acting_master"))
    queues = {topic: queue_data(name, config, must_not_write=must_not_write) for topic, config in topics.items()}
    return Registration(**values, queues=queues)


def tables(*registrations: Registration, now_ms: int = 0) -> RouteTables:
    found = RouteTables()
    for registration in registrations:
        assert found.register(registration, now_ms).refusal is None
    return found


def addresses(found: RouteTables, topic: str = "T") -> dict[int, str]:
    route = found.route(topic)
    assert route is not None
    return route.broker_datas[0].broker_addrs


def test_a_topic_is_routed_to_every_broker_that_registered_it() -> None:
    found = tables(broker("a"), broker("b"))
    route = found.route("T")
    assert route is not None
    assert [data.broker_name for data in route.broker_datas] == ["a", "b"]
    assert [queues.write_queue_nums for queues in route.queue_datas] == [4, 4]
    assert found.route("unknown") is None
    assert found.clusters == {"c": ["a", "b"]}


def test_a_new_broker_with_exactly_one_topic_is_refused_and_a_known_one_may_send_one() -> None:
    found = RouteTables()
    outcome = found.register(broker(body=body("T")), 0)
    assert outcome.refusal is not None
    assert outcome.refusal.startswith("register broker failed")
    assert found.route("T") is None
    found.register(broker(), 0)
    assert found.register(broker(body=body("New", version=2)), 0) == Outcome()
    assert found.route("New") is not None


def test_topics_that_are_no_longer_mentioned_stay_unless_configured() -> None:
    found = tables(broker(), broker(body=body("T", "V", version=2)))
    assert found.route("U") is not None
    found.delete_unmentioned_topics = True
    found.register(broker(body=body("T", "V", version=3)), 0)
    assert found.route("U") is None


def test_topics_are_taken_again_only_when_the_data_version_moved_or_the_topic_is_missing() -> None:
    found = tables(broker(), broker(body=body("T", "U", "W", perm=4)))
    route, fresh = found.route("T"), found.route("W")
    assert route is not None
    assert fresh is not None
    assert (route.queue_datas[0].perm, fresh.queue_datas[0].perm) == (6, 4)
    found.register(broker(body=body("T", "U", perm=4, version=2)), 0)
    changed = found.route("T")
    assert changed is not None
    assert changed.queue_datas[0].perm == 4


def test_a_slave_brings_no_topics_and_learns_its_master() -> None:
    found = tables(broker())
    outcome = found.register(broker(broker_id=1, body=body("Slaves", "Own")), 0)
    assert (outcome.master_address, outcome.master_ha_address) == ("a:0", "a:0:ha")
    assert found.route("Slaves") is None
    assert addresses(found) == {0: "a:0", 1: "a:1"}


def test_a_slave_without_a_master_learns_nothing() -> None:
    outcome = RouteTables().register(broker(broker_id=1), 0)
    assert (outcome.refusal, outcome.master_address, outcome.master_ha_address) == (None, None, None)


def test_an_address_that_changes_its_id_leaves_the_old_id() -> None:
    found = tables(broker(), broker(broker_id=1), broker(broker_id=0, address="a:1", body=body("T", "U", version=2)))
    assert addresses(found) == {0: "a:1"}


def test_of_two_addresses_for_one_id_the_larger_state_version_stays() -> None:
    found = tables(broker(body=body("T", "U", state=5)))
    found.register(broker(address="other:0", body=body("T", "U", state=4)), 0)
    assert addresses(found) == {0: "a:0"}
    found.register(broker(address="other:0", body=body("T", "U", state=5)), 0)
    assert addresses(found) == {0: "other:0"}


def test_the_last_address_of_a_group_takes_its_queues_with_it() -> None:
    found = tables(broker("a"), broker("a", 1), broker("b"))
    found.unregister([BrokerKey("c", "a:0")], names={BrokerKey("c", "a:0"): "a"})
    assert addresses(found) == {1: "a:1"}
    found.unregister([BrokerKey("c", "a:1")], names={BrokerKey("c", "a:1"): "a"})
    route = found.route("T")
    assert route is not None
    assert [data.broker_name for data in route.broker_datas] == ["b"]
    assert found.clusters == {"c": ["b"]}
    found.unregister([BrokerKey("c", "b:0")], names={BrokerKey("c", "b:0"): "b"})
    assert (found.queues, found.brokers, found.clusters, found.live) == ({}, {}, {}, {})


def test_unregistering_somebody_unknown_changes_nothing() -> None:
    found = tables(broker())
    found.unregister([BrokerKey("c", "zz:0")], names={BrokerKey("c", "zz:0"): "zz"})
    assert addresses(found) == {0: "a:0"}


def test_a_silent_broker_is_forgotten_after_120_s_or_its_own_timeout() -> None:
    found = tables(broker("a"), broker("b", timeout_ms=10_000))
    assert found.expire(10_000) == ([], [])
    assert found.expire(10_001)[0] == ["connection b 0"]
    found.heartbeat("c", "a:0", 50_000)
    assert found.expire(120_001) == ([], [])
    assert found.expire(170_001)[0] == ["connection a 0"]
    assert found.route("T") is None
    assert found.heartbeat("c", "a:0", 0) is False


def test_a_closed_connection_takes_all_its_brokers_with_it() -> None:
    found = tables(broker("a", connection="one"), broker("b", connection="one"), broker("d", connection="two"))
    found.connection_closed("one")
    assert list(found.brokers) == ["d"]
    found.connection_closed("nobody's")
    assert list(found.brokers) == ["d"]


def test_write_permission_is_taken_and_given_by_broker() -> None:
    found = tables(broker("a", body=body("T", "U", perm=7)), broker("b"))
    assert found.wipe_write_permission("a") == 2
    route = found.route("T")
    assert route is not None
    assert {queues.broker_name: queues.perm for queues in route.queue_datas} == {"a": 5, "b": 6}
    assert found.add_write_permission("a") == 2
    assert {queues.broker_name: queues.perm for queues in route.queue_datas} == {"a": 6, "b": 6}
    assert found.wipe_write_permission("nobody") == 0


def test_a_topic_is_deleted_everywhere_or_in_one_cluster() -> None:
    found = tables(broker("a"), broker("b", cluster="d"))
    found.delete_topic("T", "d")
    route = found.route("T")
    assert route is not None
    assert [queues.broker_name for queues in route.queue_datas] == ["a"]
    found.delete_topic("T")
    assert found.route("T") is None
    found.delete_topic("unknown")


def test_a_topic_may_be_registered_for_known_brokers_only() -> None:
    found = tables(broker("a"))
    found.register_topic("N", [QueueData(broker_name="a", read_queue_nums=1), QueueData(broker_name="zz")])
    route = found.route("N")
    assert route is not None
    assert [queues.broker_name for queues in route.queue_datas] == ["a"]


def test_lists_by_cluster_by_system_and_by_unit_flag() -> None:
    found = tables(
        broker("a", body=body("Plain", "X")),
        broker("b", cluster="d", body=body("Unit", "UnitAndSub", topic_sys_flag=1)),
    )
    found.register(broker("a", body=body("Sub", version=2, topic_sys_flag=2)), 0)
    found.register(broker("b", cluster="d", body=body("UnitAndSub", version=2, topic_sys_flag=3)), 0)
    assert found.topics_of_cluster("d") == ["Unit", "UnitAndSub"]
    assert found.topics_of_cluster("nowhere") == []
    assert found.system_topics() == (["c", "a", "d", "b"], "a:0")
    assert found.unit_topics() == ["Unit", "UnitAndSub"]
    assert found.unit_sub_topics() == ["Sub", "UnitAndSub"]
    assert found.unit_sub_ununit_topics() == ["Sub"]
    assert RouteTables().system_topics() == ([], None)


def test_mappings_of_static_topics_and_filter_servers_are_kept_and_shown() -> None:
    registered = body("T", "U")
    registered.filter_server_list = ["f:1"]
    registered.topic_config_serialize_wrapper.topic_queue_mapping_info_map = {
        "T": TopicQueueMapping(bname="a", topic="T", total_queues=8, epoch=3)
    }
    found = tables(broker(body=registered))
    route = found.route("T")
    assert route is not None
    assert route.filter_server_table == {"a:0": ["f:1"]}
    assert route.topic_queue_mapping_by_broker is not None
    assert route.topic_queue_mapping_by_broker["a"].total_queues == 8
    found.register(broker(), 0)
    again = found.route("T")
    assert again is not None
    assert again.filter_server_table == {}


def test_an_acting_master_serves_reading_under_id_0() -> None:
    found = tables(
        broker(enable_acting_master=True),
        broker(broker_id=2, enable_acting_master=True),
        broker(broker_id=3, enable_acting_master=True),
    )
    found.support_acting_master = True
    found.unregister([BrokerKey("c", "a:0")], names={BrokerKey("c", "a:0"): "a"})
    route = found.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4
    assert route.broker_datas[0].broker_addrs == {0: "a:2", 3: "a:3"}
    found.support_acting_master = False
    assert addresses(found) == {2: "a:2", 3: "a:3"}


def test_with_acting_master_the_smallest_id_brings_topics_without_write_permission() -> None:
    found = tables(broker(broker_id=1, enable_acting_master=True))
    route = found.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4


def test_a_change_of_the_smallest_id_names_who_must_be_told() -> None:
    found = tables(broker(broker_id=1), broker(broker_id=2))
    change = found.register(broker(broker_id=0), 0).change
    assert change is not None
    assert (change.min_broker_id, change.min_broker_address, change.offline_address) == (0, "a:0", None)
    assert set(change.targets) == {"connection a 1", "connection a 2"}
    [gone] = found.connection_closed(sys.intern("connection a 0"))
    assert (gone.min_broker_id, gone.offline_address, gone.ha_address) == (1, "a:0", "a:0:ha")
    assert set(gone.targets) == {"connection a 1", "connection a 2"}
    assert found.connection_closed(sys.intern("connection a 2")) == []


def test_the_generation_moves_when_a_route_changes_and_stays_when_nothing_does() -> None:
    found = tables(broker())
    before = found.generation
    found.register(broker(), 5)
    found.heartbeat("c", "a:0", 6)
    assert found.generation == before
    found.register(broker(body=body("T", "U", perm=4, version=2)), 7)
    assert found.generation > before


def test_member_groups_and_data_versions_are_told() -> None:
    found = tables(broker(), broker(broker_id=1))
    assert found.member_group("c", "a").broker_addrs == {0: "a:0", 1: "a:1"}
    assert found.member_group("c", "zz").broker_addrs == {}
    assert found.data_version("c", "a:0") == DataVersion(counter=1)
    assert found.data_version("c", "zz:0") is None


# ------------------------------------------------------------------------------------------------------------- bounds


def test_topics_of_all_brokers_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "ENTRIES_MAX", 5)
    found = tables(broker("a", body=body("T", "U")), broker("b", body=body("T", "U")))
    with pytest.raises(TablesFullError, match="broker c brings 2 new topics to the 4 of all brokers, the limit is 5"):
        found.register(broker("c", body=body("T", "U")), 0)
    assert "c" not in found.brokers
    assert BrokerKey("c", "c:0") not in found.live
    found.register(broker("a", body=body("V", version=2)), 0)  # the fifth
    with pytest.raises(TablesFullError):
        found.register(broker("a", body=body("W", version=3)), 0)
    with pytest.raises(TablesFullError):
        found.register_topic("W", [QueueData(broker_name="b")])
    found.register(broker("a", body=body("T", "U", version=4)), 7)  # nothing new: brokers that are known stay
    assert found.live[BrokerKey("c", "a:0")].last_seen_ms == 7
    assert found.queues_of("W") == {}


def test_brokers_are_bounded_by_name_and_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BROKERS_MAX", 2)
    found = tables(broker("a"), broker("b"))
    with pytest.raises(TablesFullError, match="broker c at c:0 is one too many: 2 addresses of 2 names"):
        found.register(broker("c"), 0)
    with pytest.raises(TablesFullError):
        found.register(broker("a", 1), 0)
    with pytest.raises(TablesFullError):
        found.register(broker("d", address="a:0"), 0)
    assert found.register(broker("a"), 9).refusal is None
    assert sorted(found.brokers) == ["a", "b"]


def test_mappings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "ENTRIES_MAX", 2)
    registration = broker("a")
    wrapper = registration.body.topic_config_serialize_wrapper
    wrapper.topic_queue_mapping_info_map = {topic: TopicQueueMapping(topic=topic) for topic in "TUV"}
    found = RouteTables()
    with pytest.raises(TablesFullError, match="topics have mappings, the limit is 2"):
        found.register(registration, 0)
    assert not found.mappings
