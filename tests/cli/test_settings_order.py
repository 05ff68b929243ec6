"""Which source of a setting counts, as a whole command sees it: flag, our environment, file, RocketMQ's environment.

RocketMQ's NAMESRV_ADDR is the initial value of a field (BrokerConfig.namesrvAddr) that the file replaces, and then -n.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.wire.properties import parse_properties

WARNING = (
    "warning: namesrvAddr is 'file:1' as {path} says, and not 'shell:1' as NAMESRV_ADDR of the environment says: as in "
    "RocketMQ the file counts. Remove the key from the file, or unset NAMESRV_ADDR\n"
)


@pytest.mark.parametrize(
    ("flags", "environment", "file", "expected", "is_told"),
    [
        ((), {"NAMESRV_ADDR": "shell:1"}, "", "shell:1", False),
        ((), {"NAMESRV_ADDR": "shell:1"}, "namesrvAddr=file:1", "file:1", True),
        ((), {"NAMESRV_ADDR": "file:1"}, "namesrvAddr=file:1", "file:1", False),
        ((), {"NAMESRV_ADDR": ""}, "namesrvAddr=file:1", "file:1", False),
        ((), {"CONTRAILMQ_NAMESRV_ADDR": "ours:1", "NAMESRV_ADDR": "shell:1"}, "namesrvAddr=file:1", "ours:1", False),
        (("-n", "flag:1"), {"CONTRAILMQ_NAMESRV_ADDR": "ours:1"}, "namesrvAddr=file:1", "flag:1", False),
        (("-n", "flag:1"), {"NAMESRV_ADDR": "shell:1"}, "namesrvAddr=file:1", "flag:1", False),
        (("--set", "namesrvAddr=set:1"), {"NAMESRV_ADDR": "shell:1"}, "", "set:1", False),
    ],
)
def test_a_file_beats_the_shells_namesrv_addr_and_says_so(
    tmp_path: Path, flags: tuple[str, ...], environment: dict[str, str], file: str, expected: str, is_told: bool
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(file)
    clean = {"NAMESRV_ADDR": None, "CONTRAILMQ_NAMESRV_ADDR": None}
    result = CliRunner().invoke(app, ["broker", "-p", "-c", str(path), *flags], env=clean | environment)
    assert result.exit_code == 0, result.output
    assert parse_properties(result.stdout)["namesrvAddr"] == expected
    assert result.stderr == (WARNING.format(path=path) if is_told else "")


def test_rocketmq_home_is_a_default_of_the_name_server_too(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("rocketmqHome=/of/the/file")
    result = CliRunner().invoke(app, ["namesrv", "-p", "-c", str(path)], env={"ROCKETMQ_HOME": "/of/the/shell"})
    assert result.exit_code == 0, result.output
    assert parse_properties(result.stdout)["rocketmqHome"] == "/of/the/file"
    assert "'/of/the/file'" in result.stderr
    assert "'/of/the/shell' as ROCKETMQ_HOME" in result.stderr
