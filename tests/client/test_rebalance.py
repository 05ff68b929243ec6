"""Shares must equal those of the Java client, or a mixed group reads queues twice or never."""

from __future__ import annotations

import pytest

from contrailmq.client.errors import ClientConfigError
from contrailmq.client.rebalance import (
    AllocationStrategy,
    AverageByCircleStrategy,
    AverageStrategy,
    ConfigStrategy,
    ConsistentHashStrategy,
    MachineRoomNearbyStrategy,
    MachineRoomStrategy,
    allocate,
    ring_hash,
)
from contrailmq.message import MessageQueue


def queues(count: int, broker: str = "broker-a", topic: str = "TopicTest") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, queue_id) for queue_id in range(count)]


def shares(strategy: AllocationStrategy, count: int, clients: int, broker: str = "broker-a") -> list[list[int]]:
    names = [f"c{index + 1}" for index in range(clients)]
    return [
        [queue.queue_id for queue in allocate(strategy, client_id=name, queues=queues(count, broker), client_ids=names)]
        for name in names
    ]


@pytest.mark.parametrize(
    ("strategy", "count", "clients", "broker", "expected"),
    [
        (AverageStrategy(), 8, 3, "b", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (AverageStrategy(), 2, 3, "b", [[0], [1], []]),
        (AverageStrategy(), 10, 4, "b", [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (AverageStrategy(), 4, 4, "b", [[0], [1], [2], [3]]),
        (AverageByCircleStrategy(), 8, 3, "b", [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (MachineRoomStrategy(["room1"]), 8, 3, "room1@b", [[0, 1, 6], [2, 3, 7], [4, 5]]),
        (MachineRoomStrategy(["room1"]), 8, 3, "room2@b", [[], [], []]),
        (MachineRoomStrategy(["room1"]), 8, 3, "room1@b@c", [[], [], []]),
        (ConsistentHashStrategy(), 8, 3, "broker-a", [[0, 4, 5, 7], [1, 6], [2, 3]]),
    ],
)
def test_shares_equal_those_of_the_java_client(
    strategy: AllocationStrategy, count: int, clients: int, broker: str, expected: list[list[int]]
) -> None:
    assert shares(strategy, count, clients, broker) == expected


def test_ring_hashes_equal_those_of_the_java_client() -> None:
    assert ring_hash("c1-0") == 3886541579
    assert ring_hash("MessageQueue [topic=TopicTest, brokerName=broker-a, queueId=0]") == 1987926524


@pytest.mark.parametrize("strategy", [AverageStrategy(), AverageByCircleStrategy(), ConsistentHashStrategy()])
@pytest.mark.parametrize("clients", range(1, 12))
@pytest.mark.parametrize("count", [1, 2, 7, 8, 16, 33])
def test_every_queue_has_exactly_one_owner(strategy: AllocationStrategy, count: int, clients: int) -> None:
    assert sorted(q for share in shares(strategy, count, clients) for q in share) == list(range(count))


def test_order_of_the_inputs_does_not_matter() -> None:
    mixed = list(reversed(queues(8)))
    ids = ["c2", "c3", "c1"]
    assert allocate(AverageStrategy(), client_id="c1", queues=mixed, client_ids=ids) == queues(8)[:3]


def test_config_ignores_the_group() -> None:
    fixed = [MessageQueue("T", "b", 5)]
    assert allocate(ConfigStrategy(fixed), client_id="c1", queues=queues(8), client_ids=["c1", "c2"]) == fixed


def test_nearby_gives_orphan_rooms_to_everybody() -> None:
    strategy = MachineRoomNearbyStrategy(
        AverageStrategy(),
        broker_room=lambda queue: queue.broker_name.split("@")[0],
        client_room=lambda client: client.split("-")[0],
    )
    everything = queues(4, "A@b") + queues(4, "B@b")
    ids = ["A-0", "A-1"]
    got = [
        [(q.broker_name[0], q.queue_id) for q in allocate(strategy, client_id=i, queues=everything, client_ids=ids)]
        for i in ids
    ]
    assert got == [[("A", 0), ("A", 1), ("B", 0), ("B", 1)], [("A", 2), ("A", 3), ("B", 2), ("B", 3)]]
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"


def test_an_empty_room_is_an_error() -> None:
    strategy = MachineRoomNearbyStrategy(AverageStrategy(), broker_room=lambda _: "", client_room=lambda _: "A")
    with pytest.raises(ClientConfigError, match="machine room of broker"):
        allocate(strategy, client_id="c1", queues=queues(1), client_ids=["c1"])


def test_a_client_that_the_broker_does_not_list_yet_gets_nothing() -> None:
    assert allocate(AverageStrategy(), client_id="new", queues=queues(4), client_ids=["c1"]) == []


def test_empty_inputs_are_errors() -> None:
    with pytest.raises(ClientConfigError, match="queues and client ids"):
        allocate(AverageStrategy(), client_id="c1", queues=[], client_ids=["c1"])
    with pytest.raises(ClientConfigError, match="client id"):
        allocate(AverageStrategy(), client_id="", queues=queues(1), client_ids=["c1"])
