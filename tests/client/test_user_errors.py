"""What users' code raises is logged with its traceback, and nothing in it reaches a terminal as an order."""

from __future__ import annotations

import io
import logging

import pytest

from contrailmq.client.hooks import user_error_log


@pytest.mark.parametrize("name", ["contrailmq.client.consumer", "contrailmq.client", "contrailmq.client.transactions"])
def test_a_traceback_is_escaped_for_any_handler_and_the_exception_stays(name: str) -> None:
    """The handlers are the application's: a plain one of the standard library here."""
    import contrailmq.client.consuming.consume_concurrent
    import contrailmq.client.hooks
    import contrailmq.client.producing.transaction_producer  # noqa: F401  # they make these loggers

    seen: list[logging.LogRecord] = []
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(lambda record: seen.append(record) or True)
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        error = ValueError("\x1b[2Jbody \u202e\x9b")
        logger.warning("the listener raised: %r", error, exc_info=error)
    finally:
        logger.removeHandler(handler)
    assert written.getvalue().splitlines() == [
        "the listener raised: ValueError('\\x1b[2Jbody \\u202e\\x9b')",
        "ValueError: \\x1b[2Jbody \\u202e\\x9b",
    ]
    assert seen[0].exc_info is not None
    assert seen[0].exc_info[1] is error


def test_a_logger_that_is_asked_for_twice_escapes_once() -> None:
    logger = user_error_log("contrailmq.client.consumer")
    count = len(logger.filters)
    assert len(user_error_log("contrailmq.client.consumer").filters) == count
