"""What an alarm means: the decision table as data, and the pure function that reads it.

In: the findings of one incident and the facts known by now. Out: one row and what to do next. `contain` reads
its contain column, `decide` the rest; the README's table is rendered from `TABLE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from training_agent.contract import Finding, FindingKind, Mode, SecondConfirmation, Verdict

from .incident import Action, CheckResult


class Contain(str, Enum):
    NOTHING = "nothing"
    HOLD = "job held"
    CORDON = "cordon"  # keep new pods away
    ISOLATE = "isolate"  # cordon, then evict the job's pods


class Confirm(str, Enum):
    SECOND_CONFIRMATION = "the agent's own second confirmation"
    HISTORY = "history"
    TELEMETRY = "telemetry"
    AUDIT = "targeted audit"
    DEEP_CHECK = "deep health check"


class Then(str, Enum):
    HUMAN = "human"
    REPLACE = "replace after review"
    RELEASE_OR_REPLACE = "release when it passes, replace on repeat"
    DECIDE_AGAIN = "decide again"
    RESUME = "a human lets the job resume before the alarm step"


@dataclass(frozen=True, slots=True)
class When:
    """Which findings a row takes; None means any."""

    kind: FindingKind
    verdicts: tuple[Verdict | None, ...] | None = None
    named: bool | None = None
    majority: bool | None = None
    reproduced: tuple[bool | None, ...] | None = None

    def takes(self, finding: Finding) -> bool:
        return (
            finding.kind is self.kind
            and (self.verdicts is None or finding.verdict in self.verdicts)
            and (self.named is None or (finding.rank is not None) is self.named)
            and (self.majority is None or finding.majority is self.majority)
            and (self.reproduced is None or finding.reproduced in self.reproduced)
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One row; the first four texts are the published table."""

    id: str
    finding: str
    meaning: str
    contain: Contain
    confirm: tuple[Confirm, ...]
    then: Then
    blames_node: bool  # False: one incident for the job, even when ranks are listed
    when: When | None  # None: anything that no other row takes
    checks: tuple[str, ...] = ("InstanceStress",)  # of the deep health check, where the row wants one


K, V = FindingKind, Verdict
_BY_CHECK = (Confirm.HISTORY, Confirm.TELEMETRY, Confirm.DEEP_CHECK)
_BETWEEN = ("InstanceStress", "InstanceConnectivity")  # the fault may lie between instances
_TOGETHER = ("InstanceConnectivity", "MultiNodeTrainingValidation")  # the reduction is the suspect

