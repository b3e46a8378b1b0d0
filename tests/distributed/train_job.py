"""One rank of three under `training_agent.train`: whole and resumed runs, dropped and retried steps, failure.

Usage: train_job.py OUT_DIR, with RANK and friends set. Goes out: one JSON file with what each scenario left.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.small_model import (
    Model,
    batch_for,
    compute_loss,
    fingerprint,
    fingerprint_optimizer,
    settings_for,
)
from training_agent import CheckpointStore, Schedule, SdcAlarm, train
from training_agent.errors import AgentError
from training_agent.faults import Element, FaultSpec, Injection, Persistence, Value, Where
from training_agent.schedule import ScheduleWarning

STEPS, BAD_BATCH, STRUCK = 12, 5, 1
Scenario = Callable[["Job", Path], "Left"]


@dataclass
class Left:
    """What a call of `train` left behind on one rank."""

    ended: str = ""  # name and text of the error
    returned: int = 0
    weights: str = ""
    moments: str = ""
    rate: float = 0.0  # of the scheduler
    reported: list[int] = field(default_factory=list)  # steps that `on_step` heard of
    batches: list[int] = field(default_factory=list)  # that were asked for
    saved: list[int] = field(default_factory=list)
    hooks: int = 0  # left on model and optimizer
    deterministic: bool = False  # left on
    raises_again: bool = False


class Job:
    """One fresh model per call."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def train(
        self,
        folder: Path,
        *,
        steps: int = STEPS,
        fault: FaultSpec | None = None,
        nan_batch: int | None = None,
        fused: bool = False,
        store: CheckpointStore | None = None,
        fails_at: int | None = None,
        **options: Any,
    ) -> Left:
        torch.manual_seed(7)
        model = Model()
        ddp = DistributedDataParallel(model)
        torch.manual_seed(100 + self.rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        left = Left()
        step = [0]

        def batch_of(number: int) -> dict[str, Tensor]:
            left.batches.append(number)
            step[0] = number
            return rebuilt(number, self.rank)

        def rebuilt(number: int, rank: int) -> dict[str, Tensor]:
            batch = batch_for(rank, number)
            if (number, rank) == (nan_batch, STRUCK):
                batch["x"][0, 0] = float("nan")
            return batch

        def on_step(number: int, _loss: Tensor) -> None:
            left.reported.append(number)
            if number == fails_at:
                raise OSError("the progress bar is broken")

        injection = None
        if fault is not None:
            injection = Injection(fault, rank=self.rank, step=lambda: step[0], module=model.blocks[1].down)
        store = store or CheckpointStore(folder, dist.get_world_size())
        try:
            left.returned = train(
                ddp,
                optimizer,
                batch_of,
                compute_loss=compute_loss,
                steps=steps,
                clip_norm=1.0,
                scheduler=scheduler,
                on_step=on_step,
                schedule=options.pop("schedule", Schedule(4, 2, 4)),
                checkpoints=store,
                settings=settings_for(self.rank),
                rebuild_batch=rebuilt if options.get("policy") == "skip" else None,
                **options,
            )
        except (AgentError, OSError) as e:
            left.ended = f"{type(e).__name__}: {e}"
            left.raises_again = _raises(optimizer)
        dist.barrier()
        left.weights, left.moments = fingerprint(model), fingerprint_optimizer(optimizer)
        left.rate = scheduler.get_last_lr()[0]
        left.saved = [c.step for c in store.list() if c.complete and not c.doubtful]
        left.hooks = sum(
            len(hooks)
            for hooks in (
                ddp._forward_pre_hooks,
                model._forward_pre_hooks,
                optimizer._optimizer_step_pre_hooks,
            )
        ) + sum(len(p._backward_hooks or ()) for p in model.parameters())
        left.deterministic = torch.are_deterministic_algorithms_enabled()
        if injection is not None:
            injection.close()
        return left


def _raises(optimizer: torch.optim.Optimizer) -> bool:
    try:
        optimizer.step()
    except SdcAlarm:
        return True
    return False


class FullDisk(CheckpointStore):
    """Only rank 0 writes, so only rank 0 sees it."""

    def save(self, *_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")


def _resumed(job: Job, folder: Path) -> Left:
    job.train(folder, steps=8)
    return job.train(folder)


def _resumed_after_a_drop(job: Job, folder: Path) -> Left:
    job.train(folder, steps=8, nan_batch=BAD_BATCH, policy="skip")
    return job.train(folder, policy="skip")


def _doubtful(job: Job, folder: Path) -> Left:
    if job.rank == 0:
        store = CheckpointStore(folder, dist.get_world_size())
        store.save(4, {"model": {}}, {})
        store.mark_doubtful(1)
    dist.barrier()
    return job.train(folder)


def _after_a_failure(job: Job, folder: Path) -> Left:
    job.train(folder / "first", fails_at=3)
    return job.train(folder / "second")


PERSISTENT = FaultSpec(Where.FORWARD_OUTPUT, Element(1000.0), STRUCK, 6, seed=1)
ONCE = FaultSpec(Where.WEIGHT_GRADIENT, Value(float("nan")), STRUCK, 6, Persistence.ONCE, seed=1)

SCENARIOS: dict[str, Scenario] = {
    "whole": lambda job, folder: job.train(folder),
    "resumed": _resumed,
    "retry": lambda job, folder: job.train(folder, fault=ONCE, policy="retry"),
    "skip": lambda job, folder: job.train(folder, nan_batch=BAD_BATCH, policy="skip"),
    "skip, deferred": lambda job, folder: job.train(
        folder, nan_batch=BAD_BATCH, policy="skip", mode="deferred", fused=True
    ),
    "lazy naming": lambda job, folder: job.train(folder, nan_batch=BAD_BATCH, naming="lazy", steps=6),
    "unknown naming": lambda job, folder: job.train(folder, naming="none"),
    "skip, resumed": _resumed_after_a_drop,
    "stop": lambda job, folder: job.train(folder, fault=PERSISTENT),
    "stop at the last step, deferred": lambda job, folder: job.train(
        folder, steps=7, nan_batch=7, mode="deferred", fused=True
    ),
    "on_step fails": lambda job, folder: job.train(folder, fails_at=3),
    "again after a failure": _after_a_failure,
    "full disk": lambda job, folder: job.train(folder, store=FullDisk(folder, 3)),
    "only doubtful checkpoints": _doubtful,
}


def main(out: Path) -> None:
    warnings.simplefilter("ignore", ScheduleWarning)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    job = Job(rank)
    found = {name: asdict(run(job, out / name)) for name, run in SCENARIOS.items()}
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
