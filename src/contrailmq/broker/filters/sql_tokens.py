"""Tokens of SQL92 message filters: text in, a list of tokens out, in one pass over bounded input.

    expression  -- a comment up to the end of the line, or /* a block */
    literal     'text' with '' for a quote; 17, 17L; 5.5, 5., .5, 5E10; TRUE, FALSE, NULL
    identifier  [A-Za-z_$][A-Za-z0-9_$]*, case-sensitive; keywords are not

The expression comes from any client that can open a connection, so its length and the number of its tokens are capped
before anything is built from it.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

from contrailmq.message import ContrailError

EXPRESSION_CHARS_MAX: Final = 16 * 1024  # Java has no limit; the longest seen in the wild is an IN list of some kB
TOKENS_MAX: Final = 4096
SHOWN_CHARS_MAX: Final = 40


class SqlError(ContrailError):
    """The filter expression cannot be used; the text names the place and what was expected there."""


def shortened(text: str) -> str:
    """A piece of an expression as an error shows it: a literal may be as long as the expression."""
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}… ({len(text)} characters)"


class TokenKind(enum.Enum):
    KEYWORD = "keyword"
    IDENTIFIER = "identifier"
    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    OPERATOR = "operator"
    END = "end of expression"


class Token(NamedTuple):
    kind: TokenKind
    text: str  # keywords in upper case; strings without quotes and with '' undone
    position: int


KEYWORDS: Final = frozenset(  # LIKE is not supported
    ("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_SKIP: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*|/\*(?:[^*]|\*(?!/))*\*/)+")
_TOKEN: Final = re.compile(
    r"(?P<STRING>'(?:[^']|'')*')"
    r"|(?P<FLOAT>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<INTEGER>[0-9]+[lL]?)"
    r"|(?P<IDENTIFIER>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<OPERATOR><>|>=|<=|[<>=(),+-])"
)


def tokenize(expression: str) -> list[Token]:
    """Split an expression; the last token is always END. Raises SqlError with the position of what is not a token."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise SqlError(f"filter expression has {len(expression)} characters, the limit is {EXPRESSION_CHARS_MAX}")
    tokens: list[Token] = []
    position = 0
    while True:
        skipped = _SKIP.match(expression, position)
        if skipped is not None:
            position = skipped.end()
        if position == len(expression):
            tokens.append(Token(TokenKind.END, "", position))
            return tokens
        if len(tokens) >= TOKENS_MAX:
            raise SqlError(f"filter expression has more than {TOKENS_MAX} words and signs")
        found = _TOKEN.match(expression, position)
        if found is None:
            raise SqlError(f"unexpected {expression[position]!r} at {position}: {_hint(expression, position)}")
        tokens.append(_token(found))
        position = found.end()


def _token(found: re.Match[str]) -> Token:
    kind = TokenKind[str(found.lastgroup)]
    text = found.group()
    if kind is TokenKind.STRING:
        text = text[1:-1].replace("''", "'")
    elif kind is TokenKind.IDENTIFIER and text.upper() in KEYWORDS:
        kind, text = TokenKind.KEYWORD, text.upper()
    return Token(kind, text, found.start())


def _hint(expression: str, position: int) -> str:
    match expression[position]:
        case "'":
            return "the string has no closing quote"
        case "/":
            return "the comment is not closed, or arithmetic was meant, which filters do not have"
        case "!":
            return "write <> for 'not equal'"
        case "*" | "%":
            return "arithmetic is not supported in filters"
        case _:
            return "not part of the filter language"
