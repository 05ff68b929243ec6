"""`contrailmq admin` with wrong names, places and servers: one sentence and an exit code, never a traceback."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from contrailmq import Admin
from contrailmq.cli import app
from contrailmq.testing import LocalCluster

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
try:
    from admin_page import commands
finally:
    sys.path.pop(0)

NOBODY = "127.0.0.1:1"
# What a command needs besides words for its arguments.
MORE = {"group reset": ["--to", "latest"], "offset reset": ["--to", "latest"], "message trace": []}
CHANGES = {"topic update": ["--queues", "2"], "group update": ["--retries", "2"]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        with Admin(namesrv=made.namesrv) as admin:
            admin.create_topic("Orders", queues=2)
            admin.create_group("billing")
        yield made


def called(path: str, words: list[str], namesrv: str) -> Result:
    return CliRunner().invoke(app, ["admin", *path.split(), *words, "-n", namesrv])


def one_sentence(result: Result, code: int = 1) -> str:
    """The error, which is all that was said."""
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    (line,) = result.output.splitlines()
    assert line.startswith("error: ")
    return line


def words_for(path: str, command: object, tmp_path: Path) -> list[str]:
    words = []
    for item in getattr(command, "params"):  # noqa: B009 -- Typer's own types are private
        if item.param_type_name == "argument":
            name = item.name
            file = tmp_path / "empty.yaml"
            file.write_text("{}")
            words.append({"address": NOBODY, "change": "deleteWhen=05", "file": str(file)}.get(name, "Word"))
    return [*words, *MORE.get(path, []), *CHANGES.get(path, [])]


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_every_command_says_in_one_sentence_that_the_servers_are_not_there(path: str, tmp_path: Path) -> None:
    words = words_for(path, dict(commands())[path], tmp_path)
    assert NOBODY in one_sentence(called(path, words, NOBODY))


@pytest.mark.parametrize("path", ["topic list", "check", "migrate plan", "export"])
def test_what_is_no_rocketmq_server_is_said(path: str) -> None:
    """A web server's answer, and no answer at all after three seconds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert address in one_sentence(called(path, [], address))
        thread.join()


def test_a_name_server_that_says_nothing_is_given_up_after_three_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        said = one_sentence(called("topic list", [], address))
    assert f"no answer from {address} to " in said
    assert " within 3 s" in said


@pytest.mark.parametrize(
    ("path", "words", "text"),
    [
        ("topic status", "Order", "topic Order does not exist: did you mean Orders?"),
        ("topic update", "Ordrs --queues 3", "topic Ordrs does not exist"),
        ("topic delete", "Ordres --yes", "topic Ordres does not exist: did you mean Orders?"),
        ("topic route", "Ordres", "Ordres"),
        ("topic create", "a/b", "a/b"),
        ("topic create", "New --broker brokr-0", "no broker brokr-0 is registered at the NameServer: did you mean"),
        ("topic create", "New --cluster Defaultcluster", "no cluster Defaultcluster is registered at the NameServer"),
        ("topic create", "New --perm 9", "perm"),
        ("topic update", "Orders --attribute nothing=x", "nothing"),
        ("group progress", "biling", "group biling does not exist: did you mean billing?"),
        ("group members", "biling", "did you mean billing?"),
        ("group reset", "billing Ordrs --to latest", "topic Ordrs does not exist: did you mean Orders?"),
        ("group reset", "billing Orders --offset 9 --yes", "no queue of topic Orders has the offset 9: they have"),
        ("group skip", "biling", "did you mean billing?"),
        ("group delete", "biling --yes", "did you mean billing?"),
        ("group create", "a/b", "a/b"),
        ("message get", "Orders 00000000", "has no message 00000000"),
        ("message tail", "Orderz", "did you mean Orders?"),
        ("message tail", "Orderz -f", "did you mean Orders?"),
        ("message by-key", "Orderz k", "did you mean Orders?"),
        ("message resend", "Orders nothing --yes", "has no message nothing"),
        ("message trace", "0000", "topic RMQ_SYS_TRACE_TOPIC does not exist"),
        ("dlq list", "biling", "did you mean billing?"),
        ("dlq export", "biling", "did you mean billing?"),
        ("producers", "--broker nobody", "no broker nobody is registered at the NameServer"),
        ("offset clone", "billing biling Orders", "did you mean billing?"),
    ],
)
def test_a_wrong_name_is_one_sentence_with_what_was_meant(
    cluster: LocalCluster, path: str, words: str, text: str
) -> None:
    assert text in one_sentence(called(path, words.split(), cluster.namesrv))


@pytest.mark.parametrize("address", ["nonsense", "::", "a b:c", "127.0.0.1:99999999", "x" * 300, "ä.invalid:1", "-1"])
@pytest.mark.parametrize("path", ["broker status", "ha status"])
def test_an_address_that_is_none_is_one_sentence(path: str, address: str) -> None:
    result = CliRunner().invoke(app, ["admin", *path.split(), "--", address])
    assert result.exit_code == 1, result.output
    assert len(result.output.splitlines()) == 1
    assert result.output.startswith("error: ")


@pytest.mark.parametrize(
    ("setting", "code", "text"),
    [
        ("deleteWhn=05", 1, "has no setting deleteWhn: did you mean deleteWhen?"),
        ("maxFilterMessageSize=many", 1, "maxFilterMessageSize"),
        ("nothing", 2, "is not key=value"),
    ],
)
def test_a_wrong_setting_is_one_sentence(cluster: LocalCluster, setting: str, code: int, text: str) -> None:
    result = called("broker set", [cluster.broker_addresses[0], setting], cluster.namesrv)
    assert text in one_sentence(result, code)
