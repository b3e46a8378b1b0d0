"""The agent's CloudWatch metrics: zeros while healthy, the counts on an alarm, and signs of life.

In: progress and alarm, on rank 0. Out: data for `PutMetricData`, each metric once for the cluster and once
for the job. Ranks travel in events, never as dimensions.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ..contract import Alarm, Check, Metric
from .types import StepChecks

NAMED = (
    Metric.NONFINITE_GRAD,
    Metric.REPLAY_MISMATCH,
    Metric.DIVERGENT_TENSORS,
    Metric.REDUCTION_MISMATCH,
)


def counts(alarm: Alarm) -> dict[Metric, int]:
    """The metrics of the checks for an alarm; the check that fired is never 0."""
    found = {
        Metric.NONFINITE_GRAD: len(alarm.nonfinite_ranks) + int(alarm.reduced_nonfinite),
        Metric.REPLAY_MISMATCH: len(alarm.pairs),
        Metric.DIVERGENT_TENSORS: alarm.divergent_count,
        Metric.REDUCTION_MISMATCH: 0,
    }
    fired = {
        Check.NONFINITE: Metric.NONFINITE_GRAD,
        Check.REPLAY: Metric.REPLAY_MISMATCH,
        Check.WEIGHTS: Metric.DIVERGENT_TENSORS,
        Check.REDUCTION: Metric.REDUCTION_MISMATCH,
    }[alarm.check]
    found[fired] = max(found[fired], 1)
    return found


class Overhead:
    """Share of the wall time that the training thread spent inside replays and weight checks."""

    def __init__(self) -> None:
        self._spent_s = 0.0
        self._began = time.monotonic()

    def add(self, seconds: float) -> None:
        """Note a step's checks."""
        self._spent_s += seconds

    def take(self) -> float:
        """Percent since the last call, 0 to 100."""
        spent_s, self._spent_s = self._spent_s, 0.0
        now = time.monotonic()
        elapsed_s, self._began = now - self._began, now
        return 100.0 * min(spent_s / elapsed_s, 1.0) if elapsed_s > 0 else 0.0


class MetricState:
    """What happened since the last publication; written by the training thread, read by the publisher's."""

    def __init__(self, cluster: str, job: str) -> None:
        self._dimension_sets = (
            [{"Name": "Cluster", "Value": cluster}],
            [{"Name": "Cluster", "Value": cluster}, {"Name": "Job", "Value": job}],
        )
        self._lock = threading.Lock()
        self._step: int | None = None
        self._last_pass = 0
        self._audits = 0
        self._audit_every: int | None = None
        self._layer_audits: int | None = None  # since the last publication; None: they are off
        self._layer_skipped = self._layer_skipped_before = 0
        self._skipped = self._skipped_before = 0  # audits of this start, now and at the last publication
        self._overhead = Overhead()
        self._alarm: Alarm | None = None

    def progress(self, step: int, checks: StepChecks) -> None:
        """Note an applied step."""
        with self._lock:
            self._step = step
            self._audits += int(checks.audited)
            self._overhead.add(checks.seconds)
            self._skipped = checks.audits_skipped
            if checks.layer_audited is not None:
                self._layer_audits = (self._layer_audits or 0) + int(checks.layer_audited)
                self._layer_skipped = checks.layer_audits_skipped
            self._audit_every = checks.audit_every
            self._last_pass = (
                checks.last_audit_pass or 0
            )  # before the first audit the age counts from the start

    def alarm(self, alarm: Alarm) -> None:
        """Note an alarm; its counts go out with the next publication."""
        with self._lock:
            self._alarm = alarm

    def take(self, dropped: int) -> list[dict[str, Any]]:
        """Data for one call; counters start again. Empty when nothing was computed yet."""
        with self._lock:
            if self._step is None and self._alarm is None:
                return []
            values: dict[Metric, float] = dict.fromkeys(NAMED, 0)
            if self._alarm is not None:
                values.update(counts(self._alarm))
            values[Metric.HEARTBEAT] = 1
            values[Metric.AUDITS_DONE] = self._audits
            values[Metric.AUDITS_SKIPPED] = self._skipped - self._skipped_before
            if self._layer_audits is not None:
                values[Metric.LAYER_AUDITS_DONE] = self._layer_audits
                values[Metric.LAYER_AUDITS_SKIPPED] = self._layer_skipped - self._layer_skipped_before
                self._layer_audits, self._layer_skipped_before = 0, self._layer_skipped
            values[Metric.OVERHEAD_PERCENT] = self._overhead.take()
            values[Metric.DROPPED_MESSAGES] = dropped
            if self._audit_every is not None:
                values[Metric.AUDIT_EVERY_STEPS] = self._audit_every
            if self._step is not None:
                values[Metric.LAST_PASS_AGE_STEPS] = self._step - self._last_pass
            self._audits = 0
            self._skipped_before = self._skipped
            self._alarm = None
        return [
            {
                "MetricName": metric.value,
                "Dimensions": dimensions,
                "Value": float(value),
                "Unit": "Percent" if metric is Metric.OVERHEAD_PERCENT else "Count",
            }
            for metric, value in values.items()
            for dimensions in self._dimension_sets
        ]
