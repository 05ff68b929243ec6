"""The blocking clients are their asyncio twins, name by name and argument by argument."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import contrailmq
import contrailmq.aio as aio
from contrailmq.client.errors import ClientStateError

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("Producer", "TransactionProducer", "PushConsumer", "LitePullConsumer", "SimpleConsumer", "Admin")
# Of the asyncio clients only: what their own parts call, and what is for the loop.
OWN = frozenset(
    """
    pack direct_sender send_again heartbeat offsets_of namesrv subscriptions topics subscribed_topics route_changed
    request_rebalance reset_offsets running_info consume_directly consume_type mark_entered is_suspended set_assigned
    forget_polled
    """.split()  # noqa: SIM905 - reads as a list
)


def public(of: type) -> dict[str, object]:
    return {name: inspect.getattr_static(of, name) for name in dir(of) if not name.startswith("_")}


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_of_the_asyncio_client_is_there(name: str) -> None:
    left_out = OWN if name != "Admin" else frozenset[str]()
    asked, given = public(getattr(aio, name)), public(getattr(contrailmq, name))
    assert given.keys() == {each for each in asked if each not in left_out}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_takes_the_same_arguments(name: str) -> None:
    """What comes back is the same too, but for `send_async`, whose future is for threads."""
    twin, face = getattr(aio, name), getattr(contrailmq, name)
    for each, method in public(face).items():
        other = inspect.getattr_static(twin, each)
        if isinstance(other, property):
            assert isinstance(method, property), each
            continue
        ours, theirs = inspect.signature(getattr(face, each)), inspect.signature(getattr(twin, each))
        assert ours.parameters == theirs.parameters, each
        if each != "send_async":
            assert ours.return_annotation == theirs.return_annotation, each
        assert not inspect.iscoroutinefunction(method), each
    assert inspect.signature(face) == inspect.signature(twin)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_client_that_was_not_started_says_so_by_its_name(name: str) -> None:
    more = {"execute": print, "check": print} if name == "TransactionProducer" else {}
    client = getattr(contrailmq, name)("g", namesrv="127.0.0.1:1", **more)
    call = client.poll if name == "LitePullConsumer" else (lambda: client._run(client._client.shutdown()))
    with pytest.raises(ClientStateError, match=f"^{name} is not running"):
        call()


def test_the_generated_modules_are_what_the_asyncio_clients_make_of_them() -> None:
    command = [sys.executable, str(ROOT / "tools" / "blocking_clients.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
