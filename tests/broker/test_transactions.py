"""Half messages, their ends and the check-back, on a fake clock and without sockets."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import golden_stores
from broker.harness import ROUNDS, AtOnce, Bench, Link, send_fields
from contrailmq.broker.state.duty import Duty
from contrailmq.broker.state.incoming import IncomingMessage
from contrailmq.broker.transactions.halves import GROUP
from contrailmq.broker.transactions.transaction_check import CheckLimits, Decision, decide
from contrailmq.message import PROPERTIES_BYTES_MAX, StoredMessage, SystemTopic
from contrailmq.message.codec import decode_record, encode_record
from contrailmq.store.base.clock import ManualClock
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.header import Command

COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"
SETTINGS = {"transactionTimeOut": "6000", "transactionCheckInterval": "6000"}


class TransactionBench(Bench):
    def __init__(
        self, path: Path, *, checks_max: int = 3, clock: ManualClock | None = None, **store_settings: object
    ) -> None:
        settings = SETTINGS | {"transactionCheckMax": str(checks_max)}
        super().__init__(path, settings=settings, clock=clock, worker=AtOnce(), **store_settings)
        self.service = self.transactions
        self.service.start()

    def prepare(self, body: bytes, **properties: str) -> Command:
        (answer,) = self.tell_prepared(body, **properties)
        assert answer.code == 0, answer.remark
        return answer

    def tell_prepared(self, body: bytes, **properties: str) -> list[Command]:
        values = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"K-{body.decode()}"} | properties
        fields = send_fields("T", properties=values, f="4", e="1", g=str(self.clock.now_ms()))
        return self.tell(310, fields, body)

    def prepare_durably(self, body: bytes) -> Command:
        """Where nothing is synced but what the test says."""
        assert self.tell_prepared(body) == []
        self.node.durable(self.store.log_max_offset)
        (answer,) = self.link.take()
        return answer

    def end(self, prepared: Command, how: str, **other: str) -> list[Command]:
        physical = int(prepared.ext["msgId"][-16:], 16)
        fields = {
            "producerGroup": "pg",
            "tranStateTableOffset": prepared.ext["queueOffset"],
            "commitLogOffset": str(physical),
            "commitOrRollback": how,
            "fromTransactionCheck": "false",
            "msgId": prepared.ext["transactionId"],
            "transactionId": prepared.ext["transactionId"],
        }
        return self.tell(37, fields | other)

    def answer_check(self, request: dict[str, str], how: str) -> Command:
        fields = {
            "producerGroup": "pg",
            "tranStateTableOffset": request["tranStateTableOffset"],
            "commitLogOffset": request["commitLogOffset"],
            "commitOrRollback": how,
            "fromTransactionCheck": "true",
            "msgId": request["msgId"],
            "transactionId": request["transactionId"],
        }
        return self.ask(37, fields)

    def run_ms(self, milliseconds: int) -> None:
        for _ in range(milliseconds // 100):
            self.clock.advance(100)
            self.service.tick(self.store.store_clock.look())
            self.settle()
            while self.service.interval_ms == 0:
                self.service.tick(self.store.store_clock.look())
                self.settle()

    def bodies(self, topic: str = "T", queue_id: int = 1) -> list[bytes]:
        found: list[bytes] = []
        while part := self.store.get(topic, queue_id, len(found), 1000):
            found += (message.body for message in part)
        return found

    def checks(self, link: Link) -> list[tuple[dict[str, str], StoredMessage]]:
        found = [(ext, decode_record(body)) for code, ext, body in link.requests if code == 39]
        link.requests.clear()
        return found

    def restarted(self, path: Path) -> TransactionBench:
        """The same directory after a crash; the tables were saved, as far as the service had committed them."""
        self.run(self.saver.save("consumerOffset.json", "topics.json"))
        return self.restarted_unsaved(path)

    def restarted_unsaved(self, path: Path, **store_settings: object) -> TransactionBench:
        """The same directory after a crash that came before the tables were saved."""
        now_ms = self.clock.now_ms()
        self.store.abandon()
        self.loop.close()
        self._worker.shutdown()
        return TransactionBench(
            path, checks_max=self.config.transaction_check_max, clock=ManualClock(now_ms), **store_settings
        )


@pytest.fixture
def tx(tmp_path: Path) -> Iterator[TransactionBench]:
    made = TransactionBench(tmp_path)
    yield made
    made.close()


def half_messages(bench: Bench) -> list[StoredMessage]:
    return list(bench.store.get(SystemTopic.HALF, 0, 0, 1000))


def op_bodies(bench: Bench) -> list[bytes]:
    return [m.body for m in bench.store.get(SystemTopic.OP_HALF, 0, 0, 1000)]


# --------------------------------------------------------------------------------------------------- prepare and end


def test_with_synchronous_flush_a_commit_is_confirmed_when_its_record_is_durable(tmp_path: Path) -> None:
    tx = TransactionBench(tmp_path, flush_disk_type="SYNC_FLUSH")
    tx.store.request_flush = lambda: None  # type: ignore[method-assign]
    prepared = tx.prepare_durably(b"a")
    assert tx.end(prepared, COMMIT) == []
    assert tx.end(prepared, COMMIT) == []  # said again: it is no safer than the first time
    tx.node.durable(tx.store.log_max_offset - 1)
    assert tx.link.take() == []
    tx.node.durable(tx.store.log_max_offset)
    assert [answer.code for answer in tx.link.take()] == [0, 0]
    lost = tx.prepare_durably(b"b")
    assert tx.end(lost, COMMIT) == []
    tx.node.durable(-1)
    (answer,) = tx.link.take()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    tx.close()


def test_with_slaves_that_are_waited_for_a_commit_is_confirmed_when_they_have_it(tmp_path: Path) -> None:
    tx = TransactionBench(tmp_path, broker_role="SYNC_MASTER", in_sync_replicas=2)
    reached = 0
    tx.node.replicas.reached_by = lambda _slaves: reached
    tx.node.replicas.slaves_in_sync = lambda: 1
    tx.node.replicas.look()
    tx.tell_prepared(b"a")
    reached = tx.store.log_max_offset
    tx.node.replicas.advanced()
    (prepared,) = tx.link.take()
    assert tx.end(prepared, COMMIT) == []
    reached = tx.store.log_max_offset
    tx.node.replicas.advanced()
    (answer,) = tx.link.take()
    assert answer.code == 0
    tx.close()


def test_a_prepared_message_is_invisible_and_its_answer_names_the_half_message(tx: TransactionBench) -> None:
    answer = tx.prepare(b"a")
    assert tx.bodies() == []
    (half,) = half_messages(tx)
    assert answer.ext["queueId"] == "1"
    assert answer.ext["queueOffset"] == "0"
    assert int(answer.ext["msgId"][-16:], 16) == half.physical_offset
    assert half.sys_flag & 0xC == 0
    assert half.properties["REAL_TOPIC"] == "T"
    assert half.properties["REAL_QID"] == "1"
    assert half.properties["__transactionId__"] == "K-a"
    assert tx.service.pending() == {"T": 1}


def test_a_half_message_that_the_store_refuses_does_not_count_as_pending(tx: TransactionBench) -> None:
    values = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "K", "filler": "x" * 32_700}
    answer = tx.send("T", b"m", properties=values, f="4", g=str(tx.clock.now_ms()))
    assert answer.code != 0
    assert tx.service.pending() == {}
    tx.prepare(b"good")
    assert tx.service.pending() == {"T": 1}


def test_a_committed_message_is_visible_and_points_back_at_its_half(tx: TransactionBench) -> None:
    """Property for property as in the golden store: REAL_TOPIC and REAL_QID go, TRAN_MSG and PGROUP stay."""
    prepared = tx.prepare(b"a", TAGS="t", KEYS="k")
    (answer,) = tx.end(prepared, COMMIT)
    assert answer.code == 0
    (message,) = tx.store.get("T", 1, 0)
    (half,) = half_messages(tx)
    assert message.sys_flag & 0xC == 8
    assert message.prepared_transaction_offset == half.physical_offset
    assert message.born_time_ms == half.born_time_ms
    assert set(half.properties) - set(message.properties) == {"REAL_TOPIC", "REAL_QID"}
    assert message.properties["TRAN_MSG"] == "true"
    assert tx.service.pending() == {}


def test_a_rolled_back_message_is_never_visible(tx: TransactionBench) -> None:
    prepared = tx.prepare(b"a")
    (answer,) = tx.end(prepared, ROLLBACK)
    assert answer.code == 0
    tx.run_ms(120_000)
    assert tx.bodies() == []
    assert len(half_messages(tx)) == 1


def test_an_unknown_state_gets_no_answer_and_changes_nothing(tx: TransactionBench) -> None:
    assert tx.end(tx.prepare(b"a"), UNKNOWN) == []
    assert tx.service.pending() == {"T": 1}


def test_ends_share_op_messages_after_three_seconds_or_4096_bytes(tx: TransactionBench) -> None:
    for number in range(10):
        tx.end(tx.prepare(b"%d" % number), COMMIT if number % 2 else ROLLBACK)
    assert op_bodies(tx) == []
    tx.run_ms(3200)
    assert op_bodies(tx) == [b"0,1,2,3,4,5,6,7,8,9,"]
    (op,) = tx.store.get(SystemTopic.OP_HALF, 0, 0)
    assert op.encoded_properties == b"WAIT\x01true\x02TAGS\x01d\x02"
    for number in range(1200):
        tx.end(tx.prepare(b"m%d" % number), ROLLBACK)
    assert len(op_bodies(tx)) == 2
    assert len(op_bodies(tx)[1]) >= 4096


def test_a_commit_said_twice_delivers_once(tx: TransactionBench) -> None:
    prepared = tx.prepare(b"a")
    assert tx.end(prepared, COMMIT)[0].code == 0
    assert tx.end(prepared, COMMIT)[0].code == 0
    tx.run_ms(4000)
    assert tx.end(prepared, COMMIT)[0].code == 1
    assert tx.bodies() == [b"a"]


def test_a_commit_after_a_rollback_stays_invisible(tx: TransactionBench) -> None:
    prepared = tx.prepare(b"a")
    tx.end(prepared, ROLLBACK)
    tx.end(prepared, COMMIT)
    tx.run_ms(10_000)
    tx.end(prepared, COMMIT)
    assert tx.bodies() == []


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"producerGroup": "other"}, 1, "producer group wrong"),
        ({"tranStateTableOffset": "7"}, 1, "offset wrong: the message has 0, not 7"),
        ({"commitLogOffset": "1"}, 1, "no half message at 1"),
        ({"commitOrRollback": "1"}, 1, "8 \\(commit\\)"),
    ],
)
def test_an_end_that_does_not_fit_is_refused_with_the_reason(
    tx: TransactionBench, change: dict[str, str], code: int, text: str
) -> None:
    (answer,) = tx.end(tx.prepare(b"a"), COMMIT, **change)
    assert answer.code == code
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(answer.remark)
    assert tx.service.pending() == {"T": 1}


def test_an_own_end_after_the_immunity_is_refused_and_the_answer_to_a_check_counts(tx: TransactionBench) -> None:
    prepared = tx.prepare(b"a", CHECK_IMMUNITY_TIME_IN_SECONDS="8")
    tx.clock.advance(9000)
    assert tx.end(prepared, COMMIT)[0].code == 604
    assert tx.end(prepared, COMMIT, fromTransactionCheck="true")[0].code == 0


def test_retries_and_dead_letters_of_committed_messages_are_no_half_messages(tx: TransactionBench) -> None:
    tx.end(tx.prepare(b"a"), COMMIT)
    (message,) = tx.store.get("T", 1, 0)
    fields = {"offset": str(message.physical_offset), "group": "g", "originTopic": "T"}
    assert tx.ask(36, fields | {"delayLevel": "-1"}).code == 0
    assert tx.bodies("%DLQ%g", 0) == [b"a"]
    assert tx.ask(36, fields | {"delayLevel": "1"}).code == 0
    assert len(half_messages(tx)) == 1


def test_a_slave_ends_nothing(tx: TransactionBench) -> None:
    prepared = tx.prepare(b"a")
    tx.store.config = tx.store.config.replaced(broker_role="SLAVE")
    tx.node.duty = Duty.FOLLOW
    assert tx.end(prepared, COMMIT)[0].code == 11
    assert tx.bodies() == []
    assert tx.service.pending() == {"T": 1}


# -------------------------------------------------------------------------------------------------------- check-back


def test_a_half_message_is_asked_about_until_somebody_knows(tx: TransactionBench) -> None:
    producer = Link(40_001)
    tx.heartbeat("T", link=producer)
    tx.prepare(b"a")
    tx.run_ms(5900)
    assert tx.checks(producer) == []
    tx.run_ms(500)
    ((request, body),) = tx.checks(producer)
    copy = half_messages(tx)[-1]
    assert request["commitLogOffset"] == str(copy.physical_offset)
    assert request["tranStateTableOffset"] == str(copy.queue_offset)
    assert request["msgId"] == request["transactionId"] == "K-a"
    assert request["offsetMsgId"] == copy.offset_message_id
    assert (body.topic, body.queue_id, body.body) == ("T", 1, b"a")
    assert body.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert tx.answer_check(request, COMMIT).code == 0
    assert tx.bodies() == [b"a"]
    tx.run_ms(60_000)
    assert tx.checks(producer) == []
    assert tx.bodies() == [b"a"]


def test_a_half_message_that_nobody_knows_is_given_up(tx: TransactionBench) -> None:
    producer = Link(40_001)
    tx.heartbeat("T", link=producer)
    tx.prepare(b"a")
    tx.run_ms(60_000)
    assert len(tx.checks(producer)) == 3
    assert tx.bodies("TRANS_CHECK_MAX_TIME_TOPIC", 0) == [b"a"]
    assert tx.service.pending() == {}
    assert tx.bodies() == []
    (given_up,) = tx.store.get(SystemTopic.CHECK_MAX_TIME, 0, 0)
    assert given_up.properties["REAL_TOPIC"] == "T"
    assert tx.ask(323, {"topic": "T", "msgId": given_up.offset_message_id}).code == 0
    tx.run_ms(7000)
    ((request, _),) = tx.checks(producer)
    assert tx.answer_check(request, COMMIT).code == 0
    assert tx.bodies() == [b"a"]


def test_with_synchronous_flush_a_half_message_is_asked_about_again_when_its_copy_is_durable(tmp_path: Path) -> None:
    tx = TransactionBench(tmp_path, flush_disk_type="SYNC_FLUSH")
    tx.store.request_flush = lambda: None  # type: ignore[method-assign]
    producer = Link(40_001)
    tx.heartbeat("T", link=producer)
    tx.prepare_durably(b"a")
    for _ in range(60):
        tx.store.flush()
        tx.node.durable(tx.store.log_max_offset)
        tx.run_ms(1000)
    assert len(tx.checks(producer)) == 3
    (given_up,) = tx.store.get(SystemTopic.CHECK_MAX_TIME, 0, 0)
    assert tx.tell(323, {"topic": "T", "msgId": given_up.offset_message_id}) == []
    tx.node.durable(tx.store.log_max_offset)
    (answer,) = tx.link.take()
    assert answer.code == 0
    tx.close()


def test_an_end_sent_before_a_check_moved_the_half_message_still_ends_it(tx: TransactionBench) -> None:
    """The reference delivers such a message twice: for the old place and for the new one."""
    producer = Link(40_001)
    tx.heartbeat("T", link=producer)
    prepared = tx.prepare(b"a")
    tx.run_ms(20_000)
    assert len(tx.checks(producer)) >= 2
    assert tx.end(prepared, COMMIT)[0].code == 0
    tx.run_ms(60_000)
    assert tx.bodies() == [b"a"]
    assert tx.checks(producer) == []


def test_an_immune_message_does_not_hold_up_those_behind_it(tx: TransactionBench) -> None:
    producer = Link(40_001)
    tx.heartbeat("T", link=producer)
    slow = tx.prepare(b"slow", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    tx.prepare(b"lost")
    tx.run_ms(7000)
    assert [body.body for _, body in tx.checks(producer)] == [b"lost"]
    tx.run_ms(40_000)
    assert tx.end(slow, COMMIT)[0].code == 0
    assert tx.bodies() == [b"slow"]


def test_a_half_message_without_room_for_the_count_of_its_checks_is_asked_about_and_holds_up_nobody(
    tx: TransactionBench,
) -> None:
    producer = Link(40_001)
    tx.heartbeat("T", link=producer)
    tx.prepare(b"m")
    room = PROPERTIES_BYTES_MAX - len(half_messages(tx)[0].encoded_properties) - len("\2pad\1") - 4
    tx.prepare(b"l", pad="p" * room)
    tx.prepare(b"n")
    tx.run_ms(7000)
    asked = tx.checks(producer)
    assert [half.body for _, half in asked] == [b"m", b"l", b"n"]
    assert tx.answer_check(asked[1][0], COMMIT).code == 0
    assert tx.bodies() == [b"l"]


def test_without_a_connected_producer_the_check_waits_for_the_next_round(tx: TransactionBench) -> None:
    tx.prepare(b"a")
    tx.run_ms(7000)
    producer = Link(40_001)
    tx.heartbeat("T", link=producer)
    tx.run_ms(6000)
    assert len(tx.checks(producer)) == 1


def test_a_clock_set_back_does_not_stop_the_checks(tx: TransactionBench) -> None:
    producer = Link(40_001)
    tx.heartbeat("T", link=producer)
    tx.prepare(b"a")
    tx.run_ms(3000)
    tx.clock.set_wall(tx.clock.now_ms() - 3_600_000)
    tx.run_ms(7000)
    assert len(tx.checks(producer)) >= 1


LIMITS = CheckLimits(timeout_ms=6000, checks_max=15, keep_ms=72 * 3_600_000)


@pytest.mark.parametrize(
    ("age_ms", "properties", "decision"),
    [
        (0, "", Decision.STOP),
        (5999, "", Decision.STOP),
        (6000, "", Decision.CHECK),
        (-1, "", Decision.CHECK),
        (6000, "TRANSACTION_CHECK_TIMES\x0114\x02", Decision.CHECK),
        (6000, "TRANSACTION_CHECK_TIMES\x0115\x02", Decision.GIVE_UP),
        (73 * 3_600_000, "", Decision.GIVE_UP),
        (9999, "CHECK_IMMUNITY_TIME_IN_SECONDS\x0110\x02", Decision.PUT_BACK),
        (10_000, "CHECK_IMMUNITY_TIME_IN_SECONDS\x0110\x02", Decision.CHECK),
        (1000, "CHECK_IMMUNITY_TIME_IN_SECONDS\x01x\x02", Decision.STOP),
    ],
)
def test_what_becomes_of_a_half_message_follows_the_table(age_ms: int, properties: str, decision: Decision) -> None:
    record = encode_record(
        SystemTopic.HALF,
        b"x",
        properties.encode(),
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_host=bytes(8),
        store_host=bytes(8),
        born_time_ms=1_700_000_000_000,
        store_time_ms=1_700_000_000_000,
    )
    assert decide(decode_record(record), age_ms=age_ms, limits=LIMITS) is decision


# ----------------------------------------------------------------------------------------------------------- crashes


def test_a_crash_between_half_commit_and_op_loses_no_commit_and_shows_no_rollback(tmp_path: Path) -> None:
    """10 crashes at random moments; after each, the producers are asked about what the broker does not know."""
    source = random.Random(11)
    bench = TransactionBench(tmp_path, checks_max=15)
    producer = Link(40_001)
    outcome: dict[str, str] = {}
    for round_number in range(ROUNDS):
        bench.heartbeat("T", link=producer)
        for number in range(6):
            name = f"{round_number}-{number}"
            outcome[f"K-{name}"] = source.choice((COMMIT, ROLLBACK))
            prepared = bench.prepare(name.encode())
            if source.random() < 0.7:
                bench.end(prepared, outcome[f"K-{name}"])
            if source.random() < 0.3:
                bench.run_ms(source.choice((100, 3100)))
                _answer_checks(bench, producer, outcome)
        bench = bench.restarted(tmp_path)
        producer = Link(40_002 + round_number)
    bench.heartbeat("T", link=producer)
    for _ in range(40):
        bench.run_ms(500)
        _answer_checks(bench, producer, outcome)
    seen = Counter(f"K-{body.decode()}" for body in bench.bodies())
    assert seen == {key: 1 for key, how in outcome.items() if how == COMMIT}
    assert bench.service.pending() == {}
    assert bench.node.offsets.query(GROUP, SystemTopic.HALF, 0) == bench.service.half_offset
    bench.close()


def _answer_checks(bench: TransactionBench, producer: Link, outcome: dict[str, str]) -> None:
    for request, _ in bench.checks(producer):
        bench.answer_check(request, outcome[request["msgId"]])


def all_asked(bench: TransactionBench) -> list[str]:
    """Whom the broker asks about in the next rounds, each answered with a commit."""
    producer = Link(40_900)
    bench.heartbeat("T", link=producer)
    names = []
    for _ in range(40):
        bench.run_ms(500)
        for request, message in bench.checks(producer):
            names.append(message.body.decode())
            assert bench.answer_check(request, COMMIT).code == 0
    return names


def test_a_commit_whose_op_message_a_kill_prevented_is_known_from_the_log(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    for name in (b"listed", b"unlisted", b"last"):
        prepared = bench.prepare(name)
        assert bench.end(prepared, COMMIT)[0].code == 0
        if name == b"listed":
            bench.run_ms(300)  # its op message is written
    pending = bench.prepare(b"pending")
    bench = bench.restarted_unsaved(tmp_path)
    assert bench.service.pending() == {"T": 1}
    assert bench.store.max_offset(SystemTopic.OP_HALF, 0) == 1
    bench.run_ms(300)
    (_, op) = bench.store.get(SystemTopic.OP_HALF, 0, 0)
    assert op.body == b"1,2,"  # as for Apache, which reads op messages only
    assert bench.end(pending, COMMIT)[0].code == 0
    assert all_asked(bench) == []
    assert bench.bodies() == [b"listed", b"unlisted", b"last", b"pending"]
    bench.close()


def test_a_commit_before_a_kill_counts_for_a_half_message_that_was_put_back_since(tmp_path: Path) -> None:
    """The commit was sent by the first place, and the check had moved the message behind what is dealt with."""
    bench = TransactionBench(tmp_path)
    prepared, producer = bench.prepare(b"m"), Link(40_001)
    bench.heartbeat("T", link=producer)
    bench.run_ms(10_000)
    assert len(bench.checks(producer)) == 1
    bench.run(bench.saver.save("consumerOffset.json"))
    assert bench.service.half_offset == 1
    assert bench.end(prepared, COMMIT)[0].code == 0
    bench = bench.restarted_unsaved(tmp_path)
    assert bench.service.half_offset == 1
    assert all_asked(bench) == []
    assert bench.bodies() == [b"m"]
    bench.close()


def test_a_commit_does_not_count_for_another_half_message_of_the_same_key(tmp_path: Path) -> None:
    """A program sends one message object twice, in two transactions: the second must not end with the first."""
    bench = TransactionBench(tmp_path)
    bench.end(bench.prepare(b"one", UNIQ_KEY="K"), COMMIT)
    bench.clock.advance(5)
    bench.prepare(b"two", UNIQ_KEY="K")
    bench = bench.restarted_unsaved(tmp_path)
    assert all_asked(bench) == ["two"]
    assert bench.bodies() == [b"one", b"two"]
    bench.close()


def test_a_copy_of_a_committed_message_ends_no_half_message(tmp_path: Path) -> None:
    """Messages that come again keep their type and point at no half message: at 0, where the log's first record is."""
    bench = TransactionBench(tmp_path)
    assert bench.store.log_max_offset == 0
    bench.prepare(b"first")
    bench.end(bench.prepare(b"other"), COMMIT)
    bench.run_ms(300)  # its op message is written
    (other,) = (message for queue in range(8) for message in bench.store.get("T", queue, 0))
    bench.node.topics.create_for_group("%RETRY%g_T", queues=1)
    copy = IncomingMessage.copy_of(other, topic="%RETRY%g_T", queue_id=0, store_host=bench.node.store_host)
    assert bench.node.put(copy).status.is_stored
    bench = bench.restarted_unsaved(tmp_path)
    assert bench.service.pending() == {"T": 1}
    assert all_asked(bench) == ["first"]
    bench.close()


