"""What the counts of a run allow to be said. Pure: numbers in, numbers out.

Source of the interval: for k events in n independent trials the Poisson mean that makes k or fewer events as
likely as 1 - confidence is an upper bound of the expected count (Garwood 1936); with k = 0 at 95 % it is 3.0,
the "rule of three".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


def at_most(events: int, trials: int, confidence: float = CONFIDENCE) -> float | None:
    """Upper bound of the rate of events per trial; None without a trial."""
    if trials < 1:
        return None
    low, high = float(events), events + 10.0 * math.sqrt(events + 1) + 20.0
    for _ in range(100):
        middle = (low + high) / 2
        if _no_more_than(events, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return min(1.0, high / trials)


def _no_more_than(events: int, mean: float) -> float:
    """Probability of at most `events` of a Poisson variable."""
    logs = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(events + 1))
    return math.fsum(map(math.exp, logs)) if mean > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Overhead:
    """Time of audits and weight checks beyond that of the steps without them."""

    share: float  # of the time of the same steps without any
    step_seconds: float  # mean, without audit and weight check
    by_kind: tuple[tuple[str, int, float], ...]  # kind of step, how many, mean seconds


def overhead(seconds: Mapping[str, Sequence[float]]) -> Overhead | None:
    """From the manifest's `assurance.seconds`; None when no step without a check was timed.

    What every guarded step does (check 1) is in the base, and not measured here: docs/performance.md has it.
    """
    count, total = seconds.get("plain", (0, 0.0))
    if count < 1 or total <= 0:
        return None
    mean = total / count
    steps = sum(n for n, _ in seconds.values())
    spent = sum(s for _, s in seconds.values())
    kinds = tuple((kind, int(n), s / n) for kind, (n, s) in seconds.items() if n)
    return Overhead(max(0.0, spent / (steps * mean) - 1), mean, kinds)
