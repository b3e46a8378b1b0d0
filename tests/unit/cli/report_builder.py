"""A run's folder and an incident's rows as a job and the pipeline leave them, for tests of the report."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from boto3.dynamodb.types import TypeSerializer

from lambdas.domain.incident import State
from tests.events import builder
from tests.unit.lambdas.questions import alarm_of, incident_of
from training_agent.checkpoint import CheckpointStore
from training_agent.checkpoint_folder import seal
from training_agent.cli.report.incidents import Record, record
from training_agent.contract import Alarm, ResumePoint, encode
from training_agent.schedule import Schedule
from training_agent.spool import Spool

ID = "3f1c9a0b7d2e4685"
OPENED = datetime(2026, 1, 1, 0, 10, 2, tzinfo=timezone.utc)
RANKS = 6
ALARM_STEP = 48_100
SAVED = (45_000, 46_000, 47_000, 48_000)
REPLICA_BYTES = 3_800_000_000


def manifest(step: int, every: int = 100, **changes: Any) -> dict[str, Any]:
    """A guard's, of a healthy run that audits every `every` steps and compares weights every ten."""
    audits, checks = step // every, step // 10
    made: dict[str, Any] = {
        "manifest_version": 1, "digest_version": 1, "step": step, "world_size": RANKS,
        "last_audit_pass": step, "last_weight_check_pass": step, "last_optimizer_state_pass": step,
        "passed_at_this_step": ["replay", "weights", "optimizer state"], "loss_audited": True,
        "job": {"name": builder.JOB.name, "uid": builder.JOB.uid},
        "schedule": Schedule(audit_every=every).plain(),
        "assurance": {
            "gpu_steps": RANKS * step, "gpu_steps_audited": RANKS * audits, "audits": audits,
            "audits_skipped": 0, "weight_checks": checks + 1,
            "bytes_replayed": RANKS * audits * REPLICA_BYTES,
            "bytes_of_weights": RANKS * (checks + 1) * REPLICA_BYTES,
            "starts": 1, "since_step": 0, "last_audit": step if audits else None, "longest_gap": every,
            "seconds": {
                "plain": [step - checks, 1.25 * (step - checks)], "audited": [0, 0.0],
                "weights compared": [checks - audits, 1.29 * (checks - audits)],
                "audited, weights compared": [audits, 4.83 * audits],
            },
        },
        "notes": [],
        "digests": {},
    }  # fmt: skip
    return {**made, **changes}


def save(folder: Path, step: int, record: dict[str, Any], name: str = "") -> None:
    """One checkpoint as the store writes it, at 1.3 seconds a step."""
    target = folder / "checkpoints" / (name or f"step-{step}")
    target.mkdir(parents=True)
    (target / "state.pt").write_bytes(b"state")
    seal(target, step, RANKS, record)
    written = OPENED.timestamp() - 1.3 * (ALARM_STEP - step)
    os.utime(target / "manifest.json", (written, written))


def run_folder(folder: Path, *alarms: Alarm, steps: tuple[int, ...] = SAVED, plain: bool = False) -> Path:
    """A job's shared folder."""
    for step in steps:
        save(folder, step, {"step": step, "digest_version": 1} if plain else manifest(step))
    for alarm in alarms:
        Spool(folder / "spool").put(alarm)
        CheckpointStore(folder / "checkpoints", RANKS).mark_doubtful(alarm.suspect_window[0])
    return folder


def raised(row: str = "C1", evidence: str = "") -> Alarm:
    """An alarm of that run, a hundred steps after its last checkpoint."""
    point = ResumePoint(SAVED[-1], f"/fsx/llama/checkpoints/step-{SAVED[-1]}")
    window = (ALARM_STEP - 99, ALARM_STEP)
    return alarm_of(row, evidence, step=ALARM_STEP, suspect_window=window, resume_from=point,
                    last_audit_pass=SAVED[-1], last_weight_check_pass=ALARM_STEP - 10)  # fmt: skip


def rows(row: str = "C1", *, by: str = "alex@example.com", **changes: Any) -> list[dict[str, Any]]:
    """All rows of one incident that a person approved and HyperPod replaced, in DynamoDB's own form."""
    alarm = raised(row)
    incident = replace(
        incident_of(row),
        state=State.REPLACED,
        opened_at=_at(0),
        issued_at=_at(745),
        closed_at=_at(2710),
        new_instance_id="i-0a1b2c3d4e5f60009",
        resumed_from_step=SAVED[-1],
        step=ALARM_STEP,
        **changes,
    )
    trail = (
        (1, "state LOCATED", "ranks 3 are on hyperpod-i-0a1b2c3d4e5f60002"),
        (6, "state CONTAINED", "C1: cordoned, 1 of the job's pods evicted"),
        (7, "state DECIDED", "C1 -> approve: culprit"),
        (9, "state AWAITING_APPROVAL", "asked for replace"),
        (10, "mail", "review requested from 2"),
        (742, "decision", f"{by} answered 'approve' to 'replace' at 2026-01-01 00:22 UTC: five of six agree"),
        (743, "state REPLACING", "replacement of i-0a1b2c3d4e5f60002 is being requested"),
        (746, "state VERIFYING", "HyperPod accepted the replacement of i-0a1b2c3d4e5f60002"),
        (2346, "state CLOSING", "i-0a1b2c3d4e5f60009 is Running"),
        (2710, "state REPLACED", "quarantine released; the job resumed from step 48000, as chosen"),
    )
    items: list[dict[str, Any]] = [
        {"sk": "state", "document": encode(incident), "state": incident.state.value},
        {"sk": "alarm", "text": encode(alarm)},
        *({"sk": f"audit#{_at(s)}#{s:08x}", "what": what, "result": said} for s, what, said in trail),
    ]
    return [_wire({"pk": f"incident#{ID}", **item}) for item in items]


def incident(row: str = "C1", **how: Any) -> Record:
    """The same as the reader sees it."""
    found = record([{name: next(iter(v.values())) for name, v in item.items()} for item in rows(row, **how)])
    assert found is not None
    return found


def delivered(incident_id: str = ID) -> dict[str, Any]:
    """The row that leads from an alarm's delivery key to its incident."""
    return _wire({"pk": "delivery#x", "sk": "node#y", "incident_id": incident_id})


def _at(seconds: float) -> str:
    return (OPENED + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _wire(item: dict[str, Any]) -> dict[str, Any]:
    serialize = TypeSerializer().serialize
    return {name: serialize(value) for name, value in item.items()}
