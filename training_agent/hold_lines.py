"""The log lines of a start that waits: few, and in full where something is new.

In: what the rank waits for, as often as it looks. Out: one line at once with reasons and the next step, then
short ones at growing intervals, from one rank a node. Used by `training_agent.hold`. Rules that take a silent
log for a hang read them (`examples/hyperpod/job.yaml`: ten minutes).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .contract import Place
from .log_line import log_line

LONGEST_S = 300.0  # between two lines


class HoldLines:
    """Of one rank; all but the first of a node are silent."""

    def __init__(
        self, place: Place, attempt: int, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`interval_s`: until the second line of one kind, then twice as long each time, up to LONGEST_S."""
        self._about = {"rank": place.rank, "node": place.node, "attempt": attempt}
        self._speaks = place.local_rank == 0
        self._first_s, self._clock = interval_s, clock
        self._interval_s = interval_s
        self._began = self._last = clock()
        self._now: tuple[str, str] | None = None  # what the last line in full said
        self._ever: set[tuple[str, str]] = set()

    def say(self, kind: str, why: str, **more: str) -> None:
        """Write a hold's new reason at once, all else when its time has come; in full where it has changed.

        A wait for other ranks is nothing new until it has lasted: all starts have one.
        """
        now, what = self._clock(), (kind, why)
        at_once = kind == "holding" and what not in self._ever
        if not at_once and now - self._last < self._interval_s:
            return
        self._interval_s = self._first_s if at_once else min(2 * self._interval_s, LONGEST_S)
        self._line(kind, now, **({"why": why, **more} if what != self._now else {}))
        self._now = what
        self._ever.add(what)

    def released(self) -> None:
        """The wait is over."""
        self._line("released", self._clock())

    def _line(self, kind: str, now: float, **more: str) -> None:
        self._last = now
        if self._speaks:
            log_line(kind, **self._about, waited_s=round(now - self._began, 1), **more)
