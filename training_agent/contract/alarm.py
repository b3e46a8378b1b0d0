"""The alarm: what a check saw, equal on all ranks, and its findings, the input of the decision table.

Built by `training_agent.guard`, published as the detail of an "SDC Alarm" event, read by `lambdas`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .names import SCHEMA_VERSION
from .place import Job, Place


class Check(str, Enum):
    """The check that fired."""

    NONFINITE = "nonfinite"
    REPLAY = "replay"
    WEIGHTS = "weights"
    REDUCTION = "reduction"  # the checksum of the all-reduce; since 1.1


class FindingKind(str, Enum):
    """What one finding says; with `verdict`, `majority` and `reproduced` it selects one decision row."""

    SOFTWARE = "software"  # camps that agree with each other, or an environment difference (S1)
    NONFINITE = "nonfinite"  # one rank's local gradient is NaN, Inf or too large for a float32 norm (N0, N1)
    WEIGHTS = "weights"  # replicas differ after the update (W1 with a rank, W2 without)
    CULPRIT = "culprit"  # wrong in two or more ring comparisons (C1, C2)
    PAIR = "pair"  # one mismatching pair, judged by its verdict (V1 to V4)
    REDUCED = "reduced"  # the reduced gradient is wrong or not finite, all local ones are finite (R1)


class Verdict(str, Enum):
    """Judgement on a mismatching pair after confirmation."""

    PERSISTENT = "persistent"  # the target repeats its own wrong answer
    TRANSIENT = "transient"  # the target, asked again, computes what the others compute
    REPLAYER = "replayer"  # the replayer computed wrong
    UNATTRIBUTABLE = "unattributable"  # no strict majority


class SecondConfirmation(str, Enum):
    """For verdict `replayer`: what the replayer answered when it was asked again."""

    REPEATS = "repeats"  # wrong again: treated like persistent
    AGREES = "agrees"  # right now: treated like transient
    UNAVAILABLE = "unavailable"


class Independence(str, Enum):
    """How independent the witnesses were."""

    NODE = "node"  # judged by GPUs of other nodes
    GPU = "gpu"  # only by other GPUs, too few nodes


@dataclass(frozen=True, slots=True)
class Finding:
    """One accusation, or one observation without a name (`rank` None, see `involved`)."""

    kind: FindingKind
    rank: int | None = None
    place: Place | None = None  # of `rank`; a claim until the pipeline has checked it
    verdict: Verdict | None = None
    majority: bool = False  # a strict majority of identical results stood against `rank`
    reproduced: bool | None = None  # nonfinite only: healthy peers got the same non-finite parameters
    second_confirmation: SecondConfirmation | None = None
    involved: tuple[Place, ...] = ()  # when nobody is named: the places that took part
    evidence: str = ""  # one sentence for people: what was compared, how often it differed

    @property
    def of_data(self) -> bool:
        """Whether healthy peers got the same NaN or Inf from the same batch."""
        return self.kind is FindingKind.NONFINITE and bool(self.reproduced)

    @property
    def no_gpu(self) -> bool:
        """Whether its own evidence says that it is no single GPU: data, or whole camps that disagree."""
        return self.kind is FindingKind.SOFTWARE or self.of_data


@dataclass(frozen=True, slots=True)
class Pair:
    """A ring comparison that mismatched: `replayer` recomputed the micro-batch of `target`."""

    replayer: int
    target: int


@dataclass(frozen=True, slots=True)
class Vote:
    """One rank's result for a contested micro-batch: `result` is a short hex digest of its digests."""

    rank: int
    result: str
    role: str  # "target" (original), "replayer" (ring replay) or "arbiter"


@dataclass(frozen=True, slots=True)
class Contest:
    """The micro-batch of `target` recomputed by a quorum."""

    target: int
    replayer: int
    votes: tuple[Vote, ...]
    majority: str | None  # the result of more than half of the ranks asked, votes or not; None without one
    target_repeats: bool | None  # asked again, the target gave its own first answer


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoint to come back on."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class CapsuleRef:
    """A repro capsule of one micro-batch of this alarm, for `sdc replay`.

    Its rank writes the file after the alarm is safe, and within the farewell: it may be missing.
    """

    rank: int  # whose micro-batch it is
    path: str
    sha256: str  # hex
    nbytes: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """Equal on all ranks; its JSON is the wire format (under 64 KB: suspects only, never the rank map)."""

    cluster: str
    job: Job
    check: Check
    step: int  # global step that was not applied (weights found after an update: the step just applied)
    time: str  # UTC, ISO 8601 with Z, from rank 0
    findings: tuple[Finding, ...]
    suspect_window: tuple[int, int]  # first and last step, inclusive
    world_size: int
    nodes: int
    independence: Independence
    nonfinite_ranks: tuple[int, ...] = ()
    reduced_nonfinite: bool = False
    pairs: tuple[Pair, ...] = ()
    contests: tuple[Contest, ...] = ()
    divergent_tensors: tuple[str, ...] = ()  # names, at most 16; `divergent_count` has them all
    divergent_count: int = 0
    tensors_compared: int = 0
    bytes_compared: int = 0
    loss_audited: bool = False
    last_audit_pass: int | None = None
    last_weight_check_pass: int | None = None
    resume_from: ResumePoint | None = None
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what was not checked, and why: one sentence each
    capsules: tuple[CapsuleRef, ...] = ()  # one per named rank, where a micro-batch was contested
    group: str = ""  # which guard of the job raised it; empty: the first one over all ranks, or before 1.1
    kernels: str = ""  # "switched", "forced", "default", as in `training_agent.kernels`; "" from older agents
    schema_version: str = SCHEMA_VERSION

    @property
    def named_ranks(self) -> tuple[int, ...]:
        """Ranks that some finding names, sorted, each once."""
        return tuple(sorted({f.rank for f in self.findings if f.rank is not None}))

    @property
    def of_reduction(self) -> bool:
        """Whether it speaks of one step's reduction alone, which each step checks by itself."""
        alone = self.reduced_nonfinite and not self.nonfinite_ranks and not self.pairs
        return self.check is Check.REDUCTION or alone
