"""One contested micro-batch: who computed what for it. Pure.

In: results of the ring and of the arbiters, from `training_agent._ring`. Next: `training_agent.attribution`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .contract import Pair, Place
from .placement import RankMap

MAX_CONTESTED = 8  # micro-batches per alarm; beyond that it is not one GPU
MAX_INVOLVED = 16  # places in one finding: the alarm stays under 64 KB


@dataclass(frozen=True, slots=True)
class Contested:
    """One contested micro-batch and what everybody computed for it, as short hex digests."""

    target: int  # the rank that it belongs to
    replayer: int  # who replayed it in the ring
    results: Mapping[int, str]  # first result per voter: original, ring replay, arbiters' recomputations
    target_again: str | None = None  # the target asked again; None: it could not answer
    replayer_again: str | None = None
    absent: tuple[int, ...] = ()  # voters that were asked and could not compute it

    @property
    def asked(self) -> int:
        """How many ranks were asked; those without an answer might have given any."""
        return len(self.results) + len(self.absent)

    @property
    def majority(self) -> str | None:
        """The result of more than half of the ranks that were asked."""
        if not self.results:
            return None
        values = sorted(self.results.values())
        result = values[len(values) // 2]  # what more than half hold is the median
        return result if 2 * values.count(result) > self.asked else None

    @property
    def outvoted(self) -> tuple[int, ...]:
        """Ranks that differ from the majority; empty without one."""
        majority = self.majority
        return () if majority is None else tuple(r for r, v in sorted(self.results.items()) if v != majority)


def contested_targets(pairs: Sequence[Pair]) -> tuple[int, ...] | None:
    """Whose micro-batches to arbitrate, ascending; None when there are too many for it to be hardware."""
    targets = tuple(sorted({p.target for p in pairs}))
    return targets if len(targets) <= MAX_CONTESTED else None


def places_of(rank_map: RankMap, ranks: Sequence[int]) -> tuple[Place, ...]:
    return tuple(rank_map.place(r) for r in ranks[:MAX_INVOLVED])


def reproduced_by_peers(rank: int, pairs: Sequence[Pair], judged: Sequence[Contested]) -> bool | None:
    """Whether a healthy peer got the same non-finite set: its replayer, or the majority that arbitrated.

    None without a majority: then nobody is known to be healthy, and too few answers are no "no".
    """
    for contest in judged:
        if contest.target == rank:
            return None if contest.majority is None else contest.majority == contest.results.get(rank)
    return all(pair.target != rank for pair in pairs)
