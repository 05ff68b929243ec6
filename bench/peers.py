"""Our clients beside another Python client of RocketMQ, in alternating rounds against one cluster.

Each round of each client is a process of its own (`peer.py`): the same interpreter start, the same kind of work,
and the CPU that is counted is that client's alone. What is compared is the median of the rounds. The other client lives
in an environment of its own, named by its interpreter; it never has to share ours.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import contrailmq
from bench import peer
from contrailmq import Admin
from contrailmq.cli.bench_clients import BATCH, IN_FLIGHT, baseline_ms, cluster_or, fresh_topic

ROUND_TIMEOUT_S: Final = 300.0
_TITLES: Final = {
    "send": "one by one, waiting",
    "batch": f"send_batch of {BATCH}",
    "async": f"{IN_FLIGHT} in flight",
    "push": "push consumer, trivial listener",
}
_SHARE: Final = {"send": 0.2, "batch": 1.0, "async": 1.0, "push": 1.0}  # of the count: one by one is slow
assert set(_TITLES) == set(_SHARE) == set(peer.WORKS)


class Round(NamedTuple):
    """One process's figures, or why it has none."""

    per_s: float = 0.0
    cpu_us: float = 0.0
    failure: str = ""


def measure_peers(
    python: Path, namesrv: str | None, *, proxy: str | None, count: int, body_bytes: int, rounds: int
) -> dict[str, object]:
    """Messages a second and CPU per message of both, and the ratios of the medians.

    With `proxy` the other client is the one that speaks gRPC, and reaches the same cluster through that proxy.
    """
    other = "rocketmq-grpc" if proxy else "rocketmq"
    figures: dict[str, object] = {"the other client": _describe(python), "rounds": rounds, "body bytes": body_bytes}
    figures["baseline: a million additions, CPU ms, before"] = baseline_ms()
    with cluster_or(namesrv) as address:
        topic = fresh_topic()
        with Admin(namesrv=address) as admin:
            admin.create_topic(topic, queues=4, attributes={"message.type": "NORMAL"})
        peers = {"contrailmq": (Path(sys.executable), address), other: (python, proxy or address)}
        for work in peer.WORKS:
            messages = max(peer.IN_FLIGHT, round(count * _SHARE[work]))
            taken: dict[str, list[Round]] = {client: [] for client in peers}
            for _ in range(rounds):
                for client, (interpreter, server) in peers.items():
                    taken[client].append(_run(interpreter, client, work, server, topic, messages, body_bytes))
            figures |= _compared(_TITLES[work], taken["contrailmq"], taken[other])
    figures["baseline: a million additions, CPU ms, after"] = baseline_ms()
    return figures


def _run(python: Path, client: str, work: str, server: str, topic: str, count: int, body_bytes: int) -> Round:
    """One round. `push` reads what the rounds of the other works have stored."""
    source = Path(peer.__file__).read_text()
    environment = dict(os.environ)
    if client == "contrailmq":
        environment["PYTHONPATH"] = str(Path(contrailmq.__file__).parents[1])
    done = subprocess.run(
        [str(python), "-", client, work, server, topic, str(count), str(body_bytes)],
        input=source,
        capture_output=True,
        text=True,
        env=environment,
        timeout=ROUND_TIMEOUT_S,
    )
    if done.returncode:
        return Round(failure=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return Round(**json.loads(done.stdout))


def _compared(title: str, ours: list[Round], theirs: list[Round]) -> dict[str, object]:
    """Ours first, then the other's; a client whose rounds failed shows the reason in place of its figure."""
    compared: dict[str, object] = {}
    for unit, field in (("messages/s", "per_s"), ("CPU us/message", "cpu_us")):
        medians: list[float] = []
        texts: list[str] = []
        for rounds in (ours, theirs):
            failure = next((one.failure for one in rounds if one.failure), "")
            if not failure:
                medians.append(statistics.median(getattr(one, field) for one in rounds))
            texts.append(f"failed: {failure}" if failure else f"{medians[-1]:g}")
        ratio = f" (ratio {medians[0] / medians[1]:.2f})" if len(medians) == 2 else ""
        compared[f"{title}, {unit}"] = " / ".join(texts) + ratio
    return compared


def _describe(python: Path) -> str:
    """Name and version of the client that the interpreter has."""
    program = (
        "import importlib.metadata as m\n"
        "print(*(f'{n} {m.version(n)}' for n in ('rocketmq', 'rocketmq-client-python', 'rocketmq-python-client') "
        "if any(d.metadata['Name'] == n for d in m.distributions())))\n"
    )
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True)
    return done.stdout.strip() or f"none found by {python}: {done.stderr.strip()[-200:]}"
