"""The incident: one suspect node (or one job when nobody is named) from alarm to terminal state.

Opened by `ingest`, moved on by each step, closed by `resume`. Pure: steps load it, change it, save it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import Enum

from training_agent.contract import Check, Job

from .errors import (
    BreakerError,
    HumanOverrideError,
    NeedsHumanError,
    NoApproverError,
    ReplacedByHyperPodError,
    WorldChangedError,
)
from .telemetry import Reading


class State(str, Enum):
    """Where an incident stands; names of the terminal states are what people read in mails and events."""

    OPENING = "OPENING"
    LOCATED = "LOCATED"
    CONTAINED = "CONTAINED"
    DECIDED = "DECIDED"
    CONFIRMING = "CONFIRMING"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    REPLACING = "REPLACING"
    VERIFYING = "VERIFYING"
    CLOSING = "CLOSING"
    DETAILS_MISSING = "DETAILS_MISSING"  # a metric fired, its event did not come: people know, nothing acts
    # terminal
    JOINED = "JOINED"  # another incident decides: it holds this instance, or came of the event missed here
    OBSERVED = "OBSERVED"  # observe mode: a "would have" mail, nothing touched
    CLOSED = "CLOSED"  # nothing was to be done: a fire drill at its end
    RELEASED = "RELEASED"  # confirmed healthy and uncordoned, or the held job let go by a human
    REPLACED = "REPLACED"
    REPLACED_BY_HYPERPOD = "REPLACED_BY_HYPERPOD"  # the node vanished without us
    REPLACEMENT_DEGRADED = "REPLACEMENT_DEGRADED"  # requested, and its end was not seen
    TERMINATED_NO_DEMAND = "TERMINATED_NO_DEMAND"  # Karpenter: the old one is gone, no pod wants a new one
    REJECTED_KEPT = "REJECTED_KEPT"  # the human said no and keeps the cordon
    REJECTED_RELEASED = "REJECTED_RELEASED"  # the human said no and released the node
    EXPIRED = "EXPIRED"  # nobody answered: stays cordoned
    NO_APPROVER = "NO_APPROVER"  # nobody could be asked: stays cordoned
    HUMAN_OVERRIDE = "HUMAN_OVERRIDE"  # somebody acted on the node; respected
    WORLD_CHANGED = "WORLD_CHANGED"  # the node is not the one that was decided upon
    BLOCKED_BY_BREAKER = "BLOCKED_BY_BREAKER"  # over budget, or a replacement went wrong before
    HEALTHCHECK_STUCK = "HEALTHCHECK_STUCK"  # the deep health check did not end; stays cordoned
    HANDED_TO_HUMAN = "HANDED_TO_HUMAN"  # stays as it is, see `human_reason`

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset(list(State)[list(State).index(State.JOINED) :])
GONE = frozenset({State.REPLACED, State.TERMINATED_NO_DEMAND})  # what was accused is out of the cluster
REJECTED = "REJECTED_EVENT"
NO_INCIDENT = (REJECTED, "DUPLICATE")  # ends of events that open none; stand in their audit rows

_AGAIN = State.LOCATED  # second evidence: contain and decide once more
NEXT: dict[State, frozenset[State]] = {
    State.OPENING: frozenset({State.LOCATED, State.JOINED, State.CLOSING}),
    State.LOCATED: frozenset({State.CONTAINED, State.CLOSING}),
    State.CONTAINED: frozenset({State.DECIDED, State.CLOSING}),
    State.DECIDED: frozenset({State.CONFIRMING, State.AWAITING_APPROVAL, State.CLOSING, _AGAIN}),
    State.CONFIRMING: frozenset({State.DECIDED, State.CLOSING}),
    State.AWAITING_APPROVAL: frozenset({State.CONFIRMING, State.REPLACING, State.CLOSING, _AGAIN}),
    State.REPLACING: frozenset({State.VERIFYING, State.CLOSING, _AGAIN}),
    State.VERIFYING: frozenset({State.CLOSING}),
    State.CLOSING: (TERMINAL - {State.JOINED}) | {_AGAIN},
    State.DETAILS_MISSING: frozenset({State.JOINED, State.HANDED_TO_HUMAN}),  # no step leads here or on
}
_ENDS: dict[type[Exception], State] = {
    NoApproverError: State.NO_APPROVER,
    HumanOverrideError: State.HUMAN_OVERRIDE,
    WorldChangedError: State.WORLD_CHANGED,
    ReplacedByHyperPodError: State.REPLACED_BY_HYPERPOD,
    BreakerError: State.BLOCKED_BY_BREAKER,
}


def end_for(error: Exception) -> State:
    """The terminal state that an error leads to."""
    return _ENDS.get(type(error), State.HANDED_TO_HUMAN)


class Action(str, Enum):
    """What a human is asked for."""

    REPLACE = "replace"
    DEEP_CHECK = "deep_check"  # under NodeRecovery Automatic the check itself may replace the node
    RELEASE = "release"  # let a held job go, back to the step before the alarm


class CheckResult(str, Enum):
    """What is known of the deep health check of an incident's node."""

    NOT_RUN = "not_run"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    STUCK = "stuck"  # started, and no end within the bound
    NEVER_STARTED = "never_started"  # accepted, and never seen in progress
    SUPERSEDED = "superseded"  # another check of the cluster took its place
    UNAVAILABLE = "unavailable"  # switched off, refused by the service, or not safe to start
    NEEDS_APPROVAL = "needs_approval"  # NodeRecovery is Automatic: the check itself may replace the node
    NODE_GONE = "node_gone"