TABLE: tuple[Row, ...] = (
    Row(
        "S1", "software or configuration, or more than max(2, 2 %) nodes named within ten minutes of one job",
        "not a GPU", Contain.NOTHING, (), Then.HUMAN, False, When(K.SOFTWARE),
    ),
    Row(
        "N0", "non-finite, and the same on healthy peers",
        "data or numerics", Contain.NOTHING, (), Then.HUMAN, False, When(K.NONFINITE, reproduced=(True,)),
    ),
    Row(
        "W1", "weights, suspects named",
        "the replica differs from a strict majority after the update",
        Contain.CORDON, (), Then.REPLACE, True, When(K.WEIGHTS, named=True),
    ),
    Row(
        "W2", "weights, no strict majority",
        "replicas disagree, nobody named", Contain.CORDON, _BY_CHECK, Then.HUMAN, False,
        When(K.WEIGHTS, named=False), _BETWEEN,
    ),
    Row(
        "C1", "out-voted by a strict majority of independent replays",
        "culprit", Contain.ISOLATE, (), Then.REPLACE, True, When(K.CULPRIT, named=True, majority=True),
    ),
    Row(
        "C2", "wrong in both ring comparisons, no quorum to arbitrate",
        "culprit, unless two GPUs of one column are bad",
        Contain.ISOLATE, (Confirm.HISTORY,), Then.REPLACE, True, When(K.CULPRIT, named=True, majority=False),
    ),
    Row(
        "V1", "verdict persistent",
        "repeats its own wrong answer, third GPU sides with the replayer",
        Contain.ISOLATE, (), Then.REPLACE, True, When(K.PAIR, (V.PERSISTENT,), named=True),
    ),
    Row(
        "V2", "verdict transient",
        "recomputed right; an intermittent fault looks the same",
        Contain.ISOLATE, (Confirm.HISTORY, Confirm.AUDIT, Confirm.DEEP_CHECK), Then.RELEASE_OR_REPLACE, True,
        When(K.PAIR, (V.TRANSIENT,), named=True),
    ),
    Row(
        "V3", "the replayer computed wrong",
        "the fault is on the GPU that replayed",
        Contain.ISOLATE, (Confirm.SECOND_CONFIRMATION,), Then.DECIDE_AGAIN, True,
        When(K.PAIR, (V.REPLAYER,), named=True),
    ),
    Row(
        "V4", "unattributable or unclear",
        "three GPUs disagree", Contain.ISOLATE, _BY_CHECK, Then.HUMAN, True,
        When(K.PAIR, (V.UNATTRIBUTABLE, None)), _BETWEEN,
    ),
    Row(
        "N1", "non-finite, not reproduced by healthy peers, no mismatching pair",
        "NaN/Inf that the loss did not show, or a norm too large for float32",
        Contain.ISOLATE, _BY_CHECK, Then.HUMAN, True,
        When(K.NONFINITE, named=True, reproduced=(False, None)),
    ),
    Row(
        "R1", "reduced gradient non-finite, or not the ranks' mean, all local ones finite",
        "the reduction, or a sum too large; nobody named",
        Contain.HOLD, (Confirm.TELEMETRY, Confirm.DEEP_CHECK), Then.RESUME, False, When(K.REDUCED), _TOGETHER,
    ),
    Row("X0", "anything else", "unknown", Contain.HOLD, (), Then.RESUME, False, None),
)  # fmt: skip

SUCCEEDED = (
    "evidence against one of its nodes came in since: an incident of that node takes it over and decides"
)
ROWS: dict[str, Row] = {row.id: row for row in TABLE}
STRENGTH = ("S1", "C1", "W1", "V1", "C2", "V3", "V2", "N1", "V4", "W2", "R1", "X0", "N0")
_V3_BECOMES = {
    SecondConfirmation.REPEATS: "V1",
    SecondConfirmation.AGREES: "V2",
    SecondConfirmation.UNAVAILABLE: "V4",
    None: "V4",
}


class Next(str, Enum):
    CONFIRM = "confirm"
    APPROVE = "approve"
    RELEASE = "release"
    HUMAN = "human"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the findings; the defaults are the cautious side."""

    nodes: int  # of the job
    nodes_named: int = 1  # by alarms of this job within ten minutes
    second_read: bool = False
    repeats: bool | None = None
    deep_check: CheckResult = CheckResult.NOT_RUN
    cordoned_by_us: bool = False
    mode: Mode = Mode.OBSERVE
    audit_failed: bool = False  # a targeted audit on the node computed wrong again
    telemetry_read: bool = False
    one_node: bool = True  # the incident is that of a node, not of a job
    succeeded: bool = False  # an incident that names one of its nodes waits to take it over


@dataclass(frozen=True, slots=True)
class Decision:
    """The row and the next step; `reason` is one sentence for people."""

    row: Row
    next: Next
    reason: str
    action: Action = Action.REPLACE  # what is asked for, when a human is asked


def systemic(facts: Facts) -> bool:
    """More nodes are accused than bad GPUs can explain: max(2, 2 %) of the job's nodes."""
    return facts.nodes_named > max(2, 0.02 * facts.nodes)


def row_of(finding: Finding, *, second_read: bool = False) -> Row:
    """The one row that takes this finding; V3 is decided again once the second confirmation was read."""
    taken = [row for row in TABLE if row.when is not None and row.when.takes(finding)]
    assert len(taken) <= 1, f"rows {[r.id for r in taken]} overlap"
    row = taken[0] if taken else ROWS["X0"]
    if row.id == "V3" and second_read:
        return ROWS[_V3_BECOMES[finding.second_confirmation]]
    return row


