"""Makes foreign text safe to print: a body, property or remark must not move a terminal's cursor or forge a line.

Escaped are control characters (line feeds and tabs too: one value is one line), what reorders text on the screen, line
separators and halves of surrogate pairs; all in Python's own notation, so `\\x1b` shows as four characters. Everything
else, in any language, is printed as it is. JSON escapes the first 32 by itself; `printable_json` escapes the others.
"""

from __future__ import annotations

import re
from typing import Final

# C0, DEL and C1; marks and overrides of direction; line and paragraph separators; surrogates; the byte order mark.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def printable(text: str | bytes) -> str:
    """The text on one line, with everything escaped that a terminal would act on. Bytes are read as UTF-8."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    return _UNSAFE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """The same for text that may have lines and tabs, such as a traceback."""
    return "\n".join("\t".join(printable(part) for part in line.split("\t")) for line in text.split("\n"))


def printable_json(document: str) -> str:
    """A JSON document with the same characters escaped as JSON does; between its strings only line feeds can be."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
