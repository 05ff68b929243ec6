"""The messages of `apache.rocketmq.v2`, in a descriptor pool of their own.

Python's default pool is global, and the official client registers the same names there under other file names: both in
one process would fail on the first type. A pool of our own lets them live side by side.
"""

from __future__ import annotations

from base64 import b85decode
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from contrailmq.proxy.protocol.descriptors import DESCRIPTORS

SERVICE: Final = "apache.rocketmq.v2.MessagingService"

Wire: TypeAlias = Any  # a message of v2.proto: its classes are made at run time, so nothing knows their fields before

_pool = DescriptorPool()
for _file in FileDescriptorSet.FromString(b85decode(DESCRIPTORS)).file:
    _pool.Add(_file)


class _Messages:
    """`v2.Message(...)`: the classes by their names."""

    def __getattr__(self, name: str) -> Wire:
        made = GetMessageClass(_pool.FindMessageTypeByName(f"apache.rocketmq.v2.{name}"))
        setattr(self, name, made)
        return made


v2: Final = _Messages()


def methods() -> list[Wire]:
    """Descriptors of the calls: name, input and output type, and what is a stream."""
    return list(_pool.FindServiceByName(SERVICE).methods)