def evaluate(findings: tuple[Finding, ...], facts: Facts) -> Row:
    """The incident's row: S1 over everything, otherwise the strongest evidence among its findings."""
    if systemic(facts):
        return ROWS["S1"]
    ids = {row_of(f, second_read=facts.second_read).id for f in findings} or {"X0"}
    return ROWS[min(ids, key=STRENGTH.index)]


def decide(findings: tuple[Finding, ...], facts: Facts) -> Decision:
    """Row and next step; whatever is not known to be safe goes to a human."""
    row = evaluate(findings, facts)
    if facts.mode is Mode.OBSERVE:
        return Decision(
            row, Next.HUMAN, f"observe mode: would have done '{row.contain.value}', then {row.then.value}"
        )
    if row.blames_node and not facts.cordoned_by_us:
        return Decision(row, Next.HUMAN, "the node's cordon is not ours: whoever set or removed it decides")
    if facts.deep_check is CheckResult.NODE_GONE:
        return Decision(row, Next.HUMAN, "the node vanished during the check: HyperPod replaced it by itself")
    if facts.succeeded:
        return Decision(row, Next.HUMAN, f"{row.id}: {row.meaning}; {SUCCEEDED}")
    if row.then is Then.DECIDE_AGAIN:
        return Decision(row, Next.CONFIRM, "the agent's second confirmation has to be read")
    if _unread(row, facts):
        return Decision(row, Next.CONFIRM, "to be confirmed by " + ", ".join(c.value for c in row.confirm))
    return _after_confirm(row, facts)


def _unread(row: Row, facts: Facts) -> bool:
    if Confirm.HISTORY in row.confirm and facts.repeats is None:
        return True
    if Confirm.TELEMETRY in row.confirm and not facts.telemetry_read:
        return True
    return wants_check(row, facts) and facts.deep_check in (CheckResult.NOT_RUN, CheckResult.RUNNING)


def wants_check(row: Row, facts: Facts) -> bool:
    """Would a deep health check tell more than what is known?"""
    known = facts.repeats or facts.audit_failed or facts.succeeded
    return Confirm.DEEP_CHECK in row.confirm and not known


def _after_confirm(row: Row, facts: Facts) -> Decision:
    if row.then is Then.REPLACE:
        return _approve(row, facts, row.meaning)
    if row.then is Then.RESUME:
        return Decision(row, Next.APPROVE, f"{row.id}: {row.meaning}; the job is held", Action.RELEASE)
    if facts.deep_check is CheckResult.NEEDS_APPROVAL and wants_check(row, facts):
        if facts.mode is Mode.REPLACE:
            reason = "NodeRecovery is Automatic: the deep health check itself may replace the node"
            return Decision(row, Next.APPROVE, reason, Action.DEEP_CHECK)
        return Decision(row, Next.HUMAN, f"mode {facts.mode.value} runs no deep health check")
    if row.then is Then.RELEASE_OR_REPLACE:
        if facts.audit_failed:
            return _approve(row, facts, "a targeted audit on the node computed wrong again")
        if facts.repeats:
            return _approve(row, facts, "the same instance or GPU was accused before")
        if facts.deep_check is CheckResult.FAILED:
            return _approve(row, facts, "the deep health check failed")
        if facts.deep_check is CheckResult.PASSED:
            return Decision(row, Next.RELEASE, "the deep health check passed and there is no history")
        return Decision(row, Next.HUMAN, f"the deep health check gave no result ({facts.deep_check.value})")
    return Decision(row, Next.HUMAN, f"{row.id}: {row.meaning}; deep health check: {facts.deep_check.value}")


def _approve(row: Row, facts: Facts, reason: str) -> Decision:
    if facts.mode is not Mode.REPLACE:
        return Decision(row, Next.HUMAN, f"mode {facts.mode.value} does not replace; evidence: {reason}")
    if not facts.one_node:  # evidence against a node joined what had named nobody
        return Decision(row, Next.HUMAN, f"the incident is of the whole job, with later evidence: {reason}")
    return Decision(row, Next.APPROVE, reason)