def test_commits_are_found_in_every_file_of_the_log_behind_the_last_op_message(tmp_path: Path) -> None:
    small = {"mapped_file_size_commit_log": 16 * 1024}
    bench = TransactionBench(tmp_path, **small)
    for number in range(30):
        bench.end(bench.prepare(b"%d" % number), COMMIT)
        bench.send("Else", bytes(2000), properties={"UNIQ_KEY": f"E{number}"})
    assert bench.store.log_max_offset > 4 * 16 * 1024
    assert bench.store.max_offset(SystemTopic.OP_HALF, 0) == 0
    bench = bench.restarted_unsaved(tmp_path, **small)
    assert bench.service.pending() == {}
    assert all_asked(bench) == []
    assert bench.bodies() == [b"%d" % number for number in range(30)]
    bench.close()


def test_a_rollback_is_in_an_op_message_within_200_ms(tx: TransactionBench) -> None:
    tx.end(tx.prepare(b"m"), ROLLBACK)
    tx.run_ms(200)
    (op,) = tx.store.get(SystemTopic.OP_HALF, 0, 0)
    assert op.body == b"0,"


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_half_message_that_was_put_back_before_a_crash_is_one_message_after_it(
    tmp_path: Path, is_ended: bool
) -> None:
    """It lies in the queue twice, and that it was moved was not saved."""
    bench = TransactionBench(tmp_path)
    prepared, producer = bench.prepare(b"m"), Link(40_001)
    bench.heartbeat("T", link=producer)
    bench.run_ms(7000)
    ((request, _),) = bench.checks(producer)
    if is_ended:
        bench.answer_check(request, COMMIT)
        bench.run_ms(3100)  # its op message is written
    bench = bench.restarted_unsaved(tmp_path)
    assert [half.body for half in half_messages(bench)] == [b"m", b"m"]
    assert bench.service.half_offset == 0
    assert bench.service.pending() == ({} if is_ended else {"T": 1})
    producer = Link(40_002)
    bench.heartbeat("T", link=producer)
    bench.run_ms(6000)  # one round of checks
    assert len(bench.checks(producer)) == (0 if is_ended else 1)
    (answer,) = bench.end(prepared, COMMIT, fromTransactionCheck="true")  # by its first place
    assert (answer.code == 0) is not is_ended  # it was passed since
    assert bench.bodies() == [b"m"]
    bench.close()


