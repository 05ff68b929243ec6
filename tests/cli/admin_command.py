"""Running `contrailmq admin …` against a cluster of ours."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.testing import LocalCluster


def asked(cluster: LocalCluster, *arguments: str) -> Result:
    """What the command printed and how it ended."""
    return CliRunner().invoke(app, ["admin", *arguments, "--namesrv", cluster.namesrv])


def run(cluster: LocalCluster, *arguments: str, code: int = 0) -> str:
    """What the command printed, on both streams; it must end with the exit code."""
    result = asked(cluster, *arguments)
    assert result.exit_code == code, result.output
    return result.output


def run_json(cluster: LocalCluster, *arguments: str) -> Any:
    """What the command printed on standard output; it must end with exit code 0."""
    result = asked(cluster, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
