"""Logs of the long-running commands: form, file, level, and the lines of children."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import contrailmq
from contrailmq.cli.logs import JsonLines, LogLevel, LogSettings, PlainLines, child_log, start_logging

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR) contrailmq[\w.]*: .+")


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, which gets back what it had."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    ours = [handler for handler in logger.handlers if handler not in handlers]
    logger.handlers[:] = handlers
    logger.setLevel(level)
    for handler in ours:
        with contextlib.suppress(OSError):  # of a full device
            handler.close()


def record(text: str, *args: object, **more: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "contrailmq.broker", "levelname": "INFO", "levelno": 20, "msg": text, "args": args, **more}
    )


def test_a_line_cannot_be_forged_and_a_terminal_not_moved() -> None:
    line = PlainLines("%(levelname)s %(name)s: %(message)s").format(record("peer said %s", "\x1b[2J\nERROR owned"))
    assert line == "INFO contrailmq.broker: peer said \\x1b[2J\\nERROR owned"
    try:
        raise ValueError("\x1b[31mred")
    except ValueError:
        shown = PlainLines("%(message)s").format(record("failed", exc_info=sys.exc_info()))
    assert shown.splitlines()[0] == "failed"
    assert shown.splitlines()[-1] == "ValueError: \\x1b[31mred"


def test_json_has_time_level_logger_message_and_exception() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        line = JsonLines().format(record("said %s", "\x9b\n", created=0.5, exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "\x9b" not in line
    said = json.loads(line)
    assert said.pop("exception").endswith("ValueError: no")
    assert said == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "INFO",
        "logger": "contrailmq.broker",
        "message": "said \x9b\n",
    }


def test_a_file_is_turned_by_size_and_old_ones_are_removed(tmp_path: Path, root: logging.Logger) -> None:
    path = tmp_path / "logs" / "broker.log"
    start_logging(LogSettings(LogLevel.WARNING, path, file_mib=1, files_kept=2))
    log = logging.getLogger("contrailmq.broker")
    log.info("left out")
    for number in range(40):
        log.warning("%d %s", number, "x" * 100_000)
    assert sorted(os.listdir(path.parent)) == ["broker.log", "broker.log.1", "broker.log.2"]
    assert all(file.stat().st_size <= 1 << 20 for file in path.parent.iterdir())
    assert "39 x" in path.read_text()
    assert "left out" not in "".join(file.read_text() for file in path.parent.iterdir())


def test_a_file_that_cannot_be_written_is_told_once_and_stops_nobody(
    root: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    start_logging(LogSettings(file=Path("/dev/full")))
    for _ in range(3):
        logging.getLogger("contrailmq.broker").error("lost")
    assert capfd.readouterr().err.count("the log file /dev/full cannot be written") == 1


@pytest.mark.parametrize("how", ["renamed", "renamed and made anew", "removed"])
def test_a_file_that_others_turn_is_opened_anew_and_still_turned_by_size(
    tmp_path: Path, root: logging.Logger, how: str
) -> None:
    """As logrotate does, with or without `create`."""
    path = tmp_path / "log"
    start_logging(LogSettings(LogLevel.WARNING, path, file_mib=1, files_kept=2))
    log = logging.getLogger("contrailmq.broker")
    log.warning("before")
    if how == "removed":
        path.unlink()
    else:
        path.rename(tmp_path / "kept")
    if how == "renamed and made anew":
        path.touch()
    log.warning("after")
    assert "before" not in path.read_text()
    assert path.read_text().endswith("after\n")
    if how != "removed":
        assert (tmp_path / "kept").read_text().endswith("before\n")
    for number in range(12):
        log.warning("%d %s", number, "x" * 100_000)
    assert "after" in (tmp_path / "log.1").read_text()


def test_a_directory_of_logs_that_is_gone_stops_nobody_and_is_used_again_when_it_is_back(
    tmp_path: Path, root: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs" / "log"
    start_logging(LogSettings(file=path))
    log = logging.getLogger("contrailmq.broker")
    log.warning("before")
    path.parent.rename(tmp_path / "moved")
    log.warning("lost")
    assert capfd.readouterr().err.count(f"the log file {path} cannot be written") == 1
    path.parent.mkdir()
    log.warning("after")
    assert path.read_text().endswith("after\n")


@pytest.mark.parametrize("command", ["broker", "namesrv", "up"])
def test_every_line_is_json_and_the_last_one_says_why_it_ends(tmp_path: Path, command: str) -> None:
    flags = ["--set", "listenPort=x"] if command == "namesrv" else ["--set", "fileReservedTime=x"]
    ended = subprocess.run(
        [sys.executable, "-m", "contrailmq", command, *flags, "--log-json"],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    assert ended.returncode == 1
    *_, said = (json.loads(line) for line in ended.stderr.splitlines())
    assert said["level"] == "ERROR"
    assert "'x'" in said["message"]


def test_brokers_that_are_refused_are_told_with_their_reason_in_json_and_in_the_file(tmp_path: Path) -> None:
    process = up(tmp_path, "--set", "aclEnable=true", "--log-json", "--log-file", str(tmp_path / "log"))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    (line,) = errors.splitlines()
    said = json.loads(line)["message"]
    assert re.match(r"broker-[ab] did not start: exit code 1; it said:\nthese settings promise what is not", said)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[-1]["message"] == said
    assert {line["level"] for line in lines if "these settings promise" in line["message"]} == {"ERROR"}


@pytest.mark.parametrize("is_json", [False, True])
def test_lines_of_children_stand_behind_their_name_at_any_level(
    tmp_path: Path, root: logging.Logger, is_json: bool
) -> None:
    start_logging(LogSettings(LogLevel.ERROR, tmp_path / "log", is_json=is_json))
    take = child_log("broker-b")
    take('{"level": "ERROR", "message": "full"}' if is_json else "12:00 ERROR full")
    take("Fatal Python error \x1b[0m")
    lines = (tmp_path / "log").read_text().splitlines()
    if is_json:
        said, last = (json.loads(line) for line in lines)
        assert said == {"level": "ERROR", "message": "full", "process": "broker-b"}
        assert last.keys() == {"time", "level", "logger", "message", "process"}
        assert (last["message"], last["process"]) == ("Fatal Python error \x1b[0m", "broker-b")
    else:
        assert lines == ["[broker-b] 12:00 ERROR full", "[broker-b] Fatal Python error \\x1b[0m"]


def environment() -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}


def up(tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "contrailmq",
        "up",
        "--no-console",
        "--store",
        str(tmp_path / "data"),
        "--brokers",
        "2",
    ]
    return subprocess.Popen(
        [*command, "--namesrv-port", "0", "--broker-port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def test_up_shows_its_brokers_logs_and_ctrl_c_stops_them_cleanly(tmp_path: Path) -> None:
    """Ctrl-C reaches every process of the terminal; then `up` asks its brokers to end, which is no second wish."""
    process = up(tmp_path)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready namesrv ")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, errors
    lines = errors.splitlines()
    for name in ("broker-a", "broker-b"):
        own = [line.removeprefix(f"[{name}] ") for line in lines if line.startswith(f"[{name}] ")]
        assert all(LINE.fullmatch(line) for line in own if not line.startswith("ready ")), own
        assert any("the store is new: its log is empty" in line for line in own)
        assert any("registered with NameServer" in line for line in own)
        assert any(line.endswith(f"broker {name} stopped") for line in own)
    own = [line for line in lines if not line.startswith("[")]
    assert any("broker broker-a (id 0) of cluster DefaultCluster registered at" in line for line in own)
    assert any("of cluster DefaultCluster at" in line and "is forgotten: it said goodbye" in line for line in own)


def test_up_names_the_broker_that_ended_and_its_signal(tmp_path: Path) -> None:
    process = up(tmp_path)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready namesrv ")
        os.kill(int((tmp_path / "data" / "broker-b" / "abort").read_text()), signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 1, errors
    assert errors.splitlines()[-1] == (
        "error: broker broker-b ended by itself with signal 9: its log may say why; the others were stopped"
    )


def test_up_with_a_json_log_file_has_everything_in_it(tmp_path: Path) -> None:
    process = up(tmp_path, "--log-json", "--log-file", str(tmp_path / "up.log"))
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready namesrv ")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert (process.returncode, errors) == (0, "")
    said = [json.loads(line) for line in (tmp_path / "up.log").read_text().splitlines()]
    assert {line.get("process") for line in said} == {None, "broker-a", "broker-b"}
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in said)
    ready = [line["process"] for line in said if line["message"].startswith("ready broker ")]
    assert sorted(ready) == ["broker-a", "broker-b"]


def test_a_level_that_nobody_knows_and_a_file_that_cannot_be_are_one_line(tmp_path: Path) -> None:
    for command in ("broker", "namesrv", "up"):
        wrong = subprocess.run(
            [sys.executable, "-m", "contrailmq", command, "--log-file", "/dev/null/x"],
            capture_output=True,
            text=True,
            env=environment(),
            cwd=tmp_path,
        )
        assert wrong.returncode == 1
        assert wrong.stderr.startswith("error: --log-file /dev/null/x cannot be opened: ")
        assert len(wrong.stderr.splitlines()) == 1, wrong.stderr


@pytest.mark.parametrize("command", ["broker", "namesrv"])
def test_warnings_about_settings_are_lines_of_the_log(tmp_path: Path, command: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "contrailmq", command, "--set", "listenPort=0", "--set", "fileReservdTime=1"]
        + ["--log-json", "--log-file", str(tmp_path / "log")]
        + (["--set", f"storePathRootDir={tmp_path / 'store'}"] if command == "broker" else []),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"NAMESRV_ADDR": ""},
        cwd=tmp_path,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("ready ")
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=120)
    assert errors == ""
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["level"] for line in said if "fileReservdTime" in line["message"]] == ["WARNING"]
    if command == "broker":  # RocketMQ's own conf/broker.conf names none
        assert [line["level"] for line in said if "no NameServer is set" in line["message"]] == ["WARNING"]
