"""Judges one step: replay around the ring, and on a mismatch weights first, then arbitration, then names.

Comes in: this rank's capture and evidence. Goes out: `AuditPass`, a `Sighting`, or the reason why nothing
could be compared; the same kind on every rank. Next: `guard` records it or raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ._alarm import Sighting, weights_findings
from ._capture import Capture, Unit
from ._evidence import Evidence
from ._ring import ReplayFailedError, Ring, RingResult, contests
from ._startup import Setup
from .attribution import Contested, attribute, contested_targets
from .checks.weights import Divergence, find_divergent_ranks
from .contract import Check, Finding, FindingKind
from .placement import partners
from .schedule import Partner


@dataclass(frozen=True, slots=True)
class AuditPass:
    """A passed audit; what was compared equals what was expected, or it would not have passed."""

    tensors: int
    nbytes: int
    loss_audited: bool


class Examiner:
    """The replica group's judge. Every method is called on all ranks alike."""

    def __init__(self, setup: Setup, ring: Ring) -> None:
        self._comm, self._ring, self._rank_map = setup.comm, ring, setup.rank_map
        self._rotate = setup.schedule.partner is Partner.ROTATE
        self._weights = dict(setup.ddp.module.named_parameters())  # frozen ones too
        self._audits = 0

    def examine(
        self, step: int, capture: Capture, original: Evidence, nonfinite: tuple[int, ...]
    ) -> AuditPass | Sighting | str:
        """Replay `step` (the one being computed).

        Args:
            capture, original: this rank's own.
            nonfinite: ranks whose local gradient is not finite.
        """
        targets = partners(self._rank_map, self._audits, self._rotate)
        self._audits += 1
        try:
            result = self._ring.replay(targets, capture, original)
        except ReplayFailedError as e:
            return self.unexamined(step, str(e), nonfinite)
        loss_audited = capture.unit is Unit.LOSS
        if not result.pairs and not nonfinite:
            return AuditPass(original.tensors, original.nbytes, loss_audited)
        sighting = Sighting(
            Check.NONFINITE if nonfinite else Check.REPLAY,
            step,
            (),
            nonfinite_ranks=nonfinite,
            pairs=result.pairs,
            tensors_compared=original.tensors,
            bytes_compared=original.nbytes,
            loss_audited=loss_audited,
        )
        return self._judge(sighting, result)

    def unexamined(self, step: int, reason: str | None, nonfinite: tuple[int, ...]) -> Sighting | str:
        """Judge a step that cannot be replayed: a non-finite one still alarms, an audit is skipped."""
        if not nonfinite:
            return reason or "another rank could not be compared"
        found = attribute(self._rank_map, (), (), nonfinite=nonfinite)
        return Sighting(Check.NONFINITE, step, found.findings, nonfinite_ranks=nonfinite)

    def reduced(self, step: int) -> Sighting:
        """Judge a step whose reduced gradient is not finite while every local one is: nobody is named."""
        text = (
            "the reduced gradient is NaN, Inf or too large for a float32 norm while every rank's own is "
            "finite: it went wrong inside the all-reduce, or their sum is too large"
        )
        return Sighting(
            Check.NONFINITE, step, (Finding(FindingKind.REDUCED, evidence=text),), reduced_nonfinite=True
        )

    def compare_weights(self) -> Divergence:
        """Check 3: the replicas' parameters as they are now."""
        with self._comm.peers("comparing weights"):
            return find_divergent_ranks(self._weights, self._comm.group)

    def weights(self, step: int, divergence: Divergence) -> Sighting:
        """Judge diverged replicas."""
        return Sighting(
            Check.WEIGHTS, step, weights_findings(divergence, self._rank_map), divergence=divergence
        )

    def _judge(self, sighting: Sighting, result: RingResult) -> Sighting:
        if result.pairs:
            # Diverged weights make replays mismatch as well; then no computation was wrong.
            divergence = self.compare_weights()
            if divergence:
                findings = weights_findings(divergence, self._rank_map)
                return replace(sighting, check=Check.WEIGHTS, findings=findings, divergence=divergence)
        targets = contested_targets(result.pairs)
        judged: list[Contested] = []
        if targets:
            judged = contests(targets, result.pairs, self._ring.arbitrate(targets, result))
        reproduced = {rank: _reproduced(rank, result, judged) for rank in sighting.nonfinite_ranks}
        found = attribute(
            self._rank_map, result.pairs, judged, nonfinite=sighting.nonfinite_ranks, reproduced=reproduced
        )
        return replace(sighting, findings=found.findings, contests=found.contests)


def _reproduced(rank: int, result: RingResult, judged: Sequence[Contested]) -> bool:
    """Whether a healthy peer got the same non-finite set: its replayer, or the majority that arbitrated."""
    for contest in judged:
        if contest.target == rank:
            return contest.majority is not None and contest.majority == contest.results.get(rank)
    return all(pair.target != rank for pair in result.pairs)
