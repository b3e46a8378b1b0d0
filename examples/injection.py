"""The examples' fault injector: the only code that reads FAULT, FAULT_RANK, FAULT_STEP and SEED.

Comes in: those variables and a layer. Goes out: an `Injector` on it, and afterwards what it has struck.
Neither agent nor pipeline looks here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from examples.config import TrainConfig
from training_agent import Schedule
from training_agent.faults import FaultPlan, Injector, StrikeRecord, strike_records
from training_agent.settings import AgentSettings

if TYPE_CHECKING:
    import torch

    from training_agent import Guard
    from training_agent.faults import Phase

STATE_DIR_VARIABLE = "FAULT_STATE_DIR"  # shared by all ranks and attempts of a run


def schedule_of(config: TrainConfig) -> Schedule:
    """When the checks run."""
    return Schedule(
        audit_every=config.audit_every, check_every=config.check_every, ckpt_every=config.checkpoint_every
    )


def plan_from(
    config: TrainConfig, environ: Mapping[str, str], world_size: int, gpus_per_node: int
) -> FaultPlan:
    """Read the variables; ConfigurationError when the fault does not exist or could not be caught."""
    return FaultPlan.parse(
        environ.get("FAULT") or "none",
        environ.get("FAULT_RANK") or "0",
        environ.get("FAULT_STEP") or "1",
        environ.get("SEED") or "0",
        schedule_of(config),
        total_steps=config.steps,
        world_size=world_size,
        gpus_per_node=gpus_per_node,
    )


def injector_from_environment(
    config: TrainConfig,
    layer: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    phase: Callable[[], Phase],
    gpu_uuid: str | None,
) -> Injector:
    """Put this rank's share of the fault into effect; a healthy rank's injector does nothing."""
    import torch.distributed as dist

    gpus_per_node = int(os.environ.get("FAULT_GPUS_PER_NODE") or os.environ["LOCAL_WORLD_SIZE"])
    plan = plan_from(config, os.environ, dist.get_world_size(), gpus_per_node)
    state_dir = Path(os.environ.get(STATE_DIR_VARIABLE) or config.out / "faults")
    return Injector(plan, layer, optimizer, gpu_uuid, dist.get_rank(), state_dir, phase)


def inject(layer: torch.nn.Module, guard: Callable[[], Guard | None], config: TrainConfig) -> None:
    """For loops that a library drives: once there is a guard, faults of its computations strike `layer`."""
    made: list[Injector] = []

    def begin(*_: object) -> None:
        watching = guard()
        if watching is None:
            return
        if not made:
            rank, local = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK"))
            gpu = AgentSettings.from_env().place(rank, local).gpu_uuid
            made.append(injector_from_environment(config, layer, None, lambda: watching.phase, gpu))
        made[0].begin_step(watching.step + 1)

    layer.register_forward_pre_hook(begin)


def struck(state_dir: Path) -> list[StrikeRecord]:
    """Which GPUs the fault has really struck."""
    return [r for r in strike_records(state_dir) if r.struck_step is not None]
