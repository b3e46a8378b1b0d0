"""Which micro-batches of an alarm get a capsule. Pure.

In: findings and contests, equal on all ranks. Out: one micro-batch per named rank, its own where that was
contested; the first contested one when nobody is named. Next: `record`, on the ranks that these belong to.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import Contest, Finding


def chosen(findings: Sequence[Finding], contests: Sequence[Contest]) -> tuple[int, ...]:
    """Ranks whose micro-batch is recorded, ascending; the file is written by that rank, which holds it."""
    named = [f.rank for f in findings if f.rank is not None]
    found = {_best(rank, contests) for rank in named}
    if not named and contests:
        found = {contests[0].target}
    return tuple(sorted(target for target in found if target is not None))


def contest_of(target: int, contests: Sequence[Contest]) -> Contest | None:
    """The contest over one rank's micro-batch."""
    return next((c for c in contests if c.target == target), None)


def _best(rank: int, contests: Sequence[Contest]) -> int | None:
    wrong = [
        c for c in contests if any(v.rank == rank and c.majority not in (None, v.result) for v in c.votes)
    ]
    own = contest_of(rank, wrong) or contest_of(rank, contests)
    return own.target if own is not None else wrong[0].target if wrong else None
