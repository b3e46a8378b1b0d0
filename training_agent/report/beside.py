"""What is told beside the pipeline: a collector of metrics, events on pods. Optional, in nobody's way.

In: progress and alarm, from `report.job`. Out: calls of the sinks on a thread of their own, so that neither
training nor the alarm's own way to the bus waits for them. A sink that fails is one warning, and tried again
at the next interval. Next: `report.otlp`, `report.pod_event`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from ..contract import Alarm
from ..warn_once import warn_once
from .types import StepChecks


class Sink(Protocol):
    """One receiver."""

    @property
    def name(self) -> str:
        """For a warning."""

    def progress(self, step: int, checks: StepChecks) -> None:
        """On the training thread: note it and return."""

    def alarm(self, alarm: Alarm) -> None:
        """On the training thread: note it and return."""

    def send(self) -> None:
        """On the sinks' thread: tell what was noted, with timeouts; may raise anything."""


class Beside:
    """Sends every `every_s`, and at once after an alarm, until closed; nothing here raises.

    The thread begins with the first progress or alarm.
    """

    def __init__(self, sinks: Sequence[Sink], every_s: float = 60.0) -> None:
        self._sinks = tuple(sinks)
        self._every_s = every_s
        self._changed = threading.Condition()
        self._due = 0.0  # time.monotonic()
        self._wanted = self._busy = self._closing = False
        self._thread: threading.Thread | None = None

    def progress(self, step: int, checks: StepChecks) -> None:
        """Note an applied step."""
        for sink in self._sinks:
            sink.progress(step, checks)
        if self._thread is None and self._sinks:
            with self._changed:
                self._wake()

    def alarm(self, alarm: Alarm) -> None:
        """Note an alarm; it is sent at once."""
        for sink in self._sinks:
            sink.alarm(alarm)
        self.want()

    def want(self) -> None:
        """Send now rather than at the next interval."""
        if self._sinks:
            with self._changed:
                self._wanted = True
                self._wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until what is wanted was sent or given up for now; False when `timeout_s` ended first."""
        with self._changed:
            if self._thread is None:  # nothing was wanted, or there was no thread to be had
                return not self._wanted
            return self._changed.wait_for(lambda: not (self._wanted or self._busy), max(timeout_s, 0.0))

    def close(self, timeout_s: float) -> None:
        """Send a last time, then end the thread."""
        self.want()
        self.flush(timeout_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _wake(self) -> None:
        if self._thread is None and self._sinks and not self._closing:
            thread = threading.Thread(target=self._run, name="sdc-beside", daemon=True)
            try:
                thread.start()
            except RuntimeError as e:  # no more threads for this process
                warn_once(e, f"The metrics collector and pod events are told nothing: {e}.")
                return
            self._thread = thread
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._wanted and (self._closing or time.monotonic() < self._due):
                    if self._closing:
                        return
                    self._changed.wait(max(self._due - time.monotonic(), 0.01))
                self._wanted, self._busy = False, True
                self._due = time.monotonic() + self._every_s
            for sink in self._sinks:
                try:
                    sink.send()
                except Exception as e:  # noqa: BLE001 - whatever a receiver does is no matter of training
                    warn_once(
                        f"beside: {sink.name}",
                        f"{sink.name} cannot be told ({type(e).__name__}: {e}). Alarms go their own way; "
                        "training goes on.",
                    )
            with self._changed:
                self._busy = False
                self._changed.notify_all()
