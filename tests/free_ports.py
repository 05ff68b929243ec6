"""Ports for servers that cannot be given port 0: Apache's programs, and servers that come back at their address."""

from __future__ import annotations

import itertools
import os
import random
import socket
from contextlib import ExitStack

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
_FIRST, _COUNT = 1_100 + _WORKER * 200, 200
_next = itertools.count(random.randrange(_COUNT))


def free_port() -> int:
    """A port that nothing listens on, nor on its neighbours: Apache's broker takes the one two below it too.

    It is below the range from which the system takes ports of clients, so no client takes it before the server does.
    Each process of the tests has 200 ports of its own and takes them in turn: a broker's port is not given out again
    for its replication port, which it opens later.
    """
    for _ in range(_COUNT):
        port = 10 * (_FIRST + next(_next) % _COUNT)
        with ExitStack() as probes:
            try:
                for number in (port - 2, port, port + 1):
                    probes.enter_context(socket.create_server(("127.0.0.1", number)))
            except OSError:
                continue
            return port
    raise AssertionError(f"all {_COUNT} ports from {10 * _FIRST} on are taken: stop what listens there")
