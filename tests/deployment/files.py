"""What the files of deploy/ say, as values: units of systemd, the Dockerfile, manifests, the compose file."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROGRAM = Path(sys.executable).with_name("contrailmq")
INSTALLED = "/opt/contrailmq/bin/contrailmq"  # as the units have it


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def compose() -> dict[str, Any]:
    [whole] = documents(DEPLOY / "docker" / "compose.yaml")
    return whole


def dockerfile(instruction: str) -> list[str]:
    """The last one of its kind, which has a JSON list."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    words: list[str] = json.loads(re.findall(rf"^{instruction} .*?(\[.*\])$", text, re.MULTILINE)[-1])
    return words


def unit(name: str, instance: str = "") -> dict[str, str]:
    """Keys of a unit, the last of a kind."""
    lines = (DEPLOY / "systemd" / name).read_text().replace("%i", instance).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def unit_command(name: str, instance: str = "") -> list[str]:
    words = shlex.split(unit(name, instance)["ExecStart"])
    assert words[0] == INSTALLED
    return [str(PROGRAM), *words[1:]]


def workloads() -> dict[str, dict[str, Any]]:
    """Of the manifests: name -> the pod's spec."""
    parts = [part for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for part in documents(path)]
    return {
        part["metadata"]["name"]: part["spec"]["template"]["spec"]
        for part in parts
        if "template" in part.get("spec", {})
    }


def settings_file(name: str) -> str:
    """The text of a ConfigMap's only file."""
    parts = [part for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for part in documents(path)]
    [data] = [part["data"] for part in parts if part["kind"] == "ConfigMap" and part["metadata"]["name"] == name]
    [text] = data.values()
    return str(text)
