"""`contrailmq store copy`: all of a running broker's log, resumed, followed, and opened by a broker."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq import Message, Producer, SendStatus
from contrailmq.cli.store import app
from contrailmq.message.codec import check_record
from contrailmq.store import MessageStore, StoreConfig, StoreView, verify_store
from contrailmq.testing import LocalCluster
from free_ports import free_port
from waiting_for import LIMIT_S, until

FILE_BYTES = 64 * 1024
HEAD = struct.Struct(">qi")


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    config = {"haAllowList": "127.0.0.1", "mappedFileSizeCommitLog": FILE_BYTES}
    with LocalCluster(config=config) as made:
        yield made


def send(cluster: LocalCluster, begin: int, end: int) -> None:
    with Producer("p", namesrv=cluster.namesrv) as producer:
        for number in range(begin, end):
            message = Message("T", b"%d" % number + bytes(1000), keys=f"k{number}")
            assert producer.send(message).status is SendStatus.OK


def ha_address(cluster: LocalCluster) -> str:
    replication = cluster.broker(0).replication
    assert replication is not None
    return f"127.0.0.1:{replication.port}"


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["copy", *map(str, arguments)])
    return done.exit_code, done.output


def log_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((path / "commitlog").glob("[0-9]*")))


def conf(path: Path) -> Path:
    """The ordinary port is not the one below the HA port here: both are free ones."""
    file = path / "copy.conf"
    file.write_text(f"mappedFileSizeCommitLog={FILE_BYTES}\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n")
    return file


def test_the_whole_log_is_copied_from_its_begin_and_a_second_run_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    send(cluster, 0, 150)  # three files
    copy, settings = tmp_path / "copy", conf(tmp_path)
    code, output = run(copy, "--from", ha_address(cluster), "-c", settings, "--json")
    assert code == 0, output
    first = json.loads(output)
    assert (first["log_min_offset"], first["messages"]) == (0, 150)
    send(cluster, 150, 200)
    end = cluster.broker(0).store.log_max_offset
    code, output = run(copy, "--from", ha_address(cluster), "--until", end, "-c", settings)
    assert code == 0, output
    cluster.stop_broker(0)
    assert log_of(copy)[:end] == log_of(cluster.store_path / "broker-0")[:end]
    with StoreView(StoreConfig(copy)) as view:
        assert verify_store(view).findings == []
    with MessageStore(StoreConfig(copy)) as store:  # as a master's
        assert [message.body[:3] for message in store.query("T", "k177")] == [b"177"]
        store.put(Message("T", b"goes on"))


def test_a_store_in_use_and_a_directory_of_something_else_are_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    code, output = run(cluster.store_path / "broker-0", "--from", ha_address(cluster), "-c", conf(tmp_path))
    assert code == 2
    assert "in use" in output
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "letter").write_text("dear")
    code, output = run(tmp_path / "documents", "--from", ha_address(cluster))
    assert (code, "neither empty nor a store" in output) == (2, True)
    assert not (tmp_path / "documents" / "commitlog").exists()


def test_an_address_that_nobody_listens_at_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, output = run(tmp_path / "copy", "--from", f"127.0.0.1:{port}", "-c", conf(tmp_path))
    assert code == 2
    assert f"127.0.0.1:{port} cannot be reached" in " ".join(output.split())
    code, output = run(tmp_path / "copy", "--from", "nonsense", "-c", conf(tmp_path))
    assert (code, "HOST:HAPORT" in output) == (2, True)


def test_a_connection_that_breaks_leaves_a_copy_that_goes_on(tmp_path: Path) -> None:
    """A master as RocketMQ's: it sends from the reported offset on, cut anywhere, and hangs up in a record."""
    with MessageStore(StoreConfig(tmp_path / "master", mapped_file_size_commit_log=FILE_BYTES)) as store:
        for number in range(40):
            store.put(Message("T", b"%d" % number * 20))
        log = bytes(store.read_log(0, FILE_BYTES) or b"")
    reports: list[int] = []

    def serve(listening: socket.socket, end: int) -> None:
        link, _ = listening.accept()
        with link:
            (at,) = struct.unpack(">q", link.recv(8))
            reports.append(at)
            link.sendall(HEAD.pack(at, end - at) + log[at:end])
            if end < len(log):
                return
            while link.recv(8):
                pass

    for end in (700, len(log)):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=serve, args=(listening, end))
            thread.start()
            arguments = ("--from", f"127.0.0.1:{listening.getsockname()[1]}", "--until", len(log))
            code, output = run(tmp_path / "copy", *arguments, "-c", conf(tmp_path))
            thread.join()
        assert code == (0 if end == len(log) else 1), output
        assert ("the copy stopped at offset" in output) == (code == 1)
    assert reports[0] == 1, "0 would be the last file alone"
    last = border = 0
    while border + check_record(log, border).size_bytes <= 700:
        last, border = border, border + check_record(log, border).size_bytes
    assert reports[1] == last > 0, "where the last whole record begins, to compare it"
    assert log_of(tmp_path / "copy")[: len(log)] == log


