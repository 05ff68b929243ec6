"""The root of the error tree, and what is wrong with a message or a name.

One rule for values: if something that a caller passes, or that bytes contain, does not fit into a message, a name or an
encoding, the error is a `MessageError` that names the field. That includes values of a wrong type (`keys=5`, a
topic that is None), because such values come from the caller's data more often than from the caller's source. Python's
own TypeError is left for calls that are wrong whatever the data: a missing or an unknown argument.
"""

from __future__ import annotations


class ContrailError(Exception):
    """Root of every error that ContrailMQ raises. `retriable` says whether the same call may succeed later."""

    retriable = False


class MessageError(ContrailError):
    """A message, a name or an encoding breaks a rule: `field` says what, `size` and `limit` by how much."""

    def __init__(self, text: str, *, field: str, size: int | None = None, limit: int | None = None) -> None:
        super().__init__(text)
        self.field, self.size, self.limit = field, size, limit
