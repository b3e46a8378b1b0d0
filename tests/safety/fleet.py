"""What a plant consists of beside the fakes: jobs on nodes, a HyperPod whose work takes time, task tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lambdas.domain.errors import CallbackGoneError
from lambdas.domain.world import ReplaceAnswer
from tests.events import builder
from tests.unit.lambdas.fakes import FakeCallback, FakeCluster
from training_agent.contract import Job, Place

if TYPE_CHECKING:
    from .plant import Plant

REPLACEMENT_TAKES = timedelta(minutes=25)
CHECK_TAKES = timedelta(minutes=45)
FEWEST = 3  # nodes that a plant keeps


@dataclass
class JobRun:
    """One training job and where its ranks sit now."""

    job: Job
    instances: list[str]

    @property
    def seats(self) -> tuple[Place, ...]:
        seats = builder.places(tuple(self.instances))
        return tuple(replace(s, pod_name=f"{self.job.uid}-{s.pod_name}") for s in seats)

    def pods(self) -> dict[str, str]:
        """Pod name -> instance."""
        return {s.pod_name: s.instance_id for s in self.seats}


class PlantCluster(FakeCluster):
    """HyperPod with a clock: what it accepts ends later."""

    def __init__(self, plant: Plant) -> None:
        super().__init__()
        self._plant = plant
        self.check_ends = "pass"  # or fail, stuck, never, superseded
        self.superseded_checks: set[tuple[str, datetime]] = set()  # instance, when it was asked for

    def start_health_check(self, group: str, instance_id: str, *more: Any, **others: Any) -> None:
        self.calls.append(("check", instance_id))
        if self.check_ends == "never":
            return
        self.set_status(instance_id, "DeepHealthCheckInProgress")
        self._plant.label_check(instance_id, "InProgress")
        if self.check_ends == "superseded":  # somebody's check of something else takes its place, and passes
            self.superseded_checks.add((instance_id, self._plant.world.clock.at))
            self._plant.later(
                CHECK_TAKES, lambda: self._plant.end_check(instance_id, failed=False, ours=False)
            )
        elif self.check_ends != "stuck":
            failed = self.check_ends == "fail"
            self._plant.later(CHECK_TAKES, lambda: self._plant.end_check(instance_id, failed=failed))

    def check_superseded(self, group: str, instance_id: str, asked_at: datetime) -> bool:
        return (instance_id, asked_at) in self.superseded_checks

    def replace(self, instance_id: str) -> ReplaceAnswer:
        answer = super().replace(instance_id)
        if answer.accepted:
            self._plant.later(REPLACEMENT_TAKES, lambda: self._carry_out(instance_id))
        return answer

    def _carry_out(self, instance_id: str) -> None:
        """Under Karpenter a node comes when a pod wants one, and here none does."""
        if self.facts.karpenter and len(self.members) > FEWEST and instance_id in self.members:
            self._plant.vanish(instance_id)
        else:
            self._plant.swap(instance_id)


class PlantExecutions:
    """Step Functions' answer about an execution, from the walker."""

    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def status(self, name: str) -> str | None:
        execution = self._plant.machine.executions.get(name)
        return execution.status if execution is not None else None


class PlantCallback(FakeCallback):
    """Step Functions' side of the task tokens."""

    def __init__(self, plant: Plant) -> None:
        super().__init__()
        self._plant = plant

    def succeed(self, task_token: str, output: dict[str, object]) -> None:
        if self.error is not None:
            raise self.error
        if not self._plant.machine.answer(task_token, json.loads(json.dumps(output))):
            raise CallbackGoneError("TaskTimedOut")
        self.answers.append((task_token, output))
