"""SIGTERM waits while an alarm is made safe: an eviction, or a launcher that ends the siblings of a rank.

In: a block that takes a bounded time. Out: the same block to its end; a SIGTERM that came meanwhile is obeyed
after it, with the code left for the launcher wrapper. Outside the main thread Python has no say in signals:
the block then runs as it is.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from . import exit_codes


@contextmanager
def steady(code: int) -> Iterator[None]:
    """Run the block to its end before a SIGTERM is obeyed; `code` is then what this worker leaves."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    previous = signal.signal(signal.SIGTERM, later)
    try:
        yield
    finally:
        # None: it was not installed from Python, and cannot be put back
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)
        if asked:
            exit_codes.record(code)
            os.kill(os.getpid(), signal.SIGTERM)
