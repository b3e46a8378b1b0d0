"""Seconds that the training thread spent in checks: `_examine` counts them, `_update` reports them.

A check that runs inside another one (weights are compared before a replay's mismatch is judged) counts once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Runs while at least one `running` block is entered."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._depth = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the block."""
        began = time.monotonic()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._seconds += time.monotonic() - began

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
