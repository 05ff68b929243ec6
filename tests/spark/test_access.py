"""Jobs on a cluster that lets in only who signs and speaks TLS: replay, redrive, mirrored offsets, and their commands.

Our broker checks no signatures, so a guard stands before its handlers: it computes RocketMQ's signature from the bytes
of the request by itself and answers NO_PERMISSION to everything else, as Apache's broker does.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contrailmq.broker.handlers import Handlers
from contrailmq.cli import app
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.message import ContrailError, dlq_topic
from contrailmq.spark.access import Access, access_of
from contrailmq.spark.columns import OptionError
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.jobs.replay import redrive, replay
from contrailmq.spark.mirror import OffsetMirror
from contrailmq.spark.sinks import sending
from contrailmq.spark.sinks.sending import Sender, SinkSettings, make_message
from contrailmq.spark.sources.rocketmq import offsets_json
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.connection import Connection
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command

CERTS = Path(__file__).resolve().parents[1] / "wire" / "certs"
SECRETS = {"alice": b"alices-secret"}
TLS = {"rocketmq.tls.enable": "true"} | {
    f"rocketmq.tls.client.{name}": value
    for name, value in {
        "authServer": "true",
        "trustCertPath": str(CERTS / "ca.pem"),
        "certPath": str(CERTS / "client.pem"),
        "keyPath": str(CERTS / "client.key"),
    }.items()
}
RIGHT = {**TLS, "rocketmq.accessKey": "alice", "rocketmq.secretKey": "alices-secret"}
WRONG = {**RIGHT, "rocketmq.secretKey": "a-guess"}


def is_signed(command: Command) -> bool:
    fields = dict(command.ext)
    claimed, secret = fields.pop("Signature", ""), SECRETS.get(fields.get("AccessKey", ""))
    if secret is None:
        return False
    content = "".join(value for _, value in sorted(fields.items())).encode() + bytes(command.body)
    return hmac.compare_digest(base64.b64encode(hmac.digest(secret, content, "sha1")).decode(), claimed)


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalCluster]:
    """A cluster behind TLS with client certificates and the guard."""
    files = {"certPath": "server.pem", "keyPath": "server.key", "trustCertPath": "ca.pem"}
    certificates = {f"tls.server.{name}": str(CERTS / file) for name, file in files.items()}
    certificates["tls.server.need.client.auth"] = "require"
    certificates |= {name.removeprefix("rocketmq."): value for name, value in TLS.items()}
    serve = Handlers.handle

    def guard(self: Handlers, connection: Connection, commands: list[Command]) -> None:
        for command in commands:
            if is_signed(command):
                serve(self, connection, [command])
            else:
                refused = encode_response(command, ResponseCode.NO_PERMISSION, remark="who are you?")
                connection.reply(refused)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handlers, "handle", guard)
        with LocalCluster(config={**certificates, "tls.server.mode": "enforcing"}) as running:
            yield running


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_PAUSE_S", 0.0)


@pytest.fixture
def client(guarded: LocalCluster) -> Iterator[QueueReader]:
    with access_of(RIGHT).open(guarded.namesrv, "looking", 5.0) as reader:
        yield reader


def count_of(client: QueueReader, topic: str) -> int:
    return sum(client.max_offset(queue) for queue in client.queues(topic))


def test_replay_goes_in_with_the_right_key_and_with_no_other(
    guarded: LocalCluster, client: QueueReader, golden_store: Callable[[str], str]
) -> None:
    only = Selection(topics=frozenset(["GoldenOrder"]))
    for options, text in ((WRONG, "who are you"), (TLS, "who are you"), ({}, "TLS")):
        with pytest.raises(ContrailError, match=text):
            replay(golden_store("clean"), "Guarded", guarded.namesrv, selection=only, options=options)
    assert replay(golden_store("clean"), "Guarded", guarded.namesrv, selection=only, options=RIGHT).sent == 48
    assert count_of(client, "Guarded") == 48  # and nothing of the refused runs


def letters(guarded: LocalCluster, group: str) -> None:
    settings = SinkSettings(guarded.namesrv, access_of(RIGHT))
    with settings.access.open(guarded.namesrv, "letters", 5.0) as reader:
        sender = Sender(reader, settings)
        for number in range(3):
            letter = make_message({"topic": dlq_topic(group), "body": f"b{number}"}, settings, f"{group}-{number}")
            letter.properties["RETRY_TOPIC"] = f"Fixed-{group}"  # a broker's own property
            sender.add(letter, {})
            back = {"topic": f"Fixed-{group}", "body": "makes the topic"}
            sender.add(make_message(back, settings, f"{group}-{number}-back"), back)
        sender.flush()


def test_redrive_goes_in_with_the_right_key_and_with_no_other(guarded: LocalCluster, client: QueueReader) -> None:
    letters(guarded, "g")
    for options, text in ((WRONG, "who are you"), (TLS, "who are you"), ({}, "TLS")):
        with pytest.raises(ContrailError, match=text):
            redrive("g", guarded.namesrv, options=options)
    assert redrive("g", guarded.namesrv, options=RIGHT).sent == 3
    assert redrive("g", guarded.namesrv, options=RIGHT).skipped == 3
    assert count_of(client, "Fixed-g") == 6  # with the three that made the topic


def test_mirrored_offsets_go_in_with_the_right_key_and_with_no_other(
    guarded: LocalCluster, client: QueueReader
) -> None:
    letters(guarded, "m")
    queue = next(queue for queue in client.queues(dlq_topic("m")) if client.max_offset(queue))
    end = json.dumps(offsets_json({queue: 2}))
    for options in (WRONG, TLS):
        with pytest.raises(ContrailError, match="who are you"):
            OffsetMirror(guarded.namesrv, "lag", access=access_of(options)).publish(end)
    assert client.consumer_offset(queue, "lag") < 0
    OffsetMirror(guarded.namesrv, "lag", access=access_of(RIGHT)).publish(end)
    assert client.consumer_offset(queue, "lag") == 2


def test_the_commands_take_keys_by_hand_and_from_a_file(
    guarded: LocalCluster, client: QueueReader, tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    """What is given by hand wins; a name without effect is an error before anything is sent."""
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name.removeprefix('rocketmq.')}={value}\n" for name, value in RIGHT.items()))

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["pipeline", *words, "-n", guarded.namesrv, "--engine", "local", "--json"])

    words = ["replay", "--from", golden_store("clean"), "--topics", "GoldenOrder", "--to-topic", "ByHand"]
    refused = run(*words, "--client-file", str(file), "--client", "secretKey=a-guess")
    assert refused.exit_code == 2
    assert "who are you" in refused.stderr
    mistyped = run(*words, "--client", "acessKey=x")
    assert mistyped.exit_code == 2
    assert "did you mean rocketmq.accessKey" in mistyped.stderr
    done = run(*words, "--client-file", str(file))
    assert json.loads(done.stdout)["sent"] == count_of(client, "ByHand") == 48
    letters(guarded, "c")
    back = run("redrive", "--group", "c", *(word for item in RIGHT.items() for word in ("--client", "=".join(item))))
    assert json.loads(back.stdout)["sent"] == count_of(client, "Fixed-c") - 3 == 3


def test_options_that_are_no_client_settings_are_refused() -> None:
    with pytest.raises(OptionError, match="accessKey has no effect here: only rocketmq.accessKey"):
        access_of({"accessKey": "alice"})
    assert access_of(None) == access_of({}) == Access()
