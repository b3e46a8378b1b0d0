"""Sightings that need no comparison between ranks: who overflows alone, and a reduction that is not finite.

Comes in: the gate's counts. Goes out: a `Sighting` that names nobody. Next: `_update` raises.
"""

from __future__ import annotations

from ._alarm import Sighting
from .contract import Check, Finding, FindingKind, Verdict
from .placement import RankMap
from .policy import Naming

OVERFLOW_LIMIT = 16  # a scale of 2^16, where GradScaler begins, is down to 1 by then


def reduced(step: int, naming: Naming) -> Sighting:
    """Judge a step whose reduced gradient is not finite while every local one is: nobody is named."""
    text = "the reduced gradient is NaN, Inf or too large for a float32 norm while every rank's own is "
    if naming is Naming.FULL:
        text += "finite: it went wrong inside the all-reduce, or their sum is too large"
    else:
        text += (
            "finite as far as naming='lazy' reads it: one rank's gradient of a weight went wrong, or the "
            "all-reduce, or their sum is too large; attach(naming='full') tells which"
        )
    finding = Finding(FindingKind.REDUCED, evidence=text)
    return Sighting(Check.NONFINITE, step, (finding,), reduced_nonfinite=True)


def overflowing(step: int, rank: int, rank_map: RankMap) -> Sighting:
    """Judge a rank that alone overflows in many scaled steps in a row: unclear, nobody is named."""
    text = (
        f"the gradient of rank {rank} overflowed in {OVERFLOW_LIMIT} consecutive steps that the "
        "GradScaler skipped, while most others were finite: look at its data, then at its GPU"
    )
    finding = Finding(
        FindingKind.PAIR,
        verdict=Verdict.UNATTRIBUTABLE,
        involved=(rank_map.place(rank),),
        evidence=text,
    )
    return Sighting(Check.NONFINITE, step, (finding,), nonfinite_ranks=(rank,))
