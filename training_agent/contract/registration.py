"""What a job tells the pipeline at its start: one event per node, so that 16,384 ranks fit.

Built by `training_agent.guard` from the rank map, published as "SDC Node Registered", verified and stored
by `lambdas.steps.register`, read back by `lambdas.steps.locate` and `resume`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .names import SCHEMA_VERSION
from .place import Job, Place


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """All ranks of one node in one attempt of one job."""

    cluster: str
    job: Job
    node: str
    instance_id: str | None
    places: tuple[Place, ...]
    world_size: int
    nodes: int
    time: str  # UTC, ISO 8601 with Z
    resumed_from_step: int | None = None  # None: started from scratch
    versions: dict[str, str] = field(default_factory=dict)
    schema_version: str = SCHEMA_VERSION
