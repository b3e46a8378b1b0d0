"""Builds the events of a job of 3 nodes x 2 GPUs; `python -m tests.events.builder` writes the golden files.

Tests that need other ids or a fresh time call the functions; the files are what the wire looked like.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from training_agent.contract import (
    EVENT_SOURCE,
    Alarm,
    Check,
    Contest,
    DetailType,
    Finding,
    FindingKind,
    Independence,
    Job,
    NodeRegistration,
    Pair,
    Place,
    ResumePoint,
    SecondConfirmation,
    TargetedAuditResult,
    Verdict,
    Vote,
    encode,
)

FOLDER = Path(__file__).parent
TIME = "2026-01-01T00:10:00Z"
CLUSTER = "demo"
JOB = Job(name="llama-tiny", uid="job-0001", attempt=1, namespace="training")
INSTANCES = ("i-0a1b2c3d4e5f60001", "i-0a1b2c3d4e5f60002", "i-0a1b2c3d4e5f60003")
GPUS_PER_NODE = 2


def places(instances: tuple[str, ...] = INSTANCES, gpus: int = GPUS_PER_NODE) -> tuple[Place, ...]:
    """The seat of every rank, node by node."""
    return tuple(
        Place(
            rank=node * gpus + local,
            local_rank=local,
            node=f"hyperpod-{instance}",
            instance_id=instance,
            gpu_uuid=f"GPU-{instance[-8:]}-{local}",
            pod_name=f"llama-tiny-{node}",
            pod_uid=f"pod-{node}",
        )
        for node, instance in enumerate(instances)
        for local in range(gpus)
    )


def registration(
    node: int, seats: tuple[Place, ...] = places(), job: Job = JOB, **changes: Any
) -> NodeRegistration:
    """What node number `node` sends when the job starts."""
    names = sorted({p.node for p in seats}, key=lambda n: min(p.rank for p in seats if p.node == n))
    own = tuple(p for p in seats if p.node == names[node])
    made = NodeRegistration(
        cluster=CLUSTER,
        job=job,
        node=names[node],
        instance_id=own[0].instance_id,
        places=own,
        world_size=len(seats),
        nodes=len(names),
        time=TIME,
    )
    return replace(made, **changes)


def alarm(*findings: Finding, seats: tuple[Place, ...] = places(), **changes: Any) -> Alarm:
    """An alarm at step 30 of a job that audits and saves every ten steps."""
    made = Alarm(
        cluster=CLUSTER,
        job=JOB,
        check=Check.REPLAY,
        step=30,
        time=TIME,
        findings=findings,
        suspect_window=(21, 30),
        world_size=len(seats),
        nodes=len({p.node for p in seats}),
        independence=Independence.NODE,
        loss_audited=True,
        last_audit_pass=20,
        last_weight_check_pass=20,
        resume_from=ResumePoint(20, "/shared/checkpoints/step-20"),
    )
    return replace(made, **changes)


def culprit(rank: int, seats: tuple[Place, ...] = places(), *, majority: bool = True) -> Finding:
    text = f"the gradients of rank {rank} differ in both ring comparisons"
    return Finding(FindingKind.CULPRIT, rank=rank, place=seats[rank], majority=majority, evidence=text)


def pair(
    rank: int,
    verdict: Verdict,
    seats: tuple[Place, ...] = places(),
    second: SecondConfirmation | None = None,
) -> Finding:
    text = f"one comparison with rank {rank} differs: {verdict.value}"
    return Finding(
        FindingKind.PAIR,
        rank=rank,
        place=seats[rank],
        verdict=verdict,
        second_confirmation=second,
        evidence=text,
    )


def weights(rank: int, seats: tuple[Place, ...] = places()) -> Finding:
    text = f"the weights of rank {rank} differ from those of all others"
    return Finding(FindingKind.WEIGHTS, rank=rank, place=seats[rank], majority=True, evidence=text)


def event(message: Alarm | NodeRegistration | TargetedAuditResult, **envelope: Any) -> dict[str, Any]:
    """The EventBridge event around a message, as a rule hands it to its target."""
    kind = DetailType.ALARM if isinstance(message, Alarm) else DetailType.NODE_REGISTERED
    if isinstance(message, TargetedAuditResult):
        kind = DetailType.TARGETED_AUDIT_RESULT
    return {
        "version": "0",
        "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
        "detail-type": kind.value,
        "source": EVENT_SOURCE,
        "account": "123456789012",
        "time": message.time,
        "region": "us-east-1",
        "resources": [],
        "detail": json.loads(encode(message)),
        **envelope,
    }


def _contest(target: int, replayer: int, others: tuple[int, ...]) -> Contest:
    votes = (Vote(target, "bad0bad0", "target"), Vote(replayer, "600d600d", "replayer"))
    votes += tuple(Vote(r, "600d600d", "arbiter") for r in others)
    return Contest(target, replayer, votes, majority="600d600d", target_repeats=True)


GOLDEN: dict[str, Callable[[], Alarm | NodeRegistration]] = {
    "registration-node-0": lambda: registration(0),
    "registration-node-1": lambda: registration(1),
    "registration-node-2": lambda: registration(2),
    "alarm-c1-culprit": lambda: alarm(
        culprit(3), pairs=(Pair(2, 3), Pair(3, 4)), contests=(_contest(3, 2, (4, 5)),)
    ),
    "alarm-c1-two-gpus": lambda: alarm(culprit(1), culprit(4), pairs=(Pair(0, 1), Pair(3, 4))),
    "alarm-v1-persistent": lambda: alarm(pair(3, Verdict.PERSISTENT), pairs=(Pair(2, 3),)),
    "alarm-v2-transient": lambda: alarm(pair(3, Verdict.TRANSIENT), pairs=(Pair(2, 3),)),
    "alarm-v2-nonfinite": lambda: alarm(
        pair(3, Verdict.TRANSIENT), check=Check.NONFINITE, nonfinite_ranks=(3,), pairs=(Pair(2, 3),)
    ),
    "alarm-v3-replayer": lambda: alarm(
        pair(3, Verdict.REPLAYER, second=SecondConfirmation.REPEATS), pairs=(Pair(3, 4),)
    ),
    "alarm-w1-weights": lambda: alarm(
        weights(3), check=Check.WEIGHTS, divergent_tensors=("layers.0.wq.weight",), divergent_count=1,
        tensors_compared=30,
    ),
    "alarm-n0-data": lambda: alarm(
        Finding(FindingKind.NONFINITE, reproduced=True, involved=(places()[3],), evidence="same on peers"),
        check=Check.NONFINITE, nonfinite_ranks=(3,),
    ),
    "alarm-s1-software": lambda: alarm(
        Finding(FindingKind.SOFTWARE, involved=places()[2:4], evidence="all GPUs of one node agree")
    ),
}  # fmt: skip


def text_of(name: str) -> str:
    return json.dumps(event(GOLDEN[name]()), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    for _name in GOLDEN:
        (FOLDER / f"{_name}.json").write_text(text_of(_name), encoding="utf-8")
