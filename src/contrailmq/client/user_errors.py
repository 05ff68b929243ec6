"""Loggers for what listeners, checks and hooks of users raise.

The last line of a traceback is the exception's text, which often quotes a message: `ValueError: bad body ...`. Control
characters in it must not reach a terminal, whatever handlers the application has, so the text that handlers print is
made here, escaped. The exception itself stays in the record for those that want it.
"""

from __future__ import annotations

import logging
from typing import Final

from contrailmq.message import printable_lines

_FORMATTER: Final = logging.Formatter()


class _EscapedTraces(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and not record.exc_text:
            record.exc_text = printable_lines(_FORMATTER.formatException(record.exc_info))
        return True


_ESCAPED: Final = _EscapedTraces()


def user_error_log(name: str) -> logging.Logger:
    """The logger of this name, whose tracebacks are safe to print."""
    logger = logging.getLogger(name)
    logger.addFilter(_ESCAPED)
    return logger