def test_pending_halves_are_counted_for_each_topic_and_counted_again_after_a_crash(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    prepared = [bench.prepare(b"%d" % number) for number in range(3)]
    other = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "K"}
    bench.send("Other", b"o", properties=other, f="4", g=str(bench.clock.now_ms()))
    bench.end(prepared[0], COMMIT)
    bench.end(prepared[1], ROLLBACK)
    assert bench.service.pending() == {"T": 1, "Other": 1}
    assert bench.service.figures()["halfPending_T"] == "1"
    assert json.loads(bench.service.metrics.to_json())["transactionCount"]["Other"]["count"] == 1
    bench.run_ms(3_500)  # the ends are in the op topic
    bench = bench.restarted_unsaved(tmp_path)
    assert bench.service.pending() == {"T": 1, "Other": 1}
    bench.close()


def test_only_connected_producers_of_the_group_are_asked(tx: TransactionBench) -> None:
    gone, here, other = Link(40_001), Link(40_002), Link(40_003)
    tx.heartbeat("T", link=gone, client_id="gone")
    tx.heartbeat("T", link=here, client_id="here")
    tx.ask(34, None, b'{"clientID":"other","producerDataSet":[{"groupName":"another"}]}', link=other)
    assert {group: len(clients) for group, clients in tx.node.clients.producer_groups().items()} == {
        "pg": 2,
        "another": 1,
    }
    tx.node.clients.drop_connection(gone)
    tx.prepare(b"a")
    tx.run_ms(20_000)
    assert [body.body for _, body in tx.checks(here)] == [b"a"] * 3
    assert tx.checks(gone) == tx.checks(other) == []


