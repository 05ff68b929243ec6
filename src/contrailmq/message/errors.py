"""The root of the error tree, and what is wrong with a message or a name."""

from __future__ import annotations


class ContrailError(Exception):
    """Root of every error that ContrailMQ raises. `retriable` says whether the same call may succeed later."""

    retriable = False


class MessageError(ContrailError):
    """A message, a name or an encoding breaks a rule: `field` says what, `size` and `limit` by how much."""

    def __init__(self, text: str, *, field: str, size: int | None = None, limit: int | None = None) -> None:
        super().__init__(text)
        self.field, self.size, self.limit = field, size, limit
