"""The console's password: one line in a file, made by scrypt.

    line := "scrypt" "$" n "$" r "$" p "$" salt "$" key          salt and key in base64

The file holds no password, and is written so that only its owner reads it. Guessing costs 16 MiB and some 50 ms a try.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contrailmq.message import ContrailError

LENGTH_MIN: Final = 8
LENGTH_MAX: Final = 1024
_N, _R, _P = 1 << 14, 8, 1
_N_MAX: Final = 1 << 20
_KEY_BYTES: Final = 32


class PasswordError(ContrailError):
    """A password that will not do, or a file that holds none."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    n: int
    r: int
    p: int
    salt: bytes
    key: bytes

    def fits(self, password: str) -> bool:
        """Whether this is the password. Takes as long for a wrong one."""
        if len(password) > LENGTH_MAX:
            return False
        return hmac.compare_digest(_derive(password, self.salt, self.n, self.r, self.p), self.key)

    @property
    def line(self) -> str:
        salt, key = (base64.b64encode(part).decode() for part in (self.salt, self.key))
        return f"scrypt${self.n}${self.r}${self.p}${salt}${key}"


def make_hash(password: str) -> PasswordHash:
    if not LENGTH_MIN <= len(password) <= LENGTH_MAX:
        raise PasswordError(f"the password has {len(password)} characters: give {LENGTH_MIN} to {LENGTH_MAX}")
    salt = secrets.token_bytes(16)
    return PasswordHash(_N, _R, _P, salt, _derive(password, salt, _N, _R, _P))


def write_password_file(path: Path, password: str) -> None:
    """Replaces the file as a whole; nobody else may read it."""
    line = make_hash(password).line
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def read_password_file(path: Path) -> PasswordHash:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise PasswordError(f"the password file {path} cannot be read: {exc}") from exc
    try:
        kind, n, r, p, salt, key = text.split("$")
        found = PasswordHash(int(n), int(r), int(p), base64.b64decode(salt), base64.b64decode(key))
        is_sound = kind == "scrypt" and 2 <= found.n <= _N_MAX and 1 <= found.r <= 64 and 1 <= found.p <= 16
        if not is_sound or len(found.key) != _KEY_BYTES or len(found.salt) < 8:
            raise ValueError("not a line of scrypt")
        found.fits("")  # a cost that scrypt refuses is said now, not at the first login
    except ValueError:
        raise PasswordError(
            f"the password file {path} holds no line scrypt$n$r$p$salt$key: write it with "
            f"`contrailmq console --set-password {path}`"
        ) from None
    return found


def _derive(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    memory = 128 * n * r * p + (1 << 20)
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=memory, dklen=_KEY_BYTES
    )