def test_after_a_clean_stop_nothing_is_asked_or_delivered_again(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    for number in range(4):
        bench.end(bench.prepare(b"%d" % number), COMMIT)
    bench.service.stop()
    bench.settle()
    bench = bench.restarted(tmp_path)
    producer = Link(40_001)
    bench.heartbeat("T", link=producer)
    bench.run_ms(20_000)
    assert bench.checks(producer) == []
    assert sorted(bench.bodies()) == [b"0", b"1", b"2", b"3"]
    bench.close()


def test_apaches_half_messages_are_known_as_apache_left_them(tmp_path: Path) -> None:
    """Everything in the golden store was ended or given up: nothing is asked about, nothing comes again."""
    golden_stores.unpack("clean", tmp_path)
    last_ms = max(m["storeTimestamp"] for m in golden_stores.expected("clean")["messages"])
    bench = TransactionBench(
        tmp_path,
        clock=ManualClock(last_ms + 60_000),
        mapped_file_size_commit_log=131_072,
        mapped_file_size_consume_queue=1200,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    assert bench.service.half_offset == 17
    assert bench.service.pending() == {}
    before = bench.store.max_offset("GoldenTx", 0)
    bench.run_ms(10_000)
    assert bench.store.max_offset("GoldenTx", 0) == before
    assert bench.store.max_offset(SystemTopic.HALF, 0) == 17
    bench.close()


def test_a_half_message_that_was_damaged_is_told_and_the_next_is_asked_about(
    tx: TransactionBench, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Link(5)
    tx.heartbeat("T", link=producer)
    damaged = tx.prepare(b"damaged")
    tx.prepare(b"whole")
    with (tx.store.config.path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(int(damaged.ext["msgId"][-16:], 16) + 4)  # its magic code
        log.write(b"\xff\xff\xff\xff")
    tx.run_ms(13_000)
    assert {message.body for _, message in tx.checks(producer)} == {b"whole"}
    assert "a record of RMQ_SYS_TRANS_HALF_TOPIC is gone or damaged and is skipped: offset 0" in caplog.text
