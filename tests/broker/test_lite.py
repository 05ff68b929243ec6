"""Lite topics: sends, subscriptions, pops in order, retries in place, what a restart and a kill leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.harness import Link
from broker.lite_bench import LIGHT, NOTIFY, PARENT, POP_LITE, LiteBench, bodies, given, queue_of
from broker.pop_bench import BATCH_ACK
from contrailmq.wire.codes import ResponseCode


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[LiteBench]:
    made = LiteBench(tmp_path)
    yield made
    made.close()


def test_a_message_is_in_the_parents_queue_and_in_its_lite_topic(bench: LiteBench) -> None:
    bench.put("room1", "a", "b")
    bench.put("room2", "c")
    assert [one.body for one in bench.store.get(queue_of("room1"), 0, 0)] == [b"a", b"b"]
    assert [one.body for one in bench.store.get(queue_of("room2"), 0, 0)] == [b"c"]
    assert [one.body for one in bench.store.get(PARENT, 0, 0)] == [b"a", b"b", b"c"]


def test_a_client_gets_what_it_is_subscribed_to_in_the_order_of_each_lite_topic(bench: LiteBench) -> None:
    bench.subscribe("room1", "room2")
    bench.put("room1", "a", "b")
    bench.put("room2", "c")
    bench.put("room3", "x")
    found = bench.given()
    assert bodies(found) == ["a", "b", "c"]
    assert bench.given() == [], "they are in flight"
    bench.done(*found)
    assert (bench.position("room1"), bench.position("room2"), bench.position("room3")) == (2, 1, None)
    bench.put("room2", "d")
    assert bodies(bench.given()) == ["d"]


def test_nothing_behind_an_open_batch_leaves_its_lite_topic_and_others_go_on(bench: LiteBench) -> None:
    bench.subscribe("room1", "room2")
    bench.put("room1", "a", "b", "c")
    a, b = bench.given(maxMsgNum=2)
    bench.done(b)
    bench.put("room2", "x")
    assert bodies(bench.given()) == ["x"]
    bench.done(a)
    assert bodies(bench.given()) == ["c"]


def test_a_message_comes_again_in_place_and_what_is_done_behind_it_does_not(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.put("room1", "a", "b", "c")
    a, b, _ = bench.given(invisibleTime=1000)
    bench.done(b)
    bench.put("room1", "d")
    assert bench.given() == []
    bench.passes(1100)
    again = bench.given(maxMsgNum=3)
    assert [(one.body, one.deliveries) for one in again] == [(b"a", 1), (b"c", 1)]
    bench.done(a)  # by its first handle: that changes nothing
    assert bench.position("room1") == 0
    bench.done(*again)
    assert bench.position("room1") == 3
    assert [(one.body, one.deliveries) for one in bench.given()] == [(b"d", 0)]


def test_a_message_that_nobody_finishes_does_not_bring_the_done_ones_again(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.put("room1", *"abcdef")
    bench.done(*bench.given(invisibleTime=1000)[1:])
    for count in range(1, 5):
        bench.passes(1100)
        assert [(one.body, one.deliveries) for one in bench.given(invisibleTime=1000)] == [(b"a", count)]
    bench.put("room1", "g")
    bench.passes(1100)
    found = bench.given()
    assert bodies(found) == ["a", "g"]
    bench.done(*found)
    assert bench.position("room1") == 7


def test_a_pop_waits_and_is_woken_by_a_message_of_a_lite_topic_of_its_client(bench: LiteBench) -> None:
    one, two = Link(1), Link(2)
    bench.subscribe("room1")
    bench.subscribe("room2", client="c2")
    assert not bench.tell(POP_LITE, bench.lite_fields(pollTime=15_000), link=one)
    assert not bench.tell(POP_LITE, bench.lite_fields("c2", pollTime=15_000), link=two)
    bench.put("room2", "a")
    (answer,) = two.take()
    assert (bodies(given(answer)), one.take()) == (["a"], [])
    bench.passes(15_000, step_ms=1000)
    (answer,) = one.take()
    assert answer.code == ResponseCode.POLLING_TIMEOUT


def test_a_waiting_client_gets_a_message_that_is_due_again_or_let_go(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.put("room1", "a")
    (a,) = bench.given(invisibleTime=5000)
    link = Link(1)
    bench.tell(POP_LITE, bench.lite_fields(pollTime=15_000), link=link)
    bench.passes(5100)
    (again,) = given(link.take()[0])
    assert (again.body, again.deliveries) == (b"a", 1)
    bench.tell(POP_LITE, bench.lite_fields(pollTime=15_000), link=link)
    assert bench.later(again, 0).code == 0
    bench.passes(100)
    (again,) = given(link.take()[0])
    assert (again.body, again.deliveries) == (b"a", 2)
    answer = bench.later(a, 1000)
    assert (answer.code, "is not in flight" in (answer.remark or "")) == (ResponseCode.NO_MESSAGE, True)


def test_who_suspends_gets_the_whole_lite_topic_later_and_it_counts_as_no_attempt(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.put("room1", "a", "b")
    a, _ = bench.given(invisibleTime=1000)
    assert bench.later(a, 20_000, suspend="true").code == 0
    bench.passes(19_000, step_ms=500)
    assert bench.given() == []
    bench.passes(1100)
    again = bench.given()
    assert [(one.body, one.deliveries) for one in again] == [(b"a", 0), (b"b", 0)]


def test_who_asks_again_with_one_attempt_id_gets_the_same_again(bench: LiteBench) -> None:
    bench.subscribe("room1", "room2")
    bench.put("room1", "a")
    bench.put("room2", "b")
    assert bodies(bench.given(attemptId="one")) == ["a", "b"]
    assert bench.given(attemptId="two") == []
    assert [(one.body, one.deliveries) for one in bench.given(attemptId="one")] == [(b"a", 0), (b"b", 0)]


def test_a_clients_lite_topics_take_turns(bench: LiteBench) -> None:
    bench.subscribe("busy", "quiet")
    bench.put("busy", *"abcdef")
    bench.put("quiet", "x", "y")
    order = []
    for _ in range(4):
        (one,) = bench.given(maxMsgNum=1)
        order.append(one.lite_topic)
        bench.done(one)
    assert order == ["busy", "quiet", "busy", "quiet"]


def test_clients_of_a_shared_group_take_turns_and_groups_have_all(bench: LiteBench) -> None:
    bench.bind("h")
    links = {"c1": Link(1), "c2": Link(2), "d": Link(3)}
    for client, group in (("c1", "g"), ("c2", "g"), ("d", "h")):
        bench.subscribe("room1", client=client, group=group)
    got: dict[str, list[str]] = {client: [] for client in links}
    for body in "abcd":
        for client, link in links.items():
            group = "h" if client == "d" else "g"
            if not bench.lite.waiters.count((client, "", -1)):
                bench.tell(POP_LITE, bench.lite_fields(client, group, pollTime=15_000), link=link)
        bench.put("room1", body)
        for client, link in links.items():
            for answer in link.take():
                found = given(answer)
                got[client] += bodies(found)
                bench.done(*found, group="h" if client == "d" else "g")
    assert got["d"] == [*"abcd"]
    assert sorted(got["c1"] + got["c2"]) == [*"abcd"]
    assert all(got.values())


def test_what_was_in_flight_at_a_kill_stays_so_and_its_handles_count(tmp_path: Path) -> None:
    bench = LiteBench(tmp_path)
    bench.subscribe("room1")
    bench.put("room1", *"abc")
    a, b = bench.given(maxMsgNum=2, invisibleTime=20_000)
    bench.done(a)
    bench.kill()
    bench = LiteBench(tmp_path, clock=bench.clock)
    assert bench.position("room1") == 1
    assert bench.control("COMPLETE_ADD", "room1").code == 0
    assert bench.given() == []
    bench.done(b)
    assert bodies(bench.given()) == ["c"]
    bench.kill()
    bench = LiteBench(tmp_path, clock=bench.clock)
    bench.control("COMPLETE_ADD", "room1")
    link = Link(1)
    bench.tell(POP_LITE, bench.lite_fields(pollTime=15_000), link=link)
    bench.passes(10_100)
    (c,) = given(link.take()[0])
    assert (c.body, c.deliveries) == (b"c", 1)
    bench.close()


def test_a_stop_and_a_start_go_on_where_the_groups_were(tmp_path: Path) -> None:
    bench = LiteBench(tmp_path)
    bench.subscribe("room1")
    bench.put("room1", *"abc")
    bench.done(*bench.given(maxMsgNum=2))
    bench.close()
    bench = LiteBench(tmp_path, clock=bench.clock)
    bench.control("COMPLETE_ADD", "room1")
    assert bodies(bench.given()) == ["c"]
    bench.close()


def test_a_restart_forgets_no_lite_topic_that_expired(tmp_path: Path) -> None:
    bench = LiteBench(tmp_path, expiration=20)
    bench.subscribe("old")
    bench.put("old", "a", "b")
    bench.done(*bench.given())
    bench.passes(21 * 60_000, step_ms=10_000)
    assert bench.store.max_offset(queue_of("old"), 0) == 0
    assert bench.position("old") is None
    bench.put("old", "c")
    assert bench.given() == [], "its subscribers are gone with it, until they say again what they have"
    bench.control("COMPLETE_ADD", "old")
    bench.done(*bench.given())
    assert bench.position("old") == 1
    bench.close()
    bench = LiteBench(tmp_path, clock=bench.clock, expiration=20)
    assert (bench.position("old"), bench.store.max_offset(queue_of("old"), 0)) == (1, 1)
    bench.put("old", "d")
    bench.control("COMPLETE_ADD", "old")
    assert bodies(bench.given()) == ["d"]
    bench.close()


def test_a_lite_topic_with_new_messages_stays_and_one_without_a_limit_too(tmp_path: Path) -> None:
    bench = LiteBench(tmp_path, expiration=20)
    bench.put("fresh", "a")
    bench.passes(15 * 60_000, step_ms=10_000)
    bench.put("fresh", "b")
    bench.passes(15 * 60_000, step_ms=10_000)
    assert bench.store.max_offset(queue_of("fresh"), 0) == 2
    bench.close()
    bench = LiteBench(tmp_path, clock=bench.clock)
    bench.passes(60 * 60_000, step_ms=10_000)
    assert bench.store.max_offset(queue_of("fresh"), 0) == 2
    bench.close()


def test_one_client_of_an_exclusive_group_has_a_lite_topic_and_the_other_is_told(bench: LiteBench) -> None:
    bench.bind("x", lite_sub_model="Exclusive")
    one, two = Link(1), Link(2)
    bench.subscribe("room1", "room2", client="c1", group="x", link=one)
    bench.subscribe("room1", client="c1", group="x", link=one)
    assert one.requests == [], "nobody takes it away from itself"
    bench.subscribe("room1", client="c2", group="x", link=two)
    told = (NOTIFY, {"liteTopic": "room1", "consumerGroup": "x", "clientId": "c1"}, b"")
    assert one.requests == [told]
    bench.put("room1", "a")
    assert (bench.given("c1", "x"), bodies(bench.given("c2", "x"))) == ([], ["a"])
    bench.control("COMPLETE_ADD", "room1", "room2", client="c1", group="x", link=one)
    assert one.requests == [told, told], "it had not heard"
    assert sorted(bench.lite.registry.clients["c1"].queues) == [queue_of("room2")]


def test_where_a_new_subscriber_begins(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.put("room1", *"abcdef")
    bench.done(*bench.given(maxMsgNum=4))
    for option, expected in {
        ("POLICY", 0): "ef",
        ("POLICY", 1): "abcdef",
        ("POLICY", 2): "",
        ("OFFSET", 2): "cdef",
        ("OFFSET", 99): "",
        ("TAIL_N", 1): "f",  # before the position, which is the end now
        ("TIMESTAMP", 0): "abcdef",
    }.items():
        bench.control("PARTIAL_REMOVE", "room1")
        bench.subscribe("room1", option=option)
        found = bench.given()
        assert "".join(bodies(found)) == expected, option
        bench.done(*found)


def test_a_group_may_begin_anew_after_it_unsubscribed(bench: LiteBench) -> None:
    bench.bind("r", lite_sub_reset_offset_unsubscribe="true")
    bench.subscribe("room1", group="r")
    bench.put("room1", "a", "b")
    bench.done(*bench.given(group="r"), group="r")
    bench.control("PARTIAL_REMOVE", "room1", group="r")
    bench.subscribe("room1", group="r")
    assert bodies(bench.given(group="r")) == ["a", "b"]


def test_a_subscription_too_many_is_refused_with_its_own_code(tmp_path: Path) -> None:
    bench = LiteBench(tmp_path, settings={"maxLiteSubscriptionCount": "2"})
    bench.subscribe("room1", "room2")
    bench.subscribe("room2")
    answer = bench.control("PARTIAL_ADD", "room3")
    assert (answer.code, answer.remark) == (
        2018,
        "lite subscription quota exceeded 2: 2 there are, 1 more are wanted (maxLiteSubscriptionCount)",
    )
    bench.control("PARTIAL_REMOVE", "room1")
    bench.subscribe("room3")
    bench.close()


def test_a_lite_topic_too_many_is_refused_with_its_own_code(tmp_path: Path) -> None:
    bench = LiteBench(tmp_path, max_lmq_consume_queue_num=1)
    bench.put("room1", "a")
    answer = bench.ask_send("room2")
    assert (answer.code, "maxLmqConsumeQueueNum" in (answer.remark or "")) == (2017, True)
    bench.put("room1", "b")
    bench.close()


def test_a_client_that_is_silent_or_leaves_is_gone(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.subscribe("room1", client="c2")
    bench.control("COMPLETE_REMOVE", client="c2")
    assert [*bench.lite.registry.clients] == ["c1"]
    for _ in range(10):
        bench.passes(30_000, step_ms=1000)
        bench.control("COMPLETE_ADD", "room1")
    assert bench.lite.registry.count == 1
    bench.passes(360_000, step_ms=1000)
    assert (bench.lite.registry.count, len(bench.lite.registry), [*bench.lite.registry.clients]) == (0, 0, [])


def test_a_wildcard_group_has_all_lite_topics(bench: LiteBench) -> None:
    bench.bind("w", lite_sub_wildcard="true")
    bench.put("old", "a")
    bench.control("COMPLETE_ADD", group="w")
    assert bodies(bench.given(group="w")) == ["a"]
    bench.put("new", "b")
    assert bodies(bench.given(group="w")) == ["b"]
    assert bench.control("PARTIAL_ADD", "new", group="w").code == ResponseCode.ILLEGAL_OPERATION
    bench.control("COMPLETE_REMOVE", group="w")
    assert (bench.lite.registry.count, len(bench.lite.registry)) == (0, 0)


def test_an_ordinary_group_reads_the_parent_beside_it(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.put("room1", "a")
    bench.put("room2", "b")
    assert bodies(bench.given()) == ["a"]
    assert [one.body for one in bench.popped(PARENT, "plain")] == [b"a", b"b"]


def test_a_message_without_a_lite_topic_is_the_parents_alone(bench: LiteBench) -> None:
    answer = bench.ask_send("")
    assert answer.code == 0
    assert [*bench.store.queues()] == [(PARENT, 0)]


@pytest.mark.parametrize(
    ("properties", "said"),
    [({"TRAN_MSG": "true"}, "transaction"), ({"DELAY": "3"}, "delay"), ({"TIMER_DELAY_SEC": "3"}, "delay")],
)
def test_transactions_and_delayed_messages_do_not_go_to_lite_topics(
    bench: LiteBench, properties: dict[str, str], said: str
) -> None:
    answer = bench.ask_send("room1", **properties)
    assert (answer.code, said in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert not bench.store.queues()


@pytest.mark.parametrize("name", ["a$b", "a,b", "a/b", "../x", " ", "ü"])
def test_a_lite_topic_has_a_plain_name(bench: LiteBench, name: str) -> None:
    answer = bench.ask_send(name)
    assert (answer.code, "letters, digits" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert bench.control("PARTIAL_ADD", name).code == ResponseCode.ILLEGAL_OPERATION
    assert not bench.store.queues()


def test_without_light_queues_a_send_says_what_to_set(tmp_path: Path) -> None:
    bench = LiteBench(tmp_path, **(LIGHT | {"enable_multi_dispatch": False}))
    answer = bench.ask_send("room1")
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "enableLmq=true and enableMultiDispatch=true" in (answer.remark or "")
    bench.close()


def test_a_dead_letter_is_in_no_lite_topic(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.put("room1", "a")
    (a,) = bench.given()
    back = {"offset": str(a.message.physical_offset), "group": "g", "delayLevel": "-1", "originTopic": PARENT}
    assert bench.ask(36, back).code == 0
    bench.done(a)
    assert bench.store.max_offset(queue_of("room1"), 0) == 1
    (dead,) = bench.store.get("%DLQ%g", 0, 0)
    assert (dead.body, dead.properties["__LITE_TOPIC"]) == (b"a", "room1")
    assert bench.given() == []


def test_a_parent_is_deleted_with_its_lite_topics(tmp_path: Path) -> None:
    bench = LiteBench(tmp_path)
    bench.subscribe("room1")
    bench.put("room1", "a", "b")
    bench.done(bench.given()[0])
    bench.clock.advance(10)
    assert bench.ask(215, {"topic": PARENT}).code == 0
    assert (bench.store.max_offset(queue_of("room1"), 0), bench.position("room1")) == (0, None)
    bench.kill()
    bench = LiteBench(tmp_path, clock=bench.clock)
    assert (bench.store.max_offset(queue_of("room1"), 0), bench.position("room1")) == (0, None)
    bench.put("room1", "new")
    bench.control("COMPLETE_ADD", "room1")
    assert bodies(bench.given()) == ["new"]
    bench.close()


def test_a_group_that_is_deleted_forgets_where_it_was(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.put("room1", "a", "b")
    bench.done(bench.given(maxMsgNum=1)[0])
    assert bench.ask(207, {"groupName": "g", "cleanOffset": "false"}).code == 0
    assert bench.position("room1") is None
    assert bench.ask_pop_lite().code == ResponseCode.INVALID_PARAMETER
    bench.bind("g")
    bench.subscribe("room1")
    assert bodies(bench.given()) == ["a", "b"]


def test_what_is_asked_wrongly_is_refused(bench: LiteBench) -> None:
    bench.subscribe("room1")
    bench.put("room1", "a")
    (a,) = bench.given()
    for answer, code in (
        (bench.ask_pop_lite(topic="TBW102"), ResponseCode.INVALID_PARAMETER),
        (bench.ask_pop_lite(topic="Nowhere"), ResponseCode.TOPIC_NOT_EXIST),
        (bench.ask_pop_lite(group="other"), ResponseCode.INVALID_PARAMETER),
        (bench.ask_pop_lite(maxMsgNum=33), ResponseCode.INVALID_PARAMETER),
        (bench.control("PARTIAL_ADD", "room1", group="other"), ResponseCode.ILLEGAL_OPERATION),
        (bench.control("PARTIAL_ADD", "room1", topic="Other"), ResponseCode.ILLEGAL_OPERATION),
        (bench.control("ADD", "room1"), ResponseCode.ILLEGAL_OPERATION),
        (bench.ask(200071), ResponseCode.ILLEGAL_OPERATION),
        (bench.ask(200051, a.fields("g") | {"offset": "7"}), ResponseCode.NO_MESSAGE),
        (bench.ask(200051, a.fields("g") | {"queueId": "1"}), ResponseCode.INVALID_PARAMETER),
        (bench.ask(200051, a.fields("other")), ResponseCode.INVALID_PARAMETER),
        (bench.ask(200053, a.fields("g") | {"offset": "1", "invisibleTime": "1"}), ResponseCode.NO_MESSAGE),
    ):
        assert answer.code == code, (answer.code, answer.remark)
    batch = (
        b'{"brokerName":"b","acks":[{"c":"g","t":"Chat","r":"0","so":0,"q":0,"rq":999,"pt":%d,"it":10000,"b":"AQ=="}]}'
        % a.handle.pop_time_ms
    )
    assert bench.ask(BATCH_ACK, {}, batch).code == ResponseCode.ILLEGAL_OPERATION


def test_a_lite_topic_that_was_cleaned_away_begins_anew_and_loses_nothing(bench: LiteBench) -> None:
    for name in ("told", "late"):
        bench.put(name, *"abc")
    bench.subscribe("told", "late")
    bench.done(*bench.given())
    bench.control("PARTIAL_REMOVE", "late")
    bench.store.delete_topics([queue_of("told"), queue_of("late")])  # cleanExpiredConsumerQueue, when the log is gone
    bench.put("told", "d")
    bench.put("late", "e")
    assert bodies(bench.given()) == ["d"]
    bench.subscribe("late")
    bench.node.offsets.commit("g", queue_of("late"), 0, 3)
    bench.ask(200079, {"group": "g"})
    bench.put("late", "f")
    assert bodies(bench.given()) == ["e", "f"]