@dataclass(frozen=True, slots=True)
class DeepCheck:
    """A deep health check; `before_label` is the snapshot that is saved before it is started."""

    result: CheckResult = CheckResult.NOT_RUN
    polls: int = 0
    seen_in_progress: bool = False
    before_label: str | None = None
    snapshot: bool = False  # `before_label` was read; otherwise a label says nothing about this check
    note: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """One suspect node, proven by a verified registration and a re-read launch time."""

    node: str
    instance_id: str
    group: str  # HyperPod instance group
    launch_time: str  # of the instance when the job registered
    ranks: tuple[int, ...]  # accused ranks on it
    gpu_uuids: tuple[str, ...]  # of those ranks
    cordoned_by_us: bool = False
    running_in_group: int = 0  # Running instances of its group when it was located; 0: not read


@dataclass(frozen=True, slots=True)
class AuditClaim:
    """A targeted audit's result as it came in: whoever can publish could have written it."""

    capsule_hash: str
    passed: bool
    at: str
    gpu: str = ""  # UUID of the GPU that computed, as claimed; "" where it is not known


@dataclass(frozen=True, slots=True)
class Incident:
    """All that is known of one incident; the alarm itself is stored beside it and hashed here."""

    id: str
    sequence: int  # 1, and one more each time the same alarm comes back after the end
    delivery_key: str
    evidence_hash: str  # SHA-256 of the alarm's canonical JSON, and what an approval is bound to
    cluster: str
    job: Job
    check: Check
    step: int
    node: str | None  # claimed by the alarm; None: one incident for the job
    ranks: tuple[int, ...]
    opened_at: str
    state: State = State.OPENING
    version: int = 0  # of the row, for conditional writes
    targets: tuple[Target, ...] = ()
    nodes: int = 0  # of the job, as registered and verified when it was located; 0: not counted
    nodes_named: int = 1  # by alarms of this job within ten minutes of this one
    touched: bool = False  # contain held, cordoned or evicted something
    decision_row: str | None = None
    decided_rows: tuple[str, ...] = ()
    decision_reason: str = ""  # one sentence, for mail and page
    undecided: bool = False  # contained, or about to be, and not decided since: the row is an older one
    rounds: int = 0  # how often later evidence had it contained and decided again
    closing: State | None = None  # the terminal state that `resume` is to write
    human_reason: str = ""
    second_read: bool = False  # confirm has read the agent's second confirmation
    repeats: bool | None = None  # history of instance and GPUs: a transient verdict before; None: not read
    deep_check: DeepCheck = field(default_factory=DeepCheck)
    approval_id: str | None = None
    asks: int = 0  # approvals so far; each has an id of its own
    asking: Action = Action.REPLACE  # what the newest of them is for
    joined: tuple[str, ...] = ()  # incidents whose located evidence counts here, oldest first
    restarts: tuple[int, ...] = ()  # attempts with the same alarm; since this version rows of their own
    decided_on: int = 0  # how many of them the last decision had seen
    failures_seen: int = 0  # failed targeted audits that the last decision had seen
    synthetic: bool = False  # a fire drill: walks the path, touches nothing, can never replace
    telemetry: tuple[str, ...] | None = None  # lines around the alarm; None: not read
    readings: tuple[Reading, ...] = ()  # what the lines were made of, for the page's pictures
    audits: tuple[AuditClaim, ...] = ()  # results of targeted audits
    updated_at: str = ""  # last progress, judged by the reconciler
    tries: dict[str, int] = field(default_factory=dict)  # bounded waits, by step
    known_instances: tuple[str, ...] = ()  # in the group right before the replacement
    issued_at: str | None = None
    new_instance_id: str | None = None
    resumed_from_step: int | None = None
    job_back: bool | None = None
    closed_at: str | None = None
    let_go_at: str | None = None  # when it began to close, or joined: an alarm after it is news

    def to(self, state: State) -> Incident:
        """Move on; the same state again is a retry and changes nothing.

        Raises:
            NeedsHumanError: the flow has no such transition (an edited row, a step out of order).
        """
        if state is self.state:
            return self
        if state not in NEXT.get(self.state, frozenset()):
            raise NeedsHumanError(f"incident {self.id} is {self.state.value}: it cannot become {state.value}")
        return replace(self, state=state)

    def tried(self, step: str) -> Incident:
        """Count one more wait of `step`."""
        return replace(self, tries={**self.tries, step: self.tries.get(step, 0) + 1})

    @property
    def reopened(self) -> bool:
        """Has evidence come in that the last decision had not seen?"""
        return len(self.joined) > self.decided_on or self.failures > self.failures_seen

    @property
    def failures(self) -> int:
        """Targeted audits that computed wrong again."""
        return sum(not claim.passed for claim in self.audits)

    def again(self) -> Incident:
        """Second evidence: back to where contain and decide look at everything once more."""
        tries = {step: n for step, n in self.tries.items() if step != "resume"}
        return replace(
            self.to(State.LOCATED),
            undecided=True,
            rounds=self.rounds + 1,
            closing=None,
            human_reason="",
            approval_id=None,
            tries=tries,
            job_back=None,
            resumed_from_step=None,
            let_go_at=None,
        )

    @property
    def instance_id(self) -> str | None:
        """The one suspect instance, None before locate and for incidents of a whole job."""
        return self.targets[0].instance_id if self.node is not None and self.targets else None


class EffectState(str, Enum):
    """An effect's row: written before the call, concluded after it, never expired."""

    INTENT = "INTENT"
    RESULT = "RESULT"


@dataclass(frozen=True, slots=True)
class Effect:
    """Row of one effect of one incident."""

    name: str
    state: EffectState
    result: str
    at: str


def incident_id(delivery_key: str, node: str | None, sequence: int) -> str:
    """Short stable name of an incident: 16 hex digits over alarm, node and sequence."""
    text = "\x1f".join([delivery_key, node or "", str(sequence)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def execution_name(incident: Incident) -> str:
    """Name of its execution; unique for 90 days on AWS, so the sequence is in it."""
    return f"{incident.id}-{incident.sequence}"


def evidence_hash(alarm_text: str) -> str:
    """SHA-256 (hex) of the stored alarm: what was shown is what is acted on."""
    return hashlib.sha256(alarm_text.encode()).hexdigest()
