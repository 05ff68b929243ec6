"""An echo server and a client that counts: the smallest programs that a world can hold.

As a program, prints the trace of one seed, so that two processes can be compared.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

from simulation import patches
from simulation.network import Network
from simulation.nodes import Node
from simulation.world import World

PORT = 7000


async def serve(node: Node) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
        writer.close()

    await asyncio.start_server(answer, "0.0.0.0", PORT)
    await asyncio.Event().wait()


@dataclass
class Caller:
    """Says a number each second and notes what came back, when, and what went wrong."""

    heard: list[tuple[float, bytes]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def __call__(self, node: Node) -> None:
        number = 0
        while True:
            try:
                reader, writer = await asyncio.open_connection("server", PORT)
                while True:
                    number += 1
                    writer.write(b"%d\n" % number)
                    line = await reader.readline()
                    if not line:
                        raise EOFError("the server hung up")
                    self.heard.append((node.world.now_s, line))
                    await asyncio.to_thread(time.sleep, 1.0)
            except (OSError, EOFError) as exc:
                self.errors.append(type(exc).__name__)
                await asyncio.sleep(1.0)


class EchoWorld:
    """A server and a caller, each on its host."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.server_host, self.caller_host = self.network.add_host("server"), self.network.add_host("caller")
        self.caller = Caller()
        self._installed = patches.installed(self.world)

    def __enter__(self) -> EchoWorld:
        self._installed.__enter__()
        self.server = self.start_server()
        self.world.run_for(1.0)
        self.client = Node(self.network, "caller", self.caller_host).start(self.caller)
        return self

    def __exit__(self, *error: object) -> None:
        self._installed.__exit__(*error)

    def start_server(self) -> Node:
        return Node(self.network, "server", self.server_host).start(serve)

    def heard_within(self, seconds: float) -> int:
        """How many answers come in the next virtual seconds."""
        before = len(self.caller.heard)
        self.world.run_for(seconds)
        return len(self.caller.heard) - before


def trace_of(seed: int) -> str:
    """Of a run with a kill, a restart and a partition."""
    with EchoWorld(seed) as echo:
        echo.world.run_for(10)
        echo.server.kill()
        echo.world.run_for(3)
        echo.start_server()
        echo.world.run_for(10)
        echo.network.part(echo.server_host, echo.caller_host)
        echo.world.run_for(5)
        echo.network.join(echo.server_host, echo.caller_host)
        echo.world.run_for(30)
        assert len(echo.caller.heard) > 30, echo.caller.errors
        return echo.world.trace


if __name__ == "__main__":
    print(trace_of(int(sys.argv[1])))
