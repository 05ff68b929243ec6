"""How a request reaches the code that serves it, and how a refusal becomes an answer.

A handler takes (connection, command) and returns the whole answer as bytes, or None when it has answered or will
answer itself. A slow one is a coroutine function, registered apart and run as a task. Handlers refuse by raising
`Refused`; the dispatcher turns that, a protocol violation of the peer, and any mistake of ours into an answer, once
and in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import Final

from contrailmq.broker.mistakes import mistakes
from contrailmq.broker.state.client_bound import ClientBoundError
from contrailmq.broker.state.latencies import RequestLatencies
from contrailmq.message import ContrailError, MessageError
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.peer import Peer

Handler = Callable[[Peer, Command], bytes | None]
SlowHandler = Callable[[Peer, Command], Awaitable[bytes | None]]

UNKNOWN: Final = -1  # in place of a code that is not served
TASKS_MAX: Final = 10_000  # slow requests at once; beyond it the broker says that it is busy


class Refused(ContrailError):
    """The request is not served; `code` and the text are the answer."""

    def __init__(self, code: ResponseCode, remark: str, ext: Fields | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.ext = ext


class Handlers:
    """Request code -> handler. Owner: BrokerServer."""

    def __init__(self) -> None:
        self._table: dict[int, Handler] = {}
        self._whole = self._table
        self._tasks: set[asyncio.Task[None]] = set()
        self.latencies = RequestLatencies()
        self.busy_count = 0  # slow requests that were refused, TASKS_MAX

    def __len__(self) -> int:
        """Slow requests that are under way."""
        return len(self._tasks)

    def __contains__(self, code: int) -> bool:
        return code in self._table

    def restrict(self, served: Container[int], why: str) -> None:
        """Serve these codes alone, and refuse all others as not available now, until `lift`."""

        def refuse(connection: Peer, command: Command) -> bytes | None:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, why)

        self._whole = self._table
        self._table = {code: handler if code in served else refuse for code, handler in self._table.items()}

    def lift(self) -> None:
        """Serve everything."""
        self._table = self._whole

    def codes(self) -> list[int]:
        return sorted(self._table)

    def register(self, code: int, handler: Handler) -> None:
        assert code not in self._table, f"code {code} has a handler"
        self._table[code] = handler

    def register_slow(self, code: int, handler: SlowHandler) -> None:
        """A coroutine function; each request becomes a task."""
        self.register(code, lambda connection, command: self.start(handler, connection, command))

    def handle(self, connection: Peer, commands: list[Command]) -> None:
        """Serve everything that one wakeup brought."""
        table, latencies = self._table, self.latencies
        latencies.began_ns = latencies.stopwatch_ns()
        answered: list[tuple[int, bytes | None]] = []
        for command in commands:
            code = command.code
            handler = table.get(code)
            try:
                if handler is None:
                    code = UNKNOWN
                    answer: bytes | None = not_supported(command)
                else:
                    answer = handler(connection, command)
            except ContrailError as exc:
                answer = refusal(command, exc)
            except Exception as exc:  # noqa: BLE001 - answered and logged; other requests go on
                mistakes.note(f"request {command.code} failed")
                answer = mistake(command, exc)
            if answer is not None:
                if command.flag & 2:
                    answer = None
                else:
                    connection.reply(answer)
                answered.append((code, answer))
        if answered:
            latencies.note_answers(answered)

    async def drain(self) -> None:
        """Wait for the slow requests that are under way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def start(self, handler: SlowHandler, connection: Peer, command: Command) -> None:
        if len(self._tasks) >= TASKS_MAX:
            self.busy_count += 1
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy, {len(self._tasks)} slow requests are under way, "
                f"the limit is {TASKS_MAX}: try later",
            )
        task = asyncio.get_running_loop().create_task(self._run(handler, connection, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, handler: SlowHandler, connection: Peer, command: Command) -> None:
        began_ns = self.latencies.stopwatch_ns()
        try:
            answer = await handler(connection, command)
        except ContrailError as exc:
            answer = refusal(command, exc)
        except Exception as exc:  # noqa: BLE001 - answered and logged; other requests go on
            mistakes.note(f"request {command.code} failed")
            answer = mistake(command, exc)
        if answer is not None and not command.is_oneway and connection.is_open:
            connection.reply(answer)
            self.latencies.note_late(command.code, answer, began_ns)


def answer_later(
    connection: Peer,
    command: Command,
    work: Callable[[], bytes | None],
    answered: Callable[[bytes], None] | None = None,
) -> None:
    """Answer a request that waited, and tell `answered`. Its failure is its own answer: what else waits is not touched
    by it."""
    try:
        answer = work()
    except ContrailError as exc:
        answer = refusal(command, exc)
    except Exception as exc:  # noqa: BLE001 - answered and logged; other requests go on
        mistakes.note(f"request {command.code} failed when it was its turn")
        answer = mistake(command, exc)
    if answer is not None:
        connection.reply(answer)
        if answered is not None:
            answered(answer)


def not_supported(command: Command) -> bytes:
    return encode_response(
        command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported"
    )


def refusal(command: Command, error: ContrailError) -> bytes:
    """The answer to a request that cannot be served as it is."""
    if isinstance(error, Refused):
        return encode_response(command, error.code, error.ext, remark=str(error))
    if isinstance(
        error, RemoteProtocolError | ClientBoundError
    ):  # clients do not try it again, as they do SYSTEM_ERROR
        return encode_response(command, ResponseCode.INVALID_PARAMETER, remark=str(error))
    if isinstance(error, MessageError):
        return encode_response(command, ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
    return encode_response(command, ResponseCode.SYSTEM_ERROR, remark=str(error))


def mistake(command: Command, error: Exception) -> bytes:
    """The answer when our own code failed."""
    return encode_response(command, ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def success(command: Command, ext: Fields | None = None, body: bytes = b"") -> bytes:
    return encode_response(command, ResponseCode.SUCCESS, ext, body)
