"""Ports of tests: those of processes side by side are apart, whoever started them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from free_ports import free_port

PROGRAM = "from free_ports import free_port; print(*(free_port() for _ in range(90)))"


def test_no_port_is_given_out_twice_nor_to_another_process() -> None:
    here = [free_port() for _ in range(90)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    there = [int(word) for word in done.stdout.split()]
    assert len(set(here)) == len(set(there)) == 90
    # A broker takes the port two below its own and the one above.
    shared = {port + near for port in here for near in (-2, 0, 1)} & {
        port + near for port in there for near in (-2, 0, 1)
    }
    assert shared == set()
