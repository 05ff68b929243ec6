"""Server and client over loopback sockets, on both event loops. Nothing sleeps: tests wait for events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from contrailmq.wire.acl import AclCredentials
from contrailmq.wire.connection import DRAINING, LARGE_BODY_BYTES, PARSED_COMMANDS_MAX, SLICE_COMMANDS, Limits
from contrailmq.wire.errors import (
    ConnectError,
    ConnectionClosedError,
    ListenError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from contrailmq.wire.frame import FrameParser, encode_request, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.transport import (
    Connection,
    Handler,
    RemotingClient,
    RemotingServer,
    not_supported,
    split_address,
)
from free_ports import free_port

from .peers import Counting, Holding, Run, connected, echo, request, turns_until


@asynccontextmanager
async def serving(handler: Handler = echo, **options: object) -> AsyncIterator[RemotingServer]:
    server = RemotingServer(handler, host="127.0.0.1", **options)  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.close(drain_seconds=0.0)


def test_requests_are_answered_and_matched_by_opaque(run: Run) -> None:
    async def main() -> None:
        async with serving() as server:
            client = RemotingClient()
            answers = await asyncio.gather(
                *(client.invoke(server.address, 105, {"topic": f"T{n}"}, b"%d" % n) for n in range(300))
            )
            assert [answer.body for answer in answers] == [b"%d" % n for n in range(300)]
            assert len(server.connections) == 1
            await client.close()

    run(main())


def test_answers_may_come_in_any_order(run: Run) -> None:
    async def main() -> None:
        held: list[tuple[Connection, Command]] = []

        def backwards(connection: Connection, commands: list[Command]) -> None:
            held.extend((connection, command) for command in commands)
            if len(held) == 3:
                for target, command in reversed(held):
                    target.reply(encode_response(command, 0, None, command.body))

        async with serving(backwards) as server:
            client = RemotingClient()
            answers = await asyncio.gather(*(client.invoke(server.address, 1, None, b"%d" % n) for n in range(3)))
            assert [answer.body for answer in answers] == [b"0", b"1", b"2"]
            await client.close()

    run(main())


def test_a_wakeup_is_one_write_and_the_handler_gets_its_requests_in_order(run: Run) -> None:
    async def main() -> None:
        counting = Counting()
        connection, transport = connected(counting, Limits(slice_s=60.0))
        connection.data_received(b"".join(request(n) for n in range(50)))
        assert counting.opaques == list(range(50))
        assert len(transport.writes) == 1
        assert [answer.opaque for answer in FrameParser().feed(transport.writes[0])] == list(range(50))
        assert connection.in_flight == 0
        assert connection.peer == ("10.0.0.1", 4711)

    run(main())


def test_a_wakeup_with_much_work_gives_the_others_their_turn(run: Run) -> None:
    async def main() -> None:
        counting = Counting()
        connection, transport = connected(counting, Limits(slice_s=0.0))
        connection.data_received(b"".join(request(n) for n in range(100)))
        assert counting.opaques == list(range(SLICE_COMMANDS))
        assert not transport.is_reading
        assert await turns_until(lambda: len(counting.opaques) == 100) >= 100 // SLICE_COMMANDS - 2
        assert counting.opaques == list(range(100))
        await turns_until(lambda: transport.is_reading)
        assert [answer.opaque for answer in FrameParser().feed(b"".join(transport.writes))] == list(range(100))

    run(main())


def test_large_bodies_are_handed_over_one_by_one(run: Run) -> None:
    async def main() -> None:
        counting = Counting()
        connection, transport = connected(counting, Limits(slice_s=0.0))
        body = bytes(LARGE_BODY_BYTES + 1)
        connection.data_received(b"".join(encode_request(105, {}, body, opaque=n) for n in range(6)))
        assert counting.calls == [[0]]
        await turns_until(lambda: transport.is_reading)
        assert counting.calls == [[n] for n in range(6)]

    run(main())


def test_work_for_a_peer_that_does_not_read_waits_until_it_does(run: Run) -> None:
    async def main() -> None:
        counting = Counting()
        connection, transport = connected(counting, Limits(slice_s=0.0))
        connection.data_received(b"".join(request(n) for n in range(100)))
        connection.pause_writing()
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(counting.opaques) == SLICE_COMMANDS
        connection.resume_writing()
        await turns_until(lambda: transport.is_reading)
        assert counting.opaques == list(range(100))

    run(main())


def test_a_read_of_very_many_frames_is_parsed_in_parts_and_nothing_is_lost(run: Run) -> None:
    async def main() -> None:
        counting = Counting(lambda connection, commands: connection.forget(len(commands)))
        connection, transport = connected(counting)
        data = b"".join(request(n) for n in range(3 * PARSED_COMMANDS_MAX))
        connection.data_received(data[:-5])
        assert len(counting.opaques) <= PARSED_COMMANDS_MAX
        connection.data_received(data[-5:])  # what the loop had read already
        await turns_until(lambda: transport.is_reading)
        assert counting.opaques == list(range(3 * PARSED_COMMANDS_MAX))

    run(main())


def test_reading_goes_on_after_a_read_of_very_many_answers(run: Run) -> None:
    """As a client sees it: no request comes that would look after the reading."""

    async def main() -> None:
        connection, transport = connected(echo)
        futures = [connection.invoke(105, {"topic": "T"}) for _ in range(PARSED_COMMANDS_MAX + 100)]
        await turns_until(lambda: bool(transport.writes))
        asked = FrameParser().feed(b"".join(transport.writes))
        connection.data_received(b"".join(encode_response(command) for command in asked))
        await asyncio.gather(*futures)
        await turns_until(lambda: transport.is_reading)

    run(main())


def test_late_answers_of_one_turn_of_the_loop_leave_in_one_write(run: Run) -> None:
    async def main() -> None:
        held: list[Command] = []
        connection, transport = connected(lambda _connection, commands: held.extend(commands))
        connection.data_received(b"".join(request(n) for n in range(20)))
        assert connection.in_flight == 20
        for command in held[:10]:
            connection.reply(encode_response(command))
        head = encode_response(held[10], body_bytes=6)
        connection.reply_parts([head, memoryview(b"abc"), memoryview(b"def")], len(head) + 6)
        assert transport.writes == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(transport.writes) == 1
        answers = FrameParser().feed(transport.writes[0])
        assert [answer.opaque for answer in answers] == list(range(11))
        assert answers[-1].body == b"abcdef"
        assert connection.in_flight == 9

    run(main())


def test_closing_a_connection_sends_what_is_queued_first(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(lambda _connection, _commands: None)
        connection.data_received(request(1))
        connection.reply(b"answer")
        connection.oneway(40, {}, b"notice")
        assert not transport.writes  # they leave when the loop comes round
        connection.close()
        assert transport.is_closing()
        assert not transport.is_aborted
        [written] = transport.writes
        assert written.startswith(b"answer")
        assert written.endswith(b"notice")

    run(main())


def test_an_answer_given_just_before_closing_reaches_the_peer(run: Run) -> None:
    async def main() -> None:
        def answer_later_and_close(connection: Connection, commands: list[Command]) -> None:
            def late() -> None:
                connection.reply(encode_response(commands[0], 0, None, b"last words"))
                connection.close()

            asyncio.get_running_loop().call_soon(late)

        async with serving(answer_later_and_close) as server:
            client = RemotingClient()
            assert (await client.invoke(server.address, 1, timeout_s=120)).body == b"last words"
            await client.close()

    run(main())


def test_reading_stops_while_the_peer_does_not_read_and_a_peer_that_never_reads_is_cut(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(echo, Limits(write_high_bytes=1000, write_bytes_max=5000))
        assert transport.high == 1000
        connection.pause_writing()
        assert not transport.is_reading
        assert not connection.is_writable
        connection.resume_writing()
        assert transport.is_reading
        connection.pause_writing()
        transport.unsent_bytes = 5000
        connection.data_received(request(1))
        assert not transport.is_aborted
        transport.unsent_bytes = 5001
        connection.data_received(request(2))
        assert transport.is_aborted
        connection.connection_lost(None)
        assert not connection.is_open

    run(main())


def test_reading_stops_at_the_bound_of_unanswered_requests_and_goes_on_below_it(run: Run) -> None:
    async def main() -> None:
        held: list[Command] = []
        connection, transport = connected(lambda _connection, commands: held.extend(commands), Limits(in_flight_max=3))
        connection.data_received(request(0) + request(1) + request(9, oneway=True))
        assert transport.is_reading
        connection.data_received(request(2))
        assert not transport.is_reading
        connection.reply(encode_response(held[0]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.is_reading
        connection.forget()
        assert connection.in_flight == 1

    run(main())


def test_too_many_requests_of_ours_are_refused_before_they_are_sent(run: Run) -> None:
    async def main() -> None:
        connection, _transport = connected(echo, Limits(in_flight_max=2))
        waiting = [connection.invoke(1, timeout_s=60.0) for _ in range(2)]
        with pytest.raises(TooManyRequestsError, match="2 requests to"):
            connection.invoke(1)
        connection.connection_lost(None)
        for future in waiting:
            with pytest.raises(ConnectionClosedError):
                await future

    run(main())


def test_a_peer_that_breaks_the_protocol_gets_its_answers_and_is_closed(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(echo)
        connection.data_received(request(1) + b"\xff\xff\xff\xff1234")
        assert [answer.opaque for answer in FrameParser().feed(transport.writes[0])] == [1]
        assert transport.is_closing()
        other, other_transport = connected(echo)
        other.data_received(b"GET / HTTP/1.1\r\n")
        assert other_transport.is_closing()
        assert other_transport.writes == []

    run(main())


def test_answers_to_nothing_are_counted_and_ignored(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(echo)
        [asked] = FrameParser().feed(request(77))
        connection.data_received(encode_response(asked))
        assert connection.late_answers == 1
        assert not transport.is_closing()

    run(main())


def test_the_same_opaque_twice_is_answered_twice(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(echo)
        connection.data_received(request(5) + request(5))
        assert [answer.opaque for answer in FrameParser().feed(transport.writes[0])] == [5, 5]

    run(main())


def test_a_silent_connection_is_closed_after_the_idle_time_and_an_active_one_is_not(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(echo)
        now_s = asyncio.get_running_loop().time()
        assert not connection.close_if_idle(now_s + 119, 120)
        transport.unsent_bytes = 500
        assert not connection.close_if_idle(now_s + 119, 120)
        transport.unsent_bytes = 400  # the peer took something: that is activity
        assert not connection.close_if_idle(now_s + 200, 120)
        assert connection.close_if_idle(now_s + 321, 120)
        assert transport.is_aborted

    run(main())


def test_the_server_closes_idle_connections(run: Run) -> None:
    async def main() -> None:
        async with serving(idle_seconds=120.0) as server:
            client = RemotingClient()
            connection = await client.connect(server.address)
            closed = asyncio.Event()
            connection.on_close.append(lambda _connection: closed.set())
            await client.invoke(server.address, 1)
            assert server.close_idle(asyncio.get_running_loop().time() + 121) == 1
            await closed.wait()
            assert not connection.is_open
            await client.invoke(server.address, 1)  # dialled again
            await client.close()

    run(main())


def test_a_request_without_answer_ends_with_what_was_waited_for_and_how_long(run: Run) -> None:
    async def main() -> None:
        async with serving(lambda _connection, _commands: None) as server:
            client = RemotingClient()
            with pytest.raises(
                RequestTimeoutError, match=r"no answer .* to GET_MAX_OFFSET\(30\) within 0.01 s"
            ) as caught:
                await client.invoke(server.address, 30, timeout_s=0.01)
            assert caught.value.retriable
            connection = await client.connect(server.address)
            slow = connection.invoke(31, timeout_s=120)
            quick = connection.invoke(30, timeout_s=0.01)
            with pytest.raises(RequestTimeoutError):
                await quick
            assert not slow.done()
            await client.close()
            with pytest.raises(ConnectionClosedError):
                await slow

    run(main())


def test_no_server_no_connection_and_bad_addresses_say_so(run: Run) -> None:
    async def main() -> None:
        port = free_port()
        client = RemotingClient()
        with pytest.raises(ConnectError, match=f"cannot connect to 127.0.0.1:{port}") as caught:
            await client.invoke(f"127.0.0.1:{port}", 1)
        assert caught.value.retriable
        for address in ("nowhere", "host:", ":1", "host:port"):
            with pytest.raises(ConnectError, match="host:port"):
                await client.invoke(address, 1)
        await client.close()
        with pytest.raises(ConnectionClosedError, match="this client is closed"):
            await client.invoke("127.0.0.1:1", 1)

    run(main())


def test_a_port_in_use_is_an_error_with_its_address(run: Run) -> None:
    async def main() -> None:
        async with serving() as server:
            rival = RemotingServer(echo, host="127.0.0.1", port=server.port)
            with pytest.raises(ListenError, match="cannot listen on .*choose another port"):
                await rival.start()

    run(main())


def test_a_closed_server_ends_waiting_requests_and_a_restarted_one_is_dialled_again(run: Run) -> None:
    async def main() -> None:
        client = RemotingClient()
        async with serving(lambda _connection, _commands: None) as server:
            connection = await client.connect(server.address)
            waiting = connection.invoke(1, timeout_s=60)
            port = server.port
            for accepted in list(server.connections):
                accepted.abort("test")
            with pytest.raises(ConnectionClosedError):
                await waiting
        async with serving(port=port) as server:
            assert (await client.invoke(server.address, 1)).code == 0
            await client.close()

    run(main())


def test_oneway_requests_arrive_and_are_never_answered(run: Run) -> None:
    async def main() -> None:
        arrived = asyncio.Event()

        def note(connection: Connection, commands: list[Command]) -> None:
            assert all(command.is_oneway for command in commands)
            assert connection.in_flight == 0
            arrived.set()

        async with serving(note) as server:
            client = RemotingClient()
            await client.oneway(server.address, 15, {"a": "b"})
            await arrived.wait()
            await client.close()

    run(main())


def test_a_server_can_ask_its_client(run: Run) -> None:
    async def main() -> None:
        accepted: list[Connection] = []

        async def later(_connection: Connection, command: Command) -> bytes:
            return encode_response(command, 0, None, b"later")

        async with serving(on_connect=accepted.append) as server:
            client = RemotingClient()
            client.register(307, lambda _connection, command: encode_response(command, 0, None, b"info"))
            client.register(309, later)
            await client.connect(server.address)
            await client.invoke(server.address, 1)
            [connection] = accepted
            assert (await connection.invoke(307)).body == b"info"
            assert (await connection.invoke(309)).body == b"later"
            unknown = await connection.invoke(221)
            assert (unknown.code, unknown.remark) == (3, " request type 221 not supported")
            connection.oneway(40, {"consumerGroup": "g"})
            assert (await connection.invoke(307)).code == 0
            await client.close()

    run(main())


def test_callers_at_the_same_time_share_one_connection_attempt(run: Run) -> None:
    async def main() -> None:
        async with serving() as server:
            client = RemotingClient()
            connections = await asyncio.gather(*(client.connect(server.address) for _ in range(20)))
            assert len(set(connections)) == 1
            await client.invoke(server.address, 1)
            assert len(server.connections) == 1
            client.disconnect(server.address)
            assert not connections[0].is_open
            await client.close()

    run(main())


def test_every_request_is_signed_when_a_hook_is_given(run: Run) -> None:
    async def main() -> None:
        async with serving() as server:
            client = RemotingClient(sign=AclCredentials("rocketmq2", "12345678"))
            answer = await client.invoke(server.address, 105, {"topic": "TopicTest"})
            assert answer.ext["Signature"] == "GeeGoP9mRvDhoVp4PD5omX0prgE="
            await client.close()

    run(main())


def test_closing_answers_what_was_accepted_and_refuses_what_is_new(run: Run) -> None:
    async def main() -> None:
        holding = Holding()
        server = RemotingServer(holding, host="127.0.0.1")
        await server.start()
        client = RemotingClient()
        answer = asyncio.ensure_future(client.invoke(server.address, 1, timeout_s=60))
        await holding.arrived.wait()
        closing = asyncio.ensure_future(server.close(drain_seconds=60))
        await asyncio.sleep(0)
        with pytest.raises(ConnectError):
            await RemotingClient().connect(server.address)
        [(connection, command)] = holding.held
        connection.reply(encode_response(command, 0, None, b"kept"))
        assert (await answer).body == b"kept"
        await closing
        assert not server.connections
        await client.close()

    run(main())


def test_a_half_closed_peer_still_gets_its_answers(run: Run) -> None:
    async def main() -> None:
        holding = Holding()
        async with serving(holding) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request(8))
            writer.write_eof()
            await holding.arrived.wait()
            [(connection, command)] = holding.held
            await turns_until(lambda: connection.state == DRAINING)
            connection.reply(encode_response(command, 0, None, b"late"))
            [answer] = FrameParser().feed(await reader.read())
            assert (answer.opaque, answer.body) == (8, b"late")
            writer.close()

    run(main())


def test_one_byte_at_a_time_is_enough(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected(echo)
        for byte in request(3):
            connection.data_received(bytes([byte]))
        [answer] = FrameParser().feed(b"".join(transport.writes))
        assert (answer.opaque, answer.ext) == (3, {"topic": "T"})

    run(main())


def test_a_client_waits_while_the_server_does_not_read(run: Run) -> None:
    async def main() -> None:
        connection, _transport = connected(echo)
        connection.pause_writing()
        waiting = asyncio.ensure_future(connection.writable())
        await asyncio.sleep(0)
        assert not waiting.done()
        connection.resume_writing()
        await waiting
        connection.pause_writing()
        waiting = asyncio.ensure_future(connection.writable())
        await asyncio.sleep(0)
        connection.connection_lost(OSError("gone"))
        with pytest.raises(ConnectionClosedError, match="gone"):
            await waiting

    run(main())


def test_addresses_may_be_ipv6_and_ports_have_sixteen_bits() -> None:
    assert split_address("[::1]:9876") == ("::1", 9876)
    assert split_address("host.example:10911") == ("host.example", 10911)
    for wrong in ("127.0.0.1:95458", "127.0.0.1:\u00b2", "127.0.0.1:1000000", "127.0.0.1", ":80"):
        with pytest.raises(ConnectError, match="at most 65535"):
            split_address(wrong)


def test_the_answer_to_an_unknown_code_names_it() -> None:
    [command] = FrameParser().feed(encode_request(4242, opaque=1))
    [answer] = FrameParser().feed(not_supported(command))
    assert (answer.code, answer.remark) == (3, " request type 4242 not supported")
