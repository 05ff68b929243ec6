"""Which addresses a server listens on, and what it says of those that it cannot."""

from __future__ import annotations

import asyncio
import errno
import socket
from itertools import pairwise

import pytest

from contrailmq.wire.errors import ConnectError, ListenError
from contrailmq.wire.listener import AT_ONCE, Address, listen_on
from contrailmq.wire.transport import RemotingServer, split_address

from .peers import Run, echo


@pytest.mark.parametrize("host", ["a..b", ".local", "x" * 64, "\u00fc..x", "\ud800"])
def test_a_host_that_can_be_no_name_is_an_error_like_any_other(host: str, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(ListenError, match="not a host name: each part between dots has 1 to 63 characters"):
            await RemotingServer(echo, host=host).start()

    run(main())
    with pytest.raises(ConnectError, match="cannot connect to .*not a host name"):
        split_address(f"{host}:9876")


def test_an_address_in_brackets_is_told_to_come_without(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(ListenError, match="without brackets"):
            await RemotingServer(echo, host="[::1]").start()

    run(main())


def test_of_a_name_with_several_addresses_one_that_this_machine_has_is_enough(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where IPv6 is switched off, `localhost` still stands for ::1 in most lists of hosts."""
    create = socket.create_server

    def without_ipv6(address: tuple[str, int], *, family: int, backlog: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return create(address, family=family, backlog=backlog)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    both: list[Address] = [(socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0, 0, 0))]
    [listening] = listen_on(both, 0, "localhost")
    listening.close()
    assert "localhost is also ::1, which this machine cannot listen on" in caplog.text
    with pytest.raises(OSError, match="Cannot assign requested address"):
        listen_on(both[1:], 0, "localhost")


def test_an_address_of_one_link_is_listened_on_with_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """fe80::1%eth0: without the number of the interface the kernel refuses it."""
    asked: list[tuple[object, ...]] = []

    def note(address: tuple[object, ...], *, family: int, backlog: int) -> socket.socket:
        asked.append(address)
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(socket, "create_server", note)
    with pytest.raises(OSError, match="Invalid argument"):
        listen_on([(socket.AF_INET6, ("fe80::1", 0, 0, 7))], 9876, "fe80::1%eth0")
    assert asked == [("fe80::1", 9876, 0, 7)]


def test_a_crowd_is_let_in_by_and_by_and_the_others_have_their_turns_in_between(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1")
        await server.start()
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10 * AT_ONCE)]  # in the kernel
        counts = [0]
        while counts[-1] < len(crowd):
            await asyncio.sleep(0)
            counts.append(len(server.connections))
        assert max(later - earlier for earlier, later in pairwise(counts)) <= 2 * AT_ONCE
        for peer in crowd:
            peer.close()
        await server.close(drain_seconds=0.0)

    run(main())
