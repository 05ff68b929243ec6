"""Ports for servers that cannot be given port 0: Apache's programs, and servers that come back at their address."""

from __future__ import annotations

import itertools
import os
import random
import socket
from contextlib import ExitStack

# Below the range from which the system takes ports of clients: no client takes one before its server does.
_BLOCKS, _BLOCK_PORTS = range(11_000, 31_000, 1_000), 1_000
_STEP = 10
_taken: list[socket.socket] = []  # the claim of this process, for as long as it lives
_next = itertools.count(random.randrange(1, _BLOCK_PORTS // _STEP))


def _block() -> int:
    """The first port of this process's own block, which it holds: runs of the tests side by side share none."""
    if not _taken:
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        for number in range(len(_BLOCKS)):
            claim = socket.socket()
            try:
                claim.bind(("127.0.0.1", _BLOCKS[(worker + number) % len(_BLOCKS)]))
            except OSError:
                claim.close()
                continue
            _taken.append(claim)
            break
        else:
            raise AssertionError(f"all {len(_BLOCKS)} blocks of ports from {_BLOCKS[0]} on are taken: stop other tests")
    port: int = _taken[0].getsockname()[1]
    return port


def free_port() -> int:
    """A port that nothing listens on, nor on its neighbours: Apache's broker takes the one two below it too.

    Ports are given out in turn: a broker's port is not given out again for its replication port, which it opens later.
    """
    first, count = _block(), _BLOCK_PORTS // _STEP
    for _ in range(count):
        port = first + _STEP * (next(_next) % (count - 1) + 1)
        with ExitStack() as probes:
            try:
                for number in (port - 2, port, port + 1):
                    probes.enter_context(socket.create_server(("127.0.0.1", number)))
            except OSError:
                continue
            return port
    raise AssertionError(f"all ports from {first} to {first + _BLOCK_PORTS} are taken: stop what listens there")
