"""From step times to overheads. In: rounds of step times. Out: medians of paired ratios, by schedule. Pure.

A round holds one step of each subject, back to back; its ratios to plain DDP's step of the same round are
pairs. A schedule's overhead is composed: the healthy step's, plus the extra of a weight check and of an
audit, each divided by its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.bench.subjects import AGAIN, ANY_TIME, FORWARD, LAZY, OPTIONS, OURS, PLAIN, PUBLISHED

QUIET_PCT = 1.0  # the A/A row must stay within
WEIGHTS_EVERY = 10
KINDS = ("healthy", "weights", "audit")
SCHEDULES = {  # name: (subject of the healthy step, subject of the audit, audit interval)
    "no_audit": (OURS, None, None),
    "no_audit_lazy_naming": (LAZY, None, None),
    "no_audit_saves_at_any_time": (ANY_TIME, None, None),
    "audit_100_deterministic": (OURS, OURS, 100),
    "audit_10_deterministic": (OURS, OURS, 10),
    "audit_10_forward": (OURS, FORWARD, 10),
}


@dataclass(frozen=True, slots=True)
class Round:
    """Step times of all subjects in one round, seconds; of the slowest rank."""

    kind: str  # of KINDS
    seconds: Mapping[str, float]


def pct(rounds: Sequence[Round], subject: str, kind: str, base: str = PLAIN) -> float | None:
    """Median over the rounds of a kind of how much longer than plain, in percent; None without rounds."""
    ratios = [
        r.seconds[subject] / r.seconds[base]
        for r in rounds
        if r.kind == kind and subject in r.seconds and base in r.seconds
    ]
    return 100 * (median(ratios) - 1) if ratios else None


def quiet(rounds: Sequence[Round]) -> float:
    """The A/A row: plain against plain over all rounds, percent."""
    return 100 * (median(r.seconds[AGAIN] / r.seconds[PLAIN] for r in rounds) - 1)


def plain_step(rounds: Sequence[Round]) -> float:
    """Median step of plain DDP, seconds."""
    return median(r.seconds[PLAIN] for r in rounds)


def by_kind(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """Per subject and kind of step, percent over plain."""
    subjects = rounds[0].seconds
    kinds = dict.fromkeys(r.kind for r in rounds)
    return {s: {k: round(pct(rounds, s, k) or 0.0, 2) for k in kinds} for s in subjects if s != PLAIN}


def overhead(rounds: Sequence[Round]) -> dict[str, Any]:
    """Per schedule `ours_pct` and `published_pct`; None where something was not measured."""
    out: dict[str, Any] = {}
    for name, (subject, audited, every) in SCHEDULES.items():
        published = PUBLISHED if audited is not FORWARD else None  # it has no forward-only audit
        out[name] = {
            "ours_pct": _composed(rounds, subject, audited, every),
            "published_pct": _composed(rounds, published, published, every),
        }
    return out


def options(rounds: Sequence[Round]) -> dict[str, dict[str, float | None]]:
    """Per option its healthy step over plain, and each kind of step over ours without it, percent."""
    out: dict[str, dict[str, float | None]] = {}
    for name in OPTIONS:
        over_ours = {f"{kind}_over_ours_pct": pct(rounds, name, kind, OURS) for kind in KINDS}
        figures = {"healthy_pct": pct(rounds, name, "healthy"), **over_ours}
        out[name] = {k: None if v is None else round(v, 2) for k, v in figures.items()}
    return out


def _composed(
    rounds: Sequence[Round], subject: str | None, audited: str | None, every: int | None
) -> float | None:
    if subject is None:
        return None
    healthy, weights = pct(rounds, subject, "healthy"), pct(rounds, subject, "weights")
    if healthy is None or weights is None:
        return None
    total = healthy + (weights - healthy) / WEIGHTS_EVERY
    if every is not None and audited is not None:
        audit, base = pct(rounds, audited, "audit"), pct(rounds, audited, "healthy")
        if audit is None or base is None:
            return None
        total += (audit - base) / every
    return round(total, 2)
