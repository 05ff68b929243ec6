"""SendMessage, EndTransaction, RecallMessage: what arrives in the broker is what was sent, where it belongs."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from contrailmq import Admin
from contrailmq.message import decode_properties
from contrailmq.proxy.messages import BODY_BYTES_MAX, stored_properties, type_of
from contrailmq.proxy.producing import jump_hash, parse_transaction_id
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code, Refused
from contrailmq.testing import LocalCluster
from proxy.calling import Caller, caller_of, message, proxy_of, topic


def run(cluster: LocalCluster, work: Callable[[Caller], Awaitable[None]]) -> None:
    async def main() -> None:
        async with caller_of(cluster.namesrv) as caller:
            await work(caller)

    asyncio.run(asyncio.wait_for(main(), 120))


def stored(cluster: LocalCluster, name: str, key: str) -> Any:
    with Admin(namesrv=cluster.namesrv) as admin:
        [found] = admin.messages_by_key(name, key)
    return found


@pytest.mark.parametrize(("group", "queue"), [("order-1", 3), ("order-2", 2), ("g0", 0), ("g1", 6)])
def test_the_queue_of_a_message_group_is_the_reference_s(group: str, queue: int) -> None:
    value = 0
    for unit in group:
        value = (31 * value + ord(unit)) & 0xFFFFFFFF
    assert jump_hash(value - (1 << 32) if value >> 31 else value, 8) == queue


def test_a_message_arrives_with_its_body_tag_keys_and_properties(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        sent = message("plain", b"\0\xffhello", message_id="01AA01", tag="T1", keys=["whole-1", "whole-2"])
        sent.user_properties["color"] = "blue"
        answer = await caller.call("SendMessage", messages=[sent])
        assert answer.status.code == Code.OK, answer
        [entry] = answer.entries
        assert (entry.status.code, entry.message_id, entry.transaction_id) == (Code.OK, "01AA01", "")

    run(cluster, work)
    found = stored(cluster, "plain", "whole-2")
    assert (found.body, found.tags, found.message_id) == (b"\0\xffhello", "T1", "01AA01")
    assert found.properties["color"] == "blue"
    assert found.properties["KEYS"] == "whole-1 whole-2"


def test_a_gzip_body_is_stored_plain_so_that_every_consumer_reads_it(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        packed = gzip.compress(b"much " * 1000)
        digest = v2.Digest(type=2, checksum=hashlib.md5(packed).hexdigest())
        sent = message("plain", packed, body_encoding=2, keys=["packed-1"], body_digest=digest)
        assert (await caller.call("SendMessage", messages=[sent])).status.code == Code.OK

    run(cluster, work)
    found = stored(cluster, "plain", "packed-1")
    assert (found.stored_body, found.sys_flag & 1) == (b"much " * 1000, 0)


def test_all_messages_of_a_group_go_to_one_queue_and_others_in_turns(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        for number in range(8):
            sent = message("ordered", message_type=2, message_group="g1", keys=[f"ordered-{number}"])
            assert (await caller.call("SendMessage", messages=[sent])).status.code == Code.OK
            plain = message("plain", keys=[f"turn-{number}"])
            assert (await caller.call("SendMessage", messages=[plain])).status.code == Code.OK

    run(cluster, work)
    assert {stored(cluster, "ordered", f"ordered-{number}").queue_id for number in range(8)} == {6}
    assert {stored(cluster, "plain", f"turn-{number}").queue_id for number in range(8)} == set(range(8))


LONG = "x" * 64
REFUSALS = {
    "no message": ([], Code.MESSAGE_CORRUPTED),
    "two topics": ([message("plain"), message("ordered")], Code.MESSAGE_CORRUPTED),
    "no body": ([message("plain", b"")], Code.MESSAGE_BODY_EMPTY),
    "a large body": ([message("plain", bytes(BODY_BYTES_MAX + 1))], Code.MESSAGE_BODY_TOO_LARGE),
    "a body that unpacks to too much": (
        [message("plain", gzip.compress(bytes(BODY_BYTES_MAX + 1)), body_encoding=2)],
        Code.MESSAGE_BODY_TOO_LARGE,
    ),
    "gzip that is none": ([message("plain", b"no gzip", body_encoding=2)], Code.MESSAGE_CORRUPTED),
    "another digest": ([message("plain", body_digest=v2.Digest(type=3, checksum="AB"))], Code.MESSAGE_CORRUPTED),
    "a blank tag": ([message("plain", tag=" ")], Code.ILLEGAL_MESSAGE_TAG),
    "a tag with a bar": ([message("plain", tag="a|b")], Code.ILLEGAL_MESSAGE_TAG),
    "a blank key": ([message("plain", keys=["\t"])], Code.ILLEGAL_MESSAGE_KEY),
    "no id": ([message("plain", message_id="")], Code.ILLEGAL_MESSAGE_ID),
    "a long group": ([message("ordered", message_type=2, message_group=LONG)], Code.ILLEGAL_MESSAGE_GROUP),
    "an order in a plain topic": (
        [message("plain", message_type=2, message_group="g")],
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "two transactions": ([message("decided", message_type=4)] * 2, Code.BAD_REQUEST),
    "a lite message without its lite topic": (
        [message("lite", message_type=5)],
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a lite message to a plain topic": (
        [message("plain", message_type=5, lite_topic="room1")],
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a plain message to a topic of lite topics": ([message("lite")], Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "a lite topic with a dollar": ([message("lite", message_type=5, lite_topic="a$b")], Code.ILLEGAL_LITE_TOPIC),
    "a long lite topic": ([message("lite", message_type=5, lite_topic="a" * 65)], Code.ILLEGAL_LITE_TOPIC),
    "two lite topics": (
        [message("lite", message_type=5, lite_topic=name) for name in ("room1", "room2")],
        Code.BAD_REQUEST,
    ),
    "a priority in a plain topic": (
        [message("plain", message_type=6, priority=1)],
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a priority below none": ([message("plain", message_type=6, priority=-1)], Code.BAD_REQUEST),
    "an unknown topic": ([message("nowhere")], Code.TOPIC_NOT_FOUND),
    "an illegal topic": ([message("no/where")], Code.ILLEGAL_TOPIC),
    "the cluster's own topic": ([message("RMQ_SYS_TRANS_HALF_TOPIC")], Code.ILLEGAL_TOPIC),
}


def test_what_is_wrong_with_a_message_is_said_by_its_code(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        wrong = message("plain")
        wrong.user_properties["UNIQ_KEY"] = "mine"
        late = message("later", message_type=3)
        late.system_properties.delivery_timestamp.FromSeconds(int(time.time()) + 90_000)
        more = {
            "a reserved property": ([wrong], Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
            "two days away": ([late], Code.ILLEGAL_DELIVERY_TIME),
        }
        seen = {}
        for name, (messages, _) in (REFUSALS | more).items():
            seen[name] = Code((await caller.call("SendMessage", messages=messages)).status.code)
        assert seen == {name: code for name, (_, code) in (REFUSALS | more).items()}

    run(cluster, work)


def test_without_a_client_id_nothing_is_served(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with caller_of(cluster.namesrv, client_id="") as caller:
            answer = await caller.call("SendMessage", messages=[message("plain")])
            assert answer.status.code == Code.CLIENT_ID_REQUIRED

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_delayed_message_can_be_recalled_until_it_is_due(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        sent = message("later", message_type=3, message_id="01DD01", keys=["recalled-1"])
        sent.system_properties.delivery_timestamp.FromSeconds(int(time.time()) + 3600)
        [entry] = (await caller.call("SendMessage", messages=[sent])).entries
        assert entry.recall_handle
        answer = await caller.call("RecallMessage", topic=topic("later"), recall_handle=entry.recall_handle)
        assert (answer.status.code, answer.message_id) == (Code.OK, "01DD01")
        answer = await caller.call("RecallMessage", topic=topic("later"), recall_handle="bm90IG9uZQ==")
        assert answer.status.code == Code.BAD_REQUEST

    run(cluster, work)


def test_a_half_message_is_there_when_it_is_committed_by_any_proxy_and_never_when_rolled_back(
    cluster: LocalCluster,
) -> None:
    async def main() -> None:
        ids = {}
        async with caller_of(cluster.namesrv) as caller:
            for name in ("kept", "undone"):
                sent = message("decided", name.encode(), message_type=4, keys=[name], message_id=f"01{name}")
                [entry] = (await caller.call("SendMessage", messages=[sent])).entries
                ids[name] = entry.transaction_id
        async with caller_of(cluster.namesrv, client_id="another@2@0@y") as other:  # the first proxy is gone
            for name, resolution in (("kept", 1), ("undone", 2)):
                answer = await other.call(
                    "EndTransaction",
                    topic=topic("decided"),
                    message_id=f"01{name}",
                    transaction_id=ids[name],
                    resolution=resolution,
                    source=1,
                )
                assert answer.status.code == Code.OK, answer
            answer = await other.call("EndTransaction", topic=topic("decided"), transaction_id="?", resolution=1)
            assert answer.status.code == Code.INVALID_TRANSACTION_ID

    asyncio.run(asyncio.wait_for(main(), 120))
    assert stored(cluster, "decided", "kept").body == b"kept"
    with Admin(namesrv=cluster.namesrv) as admin:
        assert admin.messages_by_key("decided", "undone") == []


@pytest.mark.parametrize("text", ["", "?", "YWJj", "YSBiIGMgZA=="])
def test_a_transaction_id_of_somebody_else_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_transaction_id(text)
    assert refused.value.code == Code.INVALID_TRANSACTION_ID


def test_a_priority_is_stored_under_the_reference_s_name() -> None:
    sent = message("urgent", message_type=6, priority=3)
    assert decode_properties(stored_properties(sent, type_of(sent), "10.0.0.1:1").encode())["_SYS_MSG_PRIORITY_"] == "3"
    untyped = message("urgent", message_type=0, priority=0)
    assert type_of(untyped) == 6


def test_a_send_to_a_broker_that_is_gone_says_which_and_why() -> None:
    with LocalCluster() as dying:
        with Admin(namesrv=dying.namesrv) as admin:
            admin.create_topic("soon-gone", queues=1)

        async def work(caller: Caller) -> None:
            assert (await caller.call("SendMessage", messages=[message("soon-gone")])).status.code == Code.OK
            await asyncio.get_running_loop().run_in_executor(None, dying.kill_broker)
            answer = await caller.call("SendMessage", messages=[message("soon-gone")])
            assert answer.status.code == Code.PROXY_TIMEOUT
            assert "cannot connect to 127.0.0.1:" in answer.status.message

        run(dying, work)


def test_a_slave_s_refusal_is_no_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route may be a moment old, and its master a slave by now. Clients wait after TOO_MANY_REQUESTS; after any other
    error of the server they try another queue at once, which may be another broker's."""

    async def main(cluster: LocalCluster) -> None:
        slave = cluster.broker_addresses[cluster.slave_index()]

        async def master(broker_name: str, topic: str) -> str:
            return slave

        async with proxy_of(cluster.namesrv) as server, grpc.aio.insecure_channel(server.address) as channel:
            assert server.service is not None
            monkeypatch.setattr(server.service._cluster, "master", master)
            answer = await Caller(channel).call("SendMessage", messages=[message("plain")])
            assert answer.status.code == Code.INTERNAL_SERVER_ERROR, answer
            assert "send to the master" in answer.status.message

    with LocalCluster(slaves=1) as cluster:
        with Admin(namesrv=cluster.namesrv) as admin:
            admin.create_topic("plain", queues=1)
        asyncio.run(asyncio.wait_for(main(cluster), 120))
