"""Builds the question that a person is asked, for tests of mail and page: an incident of any row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lambdas.domain import commands, messages
from lambdas.domain.approval import Approval, Past
from lambdas.domain.decision_table import ROWS
from lambdas.domain.incident import Incident, State, Target, evidence_hash
from tests.events import builder
from training_agent.contract import Alarm, Check, Contest, Finding, FindingKind, Pair, Verdict, Vote, encode

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"
RANK = 3
EXECUTION = "arn:aws:states:us-east-1:123456789012:execution:IncidentWorkflow:3f1c9a0b7d2e4685-1"
FINDINGS = {
    "C1": builder.culprit(RANK),
    "C2": builder.culprit(RANK, majority=False),
    "V1": builder.pair(RANK, Verdict.PERSISTENT),
    "V2": builder.pair(RANK, Verdict.TRANSIENT),
    "V4": builder.pair(RANK, Verdict.UNATTRIBUTABLE),
    "W1": builder.weights(RANK),
    "R1": Finding(FindingKind.REDUCED, evidence="the reduced gradient is not finite, all local ones are"),
    "N0": Finding(
        FindingKind.NONFINITE, rank=RANK, place=builder.places()[RANK], reproduced=True,
        evidence="rank 3 is not finite at step 30, and so are its healthy peers on the same batch",
    ),
    "S1": Finding(FindingKind.SOFTWARE, evidence="whole nodes agree with each other and differ from others"),
}  # fmt: skip


def alarm_of(row: str, evidence: str = "", **changes: Any) -> Alarm:
    """An alarm that leads to `row`, with the comparisons behind it."""
    finding = FINDINGS[row]
    found = replace(finding, evidence=evidence) if evidence else finding
    alarm = builder.alarm(found, check=Check.WEIGHTS if row == "W1" else Check.REPLAY)
    if row in ("C1", "V1", "V2"):
        votes = (
            Vote(3, "bad0bad0", "target"),
            Vote(2, "600d600d", "replayer"),
            Vote(4, "600d600d", "arbiter"),
            Vote(5, "600d600d", "arbiter"),
        )
        pairs = (Pair(2, 3), Pair(3, 4)) if row == "C1" else (Pair(2, 3),)
        contest = Contest(3, 2, votes, "600d600d", target_repeats=row != "V2")
        alarm = replace(alarm, pairs=pairs, contests=(contest,))
    return replace(alarm, **changes)


def incident_of(row: str | None, **changes: Any) -> Incident:
    """An incident as `decide` leaves it."""
    alarm = alarm_of(row or "C1")
    target = Target(NODE, SUSPECT, "gpu", builder.TIME, (RANK,), ("GPU-e5f60002-1",), True, 64)
    incident = Incident(
        id="3f1c9a0b7d2e4685",
        sequence=1,
        delivery_key="0" * 32,
        evidence_hash=evidence_hash(encode(alarm)),
        cluster=builder.CLUSTER,
        job=builder.JOB,
        check=alarm.check,
        step=alarm.step,
        node=NODE,
        ranks=alarm.named_ranks,
        opened_at=builder.TIME,
        state=State.AWAITING_APPROVAL,
        targets=(target,),
        touched=True,
        decision_row=row,
        decision_reason=ROWS[row].meaning if row else "",
        approval_id="3f1c9a0b7d2e4685-1",
        asks=1,
    )
    changed = replace(incident, **changes)
    return changed if changed.node == NODE else _elsewhere(changed)


def _elsewhere(incident: Incident) -> Incident:
    """The incident of a whole job, or of the drill's node."""
    if incident.node is None:
        return replace(incident, targets=(), ranks=())
    instance = incident.node.removeprefix("hyperpod-")
    target = replace(incident.targets[0], node=incident.node, instance_id=instance, gpu_uuids=())
    return replace(incident, targets=(target,))


def approval_of(incident: Incident, evidence: str = "", **changes: Any) -> Approval:
    """The question that `request_approval` would write down for it."""
    row = incident.decision_row or "X0"
    alarm = alarm_of(incident.decision_row or "C1", evidence)
    reason = incident.human_reason or incident.decision_reason
    approval = Approval(
        approval_id=incident.approval_id or "",
        incident_id=incident.id,
        action=incident.asking,
        node=incident.node or "",
        instance_id=incident.instance_id or "",
        evidence_hash=incident.evidence_hash,
        created_at="2026-01-01T00:11:00.000000Z",
        expires_at="2026-01-01T04:11:00.000000Z",
        facts=messages.facts(incident, alarm, alarm.findings, ROWS[row], reason),
        warnings=messages.warnings(incident, 5.0),
        job_uid=incident.job.uid,
        row=row,
        alarm=alarm,
        ranks=incident.ranks,
        command=commands.check_of(incident),
        synthetic=incident.synthetic,
        execution=EXECUTION,
    )
    return replace(approval, **changes)


PAST = (
    Past("2025-12-24T03:10:00.000000Z", "GPU", "V2", "77aa00bb11cc22dd"),
    Past("2025-12-20T17:41:00.000000Z", "GPU", "V2", "1122334455667788"),
)
