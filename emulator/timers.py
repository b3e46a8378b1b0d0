"""Delays of the real world, scaled down: one thread runs what is due, and ends with the cloud.

Callers give real seconds (a replacement takes 1500 of them); `scale` turns them into local ones.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Timers:
    """Runs callbacks after `real_seconds * scale`, in order, on one daemon thread.

    Args:
        scale: local seconds per real second.
    """

    def __init__(self, scale: float) -> None:
        if not 0 < scale <= 1:
            raise ValueError(f"time_scale is {scale}: give a value above 0 and at most 1 (1 = real time)")
        self.scale = scale
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="emulator-timers", daemon=True)
        self._thread.start()

    def after(self, real_seconds: float, action: Callable[[], None]) -> None:
        """Run `action` once; an exception in it is logged, never lost silently."""
        with self._changed:
            heapq.heappush(
                self._due, (time.monotonic() + real_seconds * self.scale, next(self._order), action)
            )
            self._changed.notify()

    def close(self) -> None:
        """Drop what is not due yet and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closed:
                    return
                action = heapq.heappop(self._due)[2]
            try:
                action()
            except Exception:
                log.exception("a delayed change of the local cloud failed")
