"""What deploy/ has is accepted by the linters of its kinds. A linter that is missing skips, and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deployment.files import DEPLOY, INSTALLED, PROGRAM, compose, documents, unit, workloads

MANIFESTS = sorted([*(DEPLOY / "kubernetes").glob("*.yaml"), *(DEPLOY / "spark").glob("*.yaml")])
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
# The oldest that tells a pod its number in a label, and the newest that the linter knows.
VERSIONS = ("1.28", "1.37")
EXPOSURE_MAX = 20  # tenths, of 100: systemd calls this "OK"


def linter(name: str) -> str:
    """The program of the `dev` extra, or of the system."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here")
    return found


def run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_is_accepted() -> None:
    run(linter("hadolint"), "--failure-threshold", "info", DEPLOY / "docker" / "Dockerfile")


def test_the_compose_file_is_accepted() -> None:
    run(linter("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "docker" / "compose.yaml")


def test_a_compose_file_with_a_mistake_is_not(tmp_path: Path) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text((DEPLOY / "docker" / "compose.yaml").read_text().replace("stop_grace_period", "stop_grace"))
    with pytest.raises(AssertionError, match="stop_grace"):
        run(linter("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", broken)


def test_what_the_compose_file_mounts_is_there_and_every_server_is_scraped() -> None:
    services = compose()["services"]
    mounted = [text.partition(":")[0] for service in services.values() for text in service.get("volumes", [])]
    paths = [path for path in mounted if path.startswith(".")]
    assert len(paths) == 5
    assert [path for path in paths if not (DEPLOY / "docker" / path).exists()] == []
    [prometheus] = documents(DEPLOY / "docker" / "prometheus.yml")
    targets = {name.partition(":")[0] for name in prometheus["scrape_configs"][0]["static_configs"][0]["targets"]}
    assert targets == {name for name in services if name.startswith(("namesrv", "broker"))}


def test_prometheus_accepts_its_settings(tmp_path: Path) -> None:
    settings = tmp_path / "prometheus.yml"
    text = (DEPLOY / "docker" / "prometheus.yml").read_text()
    settings.write_text(text.replace("/etc/prometheus/alerts.yml", str(DEPLOY / "grafana" / "alerts.yml")))
    run(linter("promtool"), "check", "config", settings)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_accepted(version: str) -> None:
    run(linter("kubernetes-validate"), "--strict", "--kubernetes-version", version, *MANIFESTS)


def test_a_second_group_is_the_first_one_with_its_own_name(tmp_path: Path) -> None:
    """By the command at the head of the file."""
    text = (DEPLOY / "kubernetes" / "broker-a.yaml").read_text()
    assert "sed s/broker-a/broker-b/g broker-a.yaml" in text
    other = tmp_path / "broker-b.yaml"
    other.write_text(text.replace("broker-a", "broker-b"))
    run(linter("kubernetes-validate"), "--strict", other)
    names = [{part["metadata"]["name"] for part in documents(path)} for path in (MANIFESTS[0], other)]
    assert not names[0] & names[1], "the groups share an object"


@pytest.mark.parametrize("name", workloads())
def test_a_pod_has_no_root_no_token_and_nowhere_to_write_but_its_volumes(name: str) -> None:
    pod = workloads()[name]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10_001, "the user of the image"
    assert not pod["automountServiceAccountToken"]
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["livenessProbe"]
        assert container["readinessProbe"]


def test_the_same_time_to_stop_is_given_everywhere() -> None:
    stop_s = int(unit("contrailmq-broker@.service")["TimeoutStopSec"])
    assert workloads()["broker-a"]["terminationGracePeriodSeconds"] == stop_s
    assert compose()["services"]["broker-a"]["stop_grace_period"] == f"{stop_s}s"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_accepted_and_lets_its_process_do_little(path: Path, tmp_path: Path) -> None:
    """The program stands where this test's own Python is: systemd looks whether it is there."""
    placed = tmp_path / path.name.replace("@.", "@a.")
    placed.write_text(path.read_text().replace(INSTALLED, str(PROGRAM)))
    systemd = linter("systemd-analyze")
    run(systemd, "verify", "--man=no", placed)
    run(systemd, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", placed)


@pytest.mark.parametrize("script", sorted((DEPLOY / "spark").glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_accepted(script: Path) -> None:
    run(linter("shellcheck"), script)


@pytest.mark.parametrize(
    ("master", "own"),
    [
        ("yarn", {"ENVIRONMENT": "env.tar.gz"}),
        ("k8s://https://host:6443", {"IMAGE": "spark:1", "CLAIM": "archive", "PACKAGE": "contrailmq.zip"}),
    ],
)
def test_what_the_spark_script_submits_is_there(master: str, own: dict[str, str]) -> None:
    """With `echo` for spark-submit; tests/spark/test_submit_script.py runs it on a local master."""
    environment = os.environ | own | {"MASTER": master, "SPARK_SUBMIT": "echo"}
    script = DEPLOY / "spark" / "submit.sh"
    done = subprocess.run([script, "host:9876", "Orders", "/archive"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:2] == ["--master", master]
    assert words[-3:] == ["host:9876", "Orders", "/archive"]
    job = words[-4].replace("local:///opt/contrailmq", str(script.parent))
    templates = [word.partition("podTemplateFile=")[2] for word in words if "podTemplateFile=" in word]
    assert [path for path in (job, *templates) if not Path(path).exists()] == []


def test_the_spark_script_says_what_it_lacks() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "IMAGE"}
    script = [DEPLOY / "spark" / "submit.sh", "host:9876", "Orders", "/archive"]
    done = subprocess.run(
        script, env=environment | {"MASTER": "k8s://https://host"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "the image of driver and executors" in done.stderr