def test_a_copy_acknowledges_nothing(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from a host that may have a slave too, and a SYNC_MASTER must not take the one for the other."""
    send(cluster, 0, 150)
    replication = cluster.broker(0).replication
    assert replication is not None
    reports: list[int] = []
    monkeypatch.setattr(
        replication.server.acknowledged, "note", lambda _connection, _host, offset: reports.append(offset)
    )
    code, output = run(tmp_path / "copy", "--from", ha_address(cluster), "-c", conf(tmp_path))
    assert code == 0, output
    assert set(reports) == {1}, "where it began, and never more"


# --- a directory that has something


def history(path: Path, letter: bytes) -> bytes:
    """A log of two files. Those of other letters have records of the same sizes at the same places."""
    with MessageStore(StoreConfig(path, mapped_file_size_commit_log=FILE_BYTES)) as store:
        for _ in range(80):
            store.put(Message("T", letter * 1000))
        return b"".join(bytes(store.read_log(begin, FILE_BYTES) or b"") for begin in (0, FILE_BYTES))


@contextmanager
def master(log: bytes) -> Iterator[str]:
    """As RocketMQ's: for one connection, it sends from the first report on, and lives until the peer hangs up."""

    def serve(listening: socket.socket) -> None:
        link, _ = listening.accept()
        with link:
            (at,) = struct.unpack(">q", link.recv(8))
            while at < len(log):
                block = log[at : min(at + 300, at - at % FILE_BYTES + FILE_BYTES)]
                try:
                    link.sendall(HEAD.pack(at, len(block)) + block)
                except ConnectionError:
                    return  # refused
                at += len(block)
            with suppress(ConnectionError):
                while link.recv(8):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def files_of(path: Path) -> dict[str, bytes]:
    """All but the clock's, which every opening may write."""
    files = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith("store.clock"))
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.mark.parametrize("records", [1, 7, "a file"])
def test_only_a_directory_of_the_same_history_is_gone_on_with(tmp_path: Path, records: int | str) -> None:
    """The sizes fit in both; of the file, its BLANK is the last, and says nothing."""
    log, other = history(tmp_path / "a", b"a"), history(tmp_path / "b", b"b")
    record_bytes = check_record(log, 0).size_bytes
    assert check_record(other, 0).size_bytes == record_bytes
    assert len(log) == len(other) > FILE_BYTES
    end = records * record_bytes if isinstance(records, int) else FILE_BYTES
    last = (records - 1 if isinstance(records, int) else FILE_BYTES // record_bytes - 1) * record_bytes
    copy, settings = tmp_path / "copy", conf(tmp_path)
    with master(log[:end]) as address:
        code, output = run(copy, "--from", address, "--until", end, "-c", settings)
    assert code == 0, output
    MessageStore(StoreConfig(copy)).open().close()  # opening drops a BLANK at the end, which comes again
    before = files_of(copy)
    with master(other) as address:
        code, output = run(copy, "--from", address, "--until", len(other), "-c", settings)
    said = " ".join(output.split())
    assert code == 2, output
    assert f"offset {last}" in said
    assert f"ends at {last + record_bytes}," in said
    assert "a new directory" in said
    assert "store truncate" in said
    assert files_of(copy) == before
    with master(log) as address:
        code, output = run(copy, "--from", address, "--until", len(log), "-c", settings)
    assert code == 0, output
    assert log_of(copy)[: len(log)] == log


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("records", [0, 1, 7, 60])
def test_a_copy_until_an_offset_ends_with_the_last_record_before_it(tmp_path: Path, records: int, beyond: int) -> None:
    """Around a border of two records, in the first file and behind its BLANK; blocks of the stream end elsewhere."""
    log = history(tmp_path / "a", b"a")
    record_bytes = check_record(log, 0).size_bytes
    in_first = FILE_BYTES // record_bytes
    begins = [n * record_bytes for n in range(in_first)] + list(range(FILE_BYTES, len(log), record_bytes))
    assert len(begins) > 60 > in_first
    until = begins[records] + beyond
    # A record that ends in the first file's BLANK, or before it, is followed by a border at its own end.
    ends = [0, *(begin + record_bytes for begin in begins)]
    expected = max((end for end in ends if end <= until), default=0)
    copy, settings = tmp_path / "copy", conf(tmp_path)
    with master(log) as address:
        code, output = run(copy, "--from", address, "--until", until, "-c", settings, "--json")
    assert code == 0, output
    assert not any(log_of(copy)[expected:]), "nothing of the next record"
    assert log_of(copy)[:expected] == log[:expected]
    with master(log) as address:  # goes on from there
        code, output = run(copy, "--from", address, "--until", len(log), "-c", settings)
    assert code == 0, output
    assert log_of(copy)[: len(log)] == log


def test_a_directory_that_has_all_is_compared_too(tmp_path: Path) -> None:
    log, other = history(tmp_path / "a", b"a"), history(tmp_path / "b", b"b")
    copy, settings = tmp_path / "copy", conf(tmp_path)
    for source, expected in ((log, 0), (other, 2), (log, 0)):
        with master(source) as address:
            code, output = run(copy, "--from", address, "--until", len(log), "-c", settings)
        assert code == expected, output
    assert log_of(copy)[: len(log)] == log


def test_a_master_that_has_not_got_the_last_record_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's sends heartbeats alone then: that is no sign of one history."""
    monkeypatch.setattr("contrailmq.cli.store_copy.SILENCE_S", 0.1)
    log = history(tmp_path / "a", b"a")
    record_bytes = check_record(log, 0).size_bytes
    copy, settings = tmp_path / "copy", conf(tmp_path)
    with master(log[: 3 * record_bytes]) as address:
        assert run(copy, "--from", address, "--until", 3 * record_bytes, "-c", settings)[0] == 0
    with master(log[: 2 * record_bytes]) as address:
        code, output = run(copy, "--from", address, "-c", settings)
    assert code == 2, output
    assert f"from offset {2 * record_bytes} to {3 * record_bytes}" in " ".join(output.split())


# --- following


@contextmanager
def follower(copy: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`store copy --follow` in a process of its own."""
    command = [sys.executable, "-m", "contrailmq", "store", "copy", copy, "--follow", *arguments]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def has_all(cluster: LocalCluster, copy: Path) -> bool:
    end = cluster.broker(0).store.log_max_offset
    return log_of(copy)[:end] == log_of(cluster.store_path / "broker-0")[:end]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_copy_that_follows_ends_cleanly_on_a_signal_and_goes_on_later(
    cluster: LocalCluster, tmp_path: Path, number: signal.Signals
) -> None:
    """Ended by a signal, killed, and ended again, while messages come; then a broker opens it."""
    copy, settings = tmp_path / "opened" / "broker-0", conf(tmp_path)
    arguments = ("--from", ha_address(cluster), "-c", settings, "--json")
    for turn, how in enumerate([number, signal.SIGKILL, number]):
        with follower(copy, *arguments) as process:
            send(cluster, 100 * turn, 100 * turn + 100)
            until(lambda: has_all(cluster, copy), f"the messages of turn {turn}")
            assert process.poll() is None, "it waits for more"
            process.send_signal(how)
            output, _ = process.communicate(timeout=LIMIT_S)
        if how is signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
            continue
        assert process.returncode == 0, output
        assert json.loads(output)["messages"] == 100 * turn + 100
        assert not (copy / "abort").exists(), "a clean end"
        with StoreView(StoreConfig(copy)) as view:
            assert verify_store(view).findings == []
    with LocalCluster(store=tmp_path / "opened", config={"mappedFileSizeCommitLog": FILE_BYTES}) as opened:
        store = opened.broker(0).store
        assert [message.body[:3] for message in store.query("T", "k277")] == [b"277"]
        send(opened, 300, 301)
        assert [message.body[:3] for message in store.query("T", "k300")] == [b"300"]


def test_a_copy_that_follows_says_that_the_broker_has_stopped(cluster: LocalCluster, tmp_path: Path) -> None:
    send(cluster, 0, 10)
    end, address = cluster.broker(0).store.log_max_offset, ha_address(cluster)
    with follower(tmp_path / "copy", "--from", address, "-c", conf(tmp_path)) as process:
        until(lambda: has_all(cluster, tmp_path / "copy"), "the messages")
        cluster.stop_broker(0)
        output, _ = process.communicate(timeout=LIMIT_S)
    said = " ".join(output.split())
    assert process.returncode == 1, "not all is well, but the same command goes on"
    assert f"the copy stopped at offset {end}: the broker at {address} has stopped" in said
    assert "Run the same command again, once it is back, to go on" in said
    assert "haAllowList" not in said
    assert "10 messages" in said, "what is there is shown"
    assert not (tmp_path / "copy" / "abort").exists()


# --- why it ends


@contextmanager
def beside(**settings: object) -> Iterator[tuple[LocalCluster, str, str]]:
    """A broker with its HA port beside the ordinary one: both addresses."""
    ha_port = (port := free_port()) + 1
    config = {"mappedFileSizeCommitLog": FILE_BYTES, "listenPort": port, "haListenPort": ha_port} | settings
    with LocalCluster(config=config) as cluster:
        yield cluster, f"127.0.0.1:{port}", f"127.0.0.1:{ha_port}"


def said_of(copy: Path, *arguments: object) -> tuple[int, str]:
    code, output = run(copy, *arguments, "-c", conf(copy.parent))
    return code, " ".join(output.split())


@pytest.mark.parametrize("settings", [{}, {"haListenPort": 0}], ids=["beside", "elsewhere"])
def test_the_ordinary_port_is_told_from_the_ha_port(settings: dict[str, object], tmp_path: Path) -> None:
    with beside(haAllowList="127.0.0.1", **settings) as (_, ordinary, ha):
        code, said = said_of(tmp_path / "copy", "--from", ordinary)
    assert code == 2
    assert f"{ordinary} is the ordinary port of broker broker-0, and the log comes from its HA port" in said
    assert settings or f"--from {ha}" in said
    assert "haAllowList" not in said


def test_the_port_of_a_name_server_is_no_ha_port(cluster: LocalCluster, tmp_path: Path) -> None:
    code, said = said_of(tmp_path / "copy", "--from", cluster.namesrv)
    assert code == 2
    assert f"{cluster.namesrv} answers requests, but is no broker: give a broker's HA port" in said
    assert "haAllowList" not in said


def test_the_ha_port_of_a_slave_names_the_masters(tmp_path: Path) -> None:
    with beside(brokerRole="SLAVE", brokerId="1", haMasterAddress="10.0.0.1:10912") as (_, _ordinary, ha):
        code, said = said_of(tmp_path / "copy", "--from", ha)
    assert code == 2
    assert f"{ha} is the HA port of a slave" in said
    assert "--from 10.0.0.1:10912" in said
    assert "haAllowList" not in said


def test_an_address_that_is_not_let_in_is_named_for_the_allow_list(tmp_path: Path) -> None:
    with beside() as (_, _ordinary, ha):
        code, said = said_of(tmp_path / "copy", "--from", ha)
    assert code == 2
    assert "closed the connection before it sent anything" in said
    assert "haAllowList: name 127.0.0.1 there" in said
    assert "again to go on" not in said


def test_a_port_that_says_nothing_is_no_empty_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of another kind waits for a request in its own language."""
    monkeypatch.setattr("contrailmq.cli.store_copy.SILENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        code, said = said_of(tmp_path / "copy", "--from", address)
    assert code == 2, said
    assert f"{address} sent nothing for 0.1 s: is it the HA port of a master (listenPort + 1)?" in said


def test_an_offset_before_the_end_of_the_copy_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    send(cluster, 0, 20)
    copy = tmp_path / "copy"
    assert said_of(copy, "--from", ha_address(cluster))[0] == 0
    with MessageStore(StoreConfig(copy)) as store:
        end = store.log_max_offset
    before = files_of(copy)
    code, said = said_of(copy, "--from", ha_address(cluster), "--until", end - 1)
    assert code == 2
    assert f"the copy ends at offset {end} already, behind --until {end - 1}: nothing was copied" in said
    assert f"contrailmq store truncate {copy} --at" in said
    assert files_of(copy) == before
    assert said_of(copy, "--from", ha_address(cluster), "--until", end)[0] == 0


def test_a_copy_whose_broker_hangs_up_in_a_record_keeps_the_whole_ones_and_says_so(tmp_path: Path) -> None:
    log = history(tmp_path / "a", b"a")
    record_bytes = check_record(log, 0).size_bytes

    def serve(listening: socket.socket) -> None:
        link, _ = listening.accept()
        with link:
            (at,) = struct.unpack(">q", link.recv(8))
            link.sendall(HEAD.pack(at, 2 * record_bytes) + log[at : 2 * record_bytes])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        code, said = said_of(tmp_path / "copy", "--from", address, "--until", len(log), "--json")
        thread.join()
    assert code == 1, said
    assert f"the copy stopped at offset {2 * record_bytes}: {address} closed the connection" in said
    assert "Run the same command again to go on" in said
    assert "haAllowList" not in said
    assert json.loads(said[said.index("{") :])["messages"] == 2
