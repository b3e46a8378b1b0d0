"""The handlers' log as a text (powertools keeps the stream it was made with: capsys would see nothing).

Both ways put the level back when they end: the logger is one for the whole process, and a test
that leaves it quiet takes the next test's log away.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from lambdas.observability import logger


@contextmanager
def at_level(level: str) -> Iterator[None]:
    """Only records of `level` and above are made while the context is open."""
    before = logger.log_level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def recorded() -> Iterator[io.StringIO]:
    """What the handlers log from INFO upwards, whatever the level was."""
    log = io.StringIO()
    with at_level("INFO"), ExitStack() as stack:
        for handler in logger.handlers:
            stack.enter_context(patch.object(handler, "stream", log))
        yield log
