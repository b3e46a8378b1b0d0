"""Builders of alarms, places and settings, and an AWS that can be told to misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from training_agent.contract import (
    Alarm,
    Check,
    Finding,
    FindingKind,
    Independence,
    Job,
    NodeRegistration,
    Place,
    ResumePoint,
)
from training_agent.settings import AgentSettings

ROOT = Path(__file__).parents[3]  # of the repository; child processes import from here
JOB = Job(name="llama", uid="job-1", attempt=2, namespace="team")


def instance(node: int) -> str:
    return f"i-{node:017x}"


def a_place(rank: int, per_node: int = 2) -> Place:
    """Rank `rank` of a job with `per_node` ranks a node; GPU and instance follow from it."""
    node = rank // per_node
    return Place(
        rank=rank,
        local_rank=rank % per_node,
        node=f"hyperpod-{instance(node)}",
        instance_id=instance(node),
        gpu_uuid=f"GPU-{rank}",
    )


def a_finding(rank: int | None = 1, kind: FindingKind = FindingKind.CULPRIT, **changes: Any) -> Finding:
    place = None if rank is None else a_place(rank)
    return Finding(**{"kind": kind, "rank": rank, "place": place, "majority": True, **changes})


def an_alarm(*findings: Finding, **changes: Any) -> Alarm:
    values: dict[str, Any] = {
        "cluster": "demo",
        "job": JOB,
        "check": Check.REPLAY,
        "step": 30,
        "time": "2026-01-02T03:04:05.000Z",
        "findings": findings or (a_finding(),),
        "suspect_window": (21, 30),
        "world_size": 6,
        "nodes": 3,
        "independence": Independence.NODE,
        "resume_from": ResumePoint(20, "/shared/checkpoints/step-20"),
    }
    return Alarm(**{**values, **changes})


def a_registration() -> NodeRegistration:
    place = a_place(0)
    return NodeRegistration(
        cluster="demo",
        job=JOB,
        node=place.node,
        instance_id=place.instance_id,
        places=(place, a_place(1)),
        world_size=6,
        nodes=3,
        time="2026-01-02T03:00:00.000Z",
    )


def settings_of(shared: Path | None, rank: int = 0, **changes: Any) -> AgentSettings:
    """Settings of the node on which `rank` stands, with a bus and without a quarantine table."""
    node = rank // 2
    values: dict[str, Any] = {
        "cluster": "demo",
        "job": JOB,
        "node": f"hyperpod-{instance(node)}",
        "gpu_uuids": (f"GPU-{2 * node}", f"GPU-{2 * node + 1}"),
        "shared_dir": shared,
        "event_bus": "sdc-bus",
        "hold_timeout": timedelta(seconds=20),
    }
    return AgentSettings(**{**values, **changes})


class FakeAws:
    """boto3-like clients that remember their calls; `factory` is what the agent takes for boto3.

    `events` holds the entries that the bus took, `calls` the size of every PutEvents call, `metrics` every
    PutMetricData call, `table` the quarantine table's rows by subject.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.calls: list[int] = []
        self.metrics: list[dict[str, Any]] = []
        self.table: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []
        self.refuse: Callable[[int, int], bool] = lambda call, index: False  # (call, index) -> refused
        self.slow_s = 0.0
        self.broken: Exception | None = None
        self.let_through = 0
        self.gate = threading.Event()
        self.gate.set()

    def factory(self, service: str) -> FakeAws:
        return self

    def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803 - boto3's name
        self._trouble()
        call = len(self.calls)
        self.calls.append(len(Entries))
        assert len(Entries) <= 10, "PutEvents takes 10 entries"
        answers: list[dict[str, str]] = []
        for index, entry in enumerate(Entries):
            if self.refuse(call, index):
                answers.append({"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"})
            else:
                self.events.append(entry)
                answers.append({"EventId": str(len(self.events))})
        return {"FailedEntryCount": sum("ErrorCode" in a for a in answers), "Entries": answers}

    def put_metric_data(self, **arguments: Any) -> dict[str, Any]:
        self._trouble()
        self.metrics.append(arguments)
        return {}

    def get_item(self, TableName: str, Key: dict[str, Any], ConsistentRead: bool) -> dict[str, Any]:  # noqa: N803
        self._trouble()
        assert ConsistentRead
        subject = Key["subject"]["S"]
        self.asked.append(subject)
        row = self.table.get(subject)
        return {} if row is None else {"Item": {k: {"S": v} for k, v in {"subject": subject, **row}.items()}}

    def _trouble(self) -> None:
        self.gate.wait(PATIENCE_S)
        self.let_through += 1
        time.sleep(self.slow_s)
        if self.broken is not None:
            raise self.broken
