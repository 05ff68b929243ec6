"""The shipped form of the protocol is what the .proto file says, and lives beside the official client's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_shipped_descriptors_are_those_of_the_proto_file() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed: make install does it")
    done = subprocess.run(
        [sys.executable, "tools/grpc_protocol.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_another_set_of_the_same_names_can_be_in_the_process() -> None:
    """The official client registers them in Python's global pool."""
    text = """
from base64 import b85decode
from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.protocol.descriptors import DESCRIPTORS
[own] = [file for file in FileDescriptorSet.FromString(b85decode(DESCRIPTORS)).file if "v2" in file.name]
own.name = "service.proto"
descriptor_pool.Default().Add(own)
print(v2.Status(code=1).code, descriptor_pool.Default().FindMessageTypeByName("apache.rocketmq.v2.Status").name)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert done.stdout == "1 Status\n", done.stderr
