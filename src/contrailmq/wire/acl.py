"""ACL signatures: RocketMQ 4.4 to 5.3.2 and the 5.3 authentication use the same one.

    content   = values of all ext fields but `Signature`, sorted by key, joined without separators, then the body
    Signature = base64(HMAC-SHA1(secret key, content))

The access key's own value is part of the content; code, opaque and remark are not.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["AclCredentials", "sign_content", "signed_content"]

_UNSIGNED = frozenset({"Signature"})


def signed_content(ext: Mapping[str, str], body: bytes, *, unsigned: frozenset[str] = _UNSIGNED) -> bytes:
    """What is signed. Keys sort by UTF-16 units in Java; all known keys are ASCII, where the order is the same."""
    return "".join(ext[name] for name in sorted(ext) if name not in unsigned).encode() + body


def sign_content(content: bytes, secret_key: str) -> str:
    return base64.b64encode(hmac.digest(secret_key.encode(), content, hashlib.sha1)).decode()


@dataclass(frozen=True, slots=True)
class AclCredentials:
    """A signing hook for RemotingClient: adds AccessKey and Signature to every request."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __call__(self, code: int, ext: dict[str, str], body: bytes) -> None:
        ext["AccessKey"] = self.access_key
        if self.security_token:
            ext["SecurityToken"] = self.security_token
        ext["Signature"] = sign_content(signed_content(ext, body), self.secret_key)
