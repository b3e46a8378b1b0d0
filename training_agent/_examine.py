"""Judges one step: replay around the ring, and on a mismatch weights first, then arbitration, then names.

Comes in: this rank's capture and evidence. Goes out: `AuditPass`, a `Sighting`, or the reason why nothing
could be compared; the same kind on every rank. Next: `guard` records it or raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from ._alarm import Sighting, weights_findings
from ._capture import Capture
from ._compilers import Footing, chosen, eager_contests, eagerly, one_offs, only_compiled
from ._data_path import DataPath
from ._evidence import Depth, Evidence
from ._ring import ReplayFailedError, Ring, RingResult, contests
from ._settings import Settings
from ._startup import Setup, environment_difference, word_of
from ._statistics import Statistics, StatisticsOff
from ._step_record import MicroBatch
from ._stopwatch import Stopwatch
from ._surroundings import Surroundings
from .attribution import MAX_INVOLVED, Contested, ambiguous_at_start, attribute, contested_targets
from .checks.weights import Divergence, compare_replicas
from .contest import reproduced_by_peers
from .contract import Check, Finding, FindingKind, Pair
from .placement import partners, quorum, replica_partners
from .schedule import Partner


@dataclass(frozen=True, slots=True)
class AuditPass:
    """A passed audit; what was compared equals what was expected, or it would not have passed."""

    tensors: int
    nbytes: int
    loss_audited: bool


@dataclass(frozen=True, slots=True)
class ReplayOff:
    """Replays do not reproduce steps, on any rank: that is no fault of a GPU, and nothing can be compared."""

    reason: str


Outcome = AuditPass | Sighting | ReplayOff | StatisticsOff | str

_NOBODY_REPRODUCES = ReplayOff(
    "no rank gets its own micro-batch's bits again when it is replayed, as happens when a compiler gives the "
    "replay another graph than the step"
)


class Examiner:
    """The replica group's judge. Every method is called on all ranks alike."""

    def __init__(self, setup: Setup, ring: Ring, surroundings: Surroundings) -> None:
        self._statistics = Statistics(setup.module)
        self._comm, self._ring, self._sharding = setup.comm, ring, setup.sharding
        self._rank_map = setup.rank_map
        self._rotate = setup.schedule.partner is Partner.ROTATE
        own = setup.own
        self._weights = {n: p for n, p in setup.module.named_parameters() if n not in own}  # frozen too
        self._device, self._settings = setup.device, Settings(surroundings)
        rebuild = setup.rebuild_batch  # without it batches are taken as they came
        self._data = rebuild and DataPath(setup.comm, setup.rank_map, setup.device, rebuild)
        self._audits = 0
        self.disputed: RingResult | None = None  # what this rank holds of the last step that mismatched
        self._footing = Footing(setup.comm)
        self.stopwatch = Stopwatch()

    def begin(self, *, audit: bool) -> None:
        """A step begins, to be audited or not; what the one before still owes its peers is posted."""
        self._ring.courier.settle()
        if audit:
            self._ring.expect(self._partners())

    @property
    def ahead(self) -> bool:
        """Whether the audit that begins takes the step's first micro-batch, which travels ahead."""
        return self._ring.courier.ahead

    def send_ahead(self, capture: Capture | None) -> None:
        """The backward begins; `capture`: the audited micro-batch, if it is complete by now."""
        self._ring.courier.send(capture)

    def end(self) -> None:
        """The loop is over; nothing more is sent or waited for."""
        self._ring.courier.forget()

    def examine(
        self,
        step: int,
        batch: MicroBatch | None,
        original: Evidence | None,
        nonfinite: tuple[int, ...],
        *,
        obstacle: str | None = None,
        micro_batches: int = 1,
        at_start: bool = False,
    ) -> Outcome:
        """Replay `step` (the one being computed).

        Args:
            batch, original: this rank's own micro-batch and what it computed; None: it has none to compare.
            nonfinite: ranks whose local gradient is not finite.
            obstacle: why it has none. micro_batches: of this rank's update.
            at_start: nothing has shown yet that these GPUs can agree (the preflight).
        """
        with self.stopwatch.running(), self._settings.beginning(batch, at_start):
            found = self._examined(step, batch, original, nonfinite, micro_batches, obstacle, at_start)
            if at_start or self._data is None or not isinstance(found, AuditPass):
                return found
            assert batch is not None  # it was compared
            return self._data.differs(step, batch, micro_batches, self._partners()) or found

    def examine_block(
        self, step: int, batch: MicroBatch | None, original: Evidence | None, obstacle: str | None, turn: int
    ) -> AuditPass | Sighting | ReplayOff | str:
        """The same for one block of `step`, as `_layers` recorded it; `turn` picks the partners."""
        with self.stopwatch.running(), self._settings.beginning(batch):
            found = self._examined(step, batch, original, (), 1, obstacle, False, turn)
        assert not isinstance(found, StatisticsOff)  # a block's evidence has none
        return found

    def _examined(
        self,
        step: int,
        batch: MicroBatch | None,
        original: Evidence | None,
        nonfinite: tuple[int, ...],
        micro_batches: int,
        obstacle: str | None,
        at_start: bool,
        turn: int | None = None,
    ) -> Outcome:
        if self._comm.total([int(batch is None or original is None)])[0]:
            return self.unexamined(step, obstacle, nonfinite)
        assert batch is not None and original is not None
        self.disputed = None
        targets = self._partners(turn)
        # The preflight is no audit: the first one meets the same peers again. Layer audits count alone.
        self._audits += not at_start and turn is None
        try:
            known = (self._ring, batch.kept, targets, batch.capture, original)
            result = self._settings.replay(*known, several=micro_batches > 1)
        except ReplayFailedError as e:
            return self.unexamined(step, str(e), nonfinite)
        if not result.pairs and not nonfinite:
            if not at_start and turn is None:  # the preflight compares replays with replays, never a step
                self._footing.passed(batch.capture)
            return AuditPass(original.tensors, original.nbytes, batch.loss_audited)
        if not nonfinite and turn is None and (why := self._no_statistics(result, at_start=at_start)):
            return StatisticsOff(why)
        sighting = Sighting(
            Check.NONFINITE if nonfinite else Check.REPLAY,
            step,
            (),
            nonfinite_ranks=nonfinite,
            pairs=result.pairs,
            tensors_compared=original.tensors,
            bytes_compared=original.nbytes,
            loss_audited=batch.loss_audited,
        )
        self.disputed = result
        return self._judge(sighting, result, at_start=at_start)

    def only_finiteness(self, micro_batches: int) -> bool:
        """Whether a non-finite step is judged by its set of non-finite gradients alone; a collective."""
        return self._footing.compiled() or self._comm.total([micro_batches > 1])[0] > 0  # on any rank

    def unexamined(self, step: int, reason: str | None, nonfinite: tuple[int, ...]) -> Sighting | str:
        """Judge a step that cannot be replayed: a non-finite one still alarms, an audit is skipped."""
        if not nonfinite:
            return reason or "another rank could not be compared"
        if self._sharding is not None:  # weights that are not finite make all ranks of their replica so
            divergence = self.compare_weights()
            if divergence:
                return replace(self.weights(step, divergence), nonfinite_ranks=nonfinite)
        findings = self._believable(attribute(self._rank_map, (), (), nonfinite=nonfinite).findings)
        return Sighting(Check.NONFINITE, step, findings, nonfinite_ranks=nonfinite)

    def compare_weights(
        self, state: Mapping[str, Tensor] | None = None, beside: Mapping[str, Tensor] | None = None
    ) -> Divergence:
        """Check 3: the replicas' parameters as they are now; `state` is judged with them, `beside` is not."""
        around = partial(self._comm.peers, "comparing weights")
        with self.stopwatch.running():
            tensors = {**self._weights, **(state or {})}
            return compare_replicas(tensors, self._comm.group, around, self._comm.device, beside)

    def weights(self, step: int, divergence: Divergence) -> Sighting:
        """Judge diverged replicas."""
        return Sighting(
            Check.WEIGHTS, step, weights_findings(divergence, self._rank_map), divergence=divergence
        )

    def _judge(self, sighting: Sighting, result: RingResult, *, at_start: bool) -> Sighting | ReplayOff | str:
        if result.pairs:
            # Diverged weights make replays mismatch as well; then no computation was wrong.
            divergence = self.compare_weights()
            if divergence:
                findings = weights_findings(divergence, self._rank_map)
                return replace(sighting, check=Check.WEIGHTS, findings=findings, divergence=divergence)
            difference = environment_difference(self._comm, self._device)
            if difference:
                finding = Finding(
                    FindingKind.SOFTWARE,
                    involved=self._rank_map.places[:MAX_INVOLVED],
                    evidence=f"replays mismatch and the ranks' environments differ: {difference}",
                )
                return replace(sighting, findings=(finding,))
            # Which gradients are not finite holds under any kernel, so under any graph as well.
            if result.original.depth is not Depth.FINITENESS and self._footing.compiled():
                return self._judge_compiled(sighting, result, at_start=at_start)
            if not sighting.nonfinite_ranks and self._nobody_reproduces(result):
                return _NOBODY_REPRODUCES
        targets = contested_targets(result.pairs)
        judged: list[Contested] = []
        if targets:
            voters = self._voters(targets, result.pairs)
            answers = self._ring.arbitrate(targets, result, voters)
            judged = contests(targets, result.pairs, answers, voters)
        reproduced = {
            rank: reproduced_by_peers(rank, result.pairs, judged) for rank in sighting.nonfinite_ranks
        }
        found = attribute(
            self._rank_map, result.pairs, judged, nonfinite=sighting.nonfinite_ranks, reproduced=reproduced
        )
        findings = self._believable(found.findings, result.original.depth is not Depth.FINITENESS)
        findings = ambiguous_at_start(self._rank_map, findings) if at_start else findings
        return replace(sighting, findings=findings, contests=found.contests)

    def _judge_compiled(
        self, sighting: Sighting, result: RingResult, *, at_start: bool
    ) -> Sighting | ReplayOff | str:
        """Judge a mismatch that another graph of a compiler might explain: then nobody is named.

        Everybody computes the contested micro-batches once more without the compiler. Who is outvoted there
        is faulty. A fault that does not come back is believed only where no graph can have changed.
        """
        targets, pairs = chosen(result.pairs)
        voters = self._voters(targets, pairs)
        settled = not at_start and self._footing.settled(result.capture)
        answers = self._ring.arbitrate(targets, result, voters, eagerly)
        found = attribute(self._rank_map, pairs, eager_contests(pairs, answers, voters))
        findings = found.findings
        if settled:
            compiled = contests(targets, pairs, self._ring.arbitrate(targets, result, voters), voters)
            again = attribute(self._rank_map, pairs, compiled)
            if self._footing.settled(result.capture):  # the arbitration itself may have built a graph
                findings += one_offs(again.findings, findings)
                findings = findings or (only_compiled(self._rank_map, pairs),)
                found = replace(found, contests=found.contests if found.findings else again.contests)
        if findings:
            findings = ambiguous_at_start(self._rank_map, findings) if at_start else findings
            return replace(sighting, findings=findings, contests=found.contests)
        if self._nobody_reproduces(result):
            return _NOBODY_REPRODUCES
        involved = sorted({r for p in pairs for r in (p.replayer, p.target)})
        return (
            f"replays among ranks {involved} differ where a compiler is at work, and agree without it: "
            "ranks that saw other shapes hold other graphs (torch.compile(dynamic=False) or padding helps)"
        )

    def _partners(self, turn: int | None = None) -> tuple[int, ...]:
        turn = self._audits if turn is None else turn
        if self._sharding is None:
            return partners(self._rank_map, turn, self._rotate)
        return replica_partners(self._rank_map, self._sharding.replicas, turn, self._rotate)

    def _believable(self, findings: tuple[Finding, ...], seen: bool = True) -> tuple[Finding, ...]:
        sharding = self._sharding
        return findings if sharding is None else sharding.believable(self._rank_map, findings, seen)

    def _voters(self, targets: Sequence[int], pairs: Sequence[Pair]) -> dict[int, tuple[int, ...]]:
        replayers = {p.target: p.replayer for p in pairs}
        return {t: quorum(self._rank_map, t, replayers[t]) for t in targets}

    def _no_statistics(self, result: RingResult, *, at_start: bool) -> str | None:
        """Why a mismatch in nothing but running statistics says nothing about a GPU, if so; a collective."""
        if self._comm.total([int(result.beyond)])[0]:
            return None
        if at_start:
            return "before the first step a peer got others from the same micro-batch"
        if not self._comm.all_equal(word_of(self._statistics.settings())):
            return "the ranks' layers are set differently"
        return "no rank gets its own again" if self._nobody_reproduces(result) else None

    def _nobody_reproduces(self, result: RingResult) -> bool:
        """Whether every comparison failed and every rank differs from itself as well; a collective."""
        if len(result.pairs) < self._comm.world:
            return False
        return self._comm.total([int(not self._ring.repeats(result))])[0] == self._comm.world
