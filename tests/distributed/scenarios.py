"""All scenarios of the six-rank job, by name; `worker` runs them one after another in one process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from tests.distributed import faults, harness, small_model
from tests.distributed.faults import ALWAYS, EVERYWHERE, STEP_ONLY
from tests.distributed.harness import Plan, Run, TrainingJob
from tests.distributed.small_model import batch_for
from training_agent import Schedule
from training_agent._evidence import Recorder
from training_agent.errors import AgentError
from training_agent.fault_plan import FaultPlan
from training_agent.faults import FaultSpec, Flip, Persistence, Where

Scenario = Callable[[TrainingJob], Run]
NAN = float("nan")


def _nan_data(rank: int, step: int, at: int = 25) -> dict[str, Tensor]:
    batch = batch_for(rank, step)
    if rank == 3 and step == at:
        batch["x"][4, 2] = NAN
    return batch


def _on(rank: int, at: int, do: Callable[[nn.Module], None]) -> Callable[[nn.Module, int, int], None]:
    return lambda model, own_rank, step: do(model) if (own_rank, step) == (rank, at) else None


def _huge_gradient(model: nn.Module) -> None:
    model.head.bias.register_hook(lambda g: torch.full_like(g, 1e25))


def _nan_in_one_weights_gradient(model: nn.Module) -> None:
    model.blocks[0].up.weight.register_hook(lambda g: g * NAN)


# Set at one step: what a fault inside the all-reduce does, the same NaN on every rank; or in one rank's copy.
SPOIL_REDUCTION = [False]


def faulty_all_reduce(_state, bucket):  # no annotations: DDP would compare them with its own objects
    """DDP's own average, spoilt in one element while SPOIL_REDUCTION is set."""
    reduced = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()

    def spoil(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        result = future.value()[0]
        if SPOIL_REDUCTION[0]:
            result[1] = NAN
        return result

    return reduced.then(spoil)


def _spoil_reduction(job: TrainingJob, at: int, only: int | None = None) -> Run:
    def switch(_model: nn.Module, rank: int, step: int) -> None:
        SPOIL_REDUCTION[0] = step == at and only in (None, rank)

    try:
        return job.run(Plan(before_step=switch, steps=12))
    finally:
        SPOIL_REDUCTION[0] = False


@contextmanager
def _loss_factor(rank: int, own_rank: int, factor: float) -> Iterator[None]:
    small_model.LOSS_FACTOR = factor if rank == own_rank else 1.0
    try:
        yield
    finally:
        small_model.LOSS_FACTOR = 1.0


def _loss_fault(job: TrainingJob, *, with_loss: bool) -> Run:
    with _loss_factor(4, job.rank, 1.7):
        return job.run(Plan(with_loss=with_loss))


def _flipped_moment(job: TrainingJob, schedule: Schedule, at: int = 15) -> Run:
    """A bit of `exp_avg` of rank 4 flips inside the update of step `at`."""
    flipped = FaultSpec(Where.OPTIMIZER_STATE, Flip((22,)), 4, at, Persistence.ONCE, seed=1)
    return job.run(Plan(steps=at, schedule=schedule, store=True, spec=flipped))


def _undigested(job: TrainingJob) -> Run:
    """What a broken hook would do: the audit has outputs and the loss, and no gradient."""
    with mock.patch.object(Recorder, "gradient", lambda *_: None):
        return job.run(Plan(steps=10))


def _resume(job: TrainingJob) -> Run:
    whole = job.run(Plan(checkpoint_at=20))
    resumed = job.run(Plan(resume=whole.notes.pop("checkpoint")))
    resumed.notes["whole"] = (whole.weights, whole.moments)
    return resumed


def _load(job: TrainingJob, damage: Callable[[TrainingJob, dict[str, Any]], None]) -> Run:
    checkpoint = job.run(Plan(checkpoint_at=20, steps=20)).notes["checkpoint"]
    damage(job, checkpoint)
    return job.run(Plan(resume=checkpoint))


def _damage_file(_job: TrainingJob, checkpoint: dict[str, Any]) -> None:
    checkpoint["model"]["head.weight"].view(torch.int32)[0, 0] ^= 1 << 12


def _damage_on_rank_1(job: TrainingJob, checkpoint: dict[str, Any]) -> None:
    if job.rank == 1:
        _damage_file(job, checkpoint)


def _product(job: TrainingJob, name: str, rank: int, step: int) -> Run:
    """A fault of the product's own injector."""
    schedule = Plan().schedule
    layout = {"total_steps": harness.STEPS, "world_size": 6, "gpus_per_node": small_model.GPUS}
    return job.run(Plan(injected=FaultPlan.parse(name, rank, step, 11, schedule, **layout)))


def _unsaved(job: TrainingJob) -> Run:
    """A save at a step whose weights were not compared."""
    try:
        return job.run(Plan(steps=7, checkpoint_at=7))
    except AgentError as e:
        job.guard.abandon()  # the next run attaches to the same model
        return Run(notes={"error": str(e)})


SCENARIOS: dict[str, Scenario] = {
    "unguarded": lambda job: job.run(Plan(guarded=False)),
    "clean": lambda job: job.run(Plan()),
    "clean without compute_loss": lambda job: job.run(Plan(with_loss=False)),
    "nan-once": lambda job: _product(job, "nan-once", rank=3, step=25),
    "nan-once on an audit step": lambda job: job.run(Plan(faults.forward([3], [20], STEP_ONLY, NAN))),
    "nan in everything": lambda job: job.run(Plan(faults.forward([3], ALWAYS, EVERYWHERE, NAN))),
    "forward-x1000": lambda job: _product(job, "forward-x1000", rank=3, step=23),
    "forward-x1000 without compute_loss": lambda job: job.run(
        Plan(faults.forward([3], ALWAYS, EVERYWHERE, 1000.0), with_loss=False)
    ),
    "forward-x1000-once": lambda job: _product(job, "forward-x1000-once", rank=3, step=23),
    "replayer-x1000": lambda job: _product(job, "replayer-x1000", rank=2, step=23),
    "weight-grad-x1000": lambda job: _product(job, "weight-grad-x1000", rank=5, step=23),
    "two-gpus": lambda job: _product(job, "two-gpus", rank=1, step=23),
    "weight-flip": lambda job: _product(job, "weight-flip", rank=0, step=21),
    "moment flipped before a checkpoint": lambda job: _flipped_moment(job, Schedule(None, 10, 5)),
    "moment flipped, state not compared": lambda job: _flipped_moment(
        job, Schedule(None, 10, 5, optimizer_state=False)
    ),
    "moment flipped between checkpoints": lambda job: _flipped_moment(job, Schedule(None, 10, 20), at=10),
    "gradients that nobody digested": _undigested,
    "save that is not forced": lambda job: job.run(
        Plan(steps=7, schedule=Schedule(10, 10, 7, strict=False, check_on_checkpoint=False), store=True)
    ),
    "weight-flip before a checkpoint": lambda job: job.run(
        Plan(
            after_update=_on(0, 21, lambda m: faults.flip_weight(m, "blocks.0.up.weight")),
            schedule=Schedule(None, 10, 5),
            store=True,
        )
    ),
    "weight-flip seen by an audit": lambda job: job.run(
        Plan(
            after_update=_on(0, 21, lambda m: faults.flip_weight(m, "blocks.0.up.weight")),
            schedule=Schedule(10, 1000, None),
        )
    ),
    "nan in a stored weight": lambda job: job.run(
        Plan(
            after_update=_on(2, 21, lambda m: m.head.bias.data[:1].fill_(NAN)),
        )
    ),
    "nan in the data": lambda job: job.run(Plan(data=_nan_data)),
    "gradient of 1e25, clipped": lambda job: job.run(Plan(before_step=_on(1, 15, _huge_gradient))),
    "x1000 between checkpoints": lambda job: job.run(
        Plan(
            faults.forward([3], ALWAYS, EVERYWHERE, 1000.0),
            schedule=Schedule(10, 5, 5, strict=False),
            store=True,
        )
    ),
    "nan in a step that cannot be replayed": lambda job: job.run(
        Plan(faults.forward([3], [5], STEP_ONLY, NAN), after_backward=lambda _m, batch: batch["x"].zero_())
    ),
    "wrong loss": lambda job: _loss_fault(job, with_loss=True),
    "wrong loss without compute_loss": lambda job: _loss_fault(job, with_loss=False),
    "lazy naming: clean": lambda job: job.run(Plan(steps=12, naming="lazy")),
    "lazy naming: nan-once": lambda job: job.run(
        Plan(faults.forward([3], [5], STEP_ONLY, NAN), naming="lazy")
    ),
    "lazy naming: nan in the data": lambda job: job.run(
        Plan(data=lambda rank, step: _nan_data(rank, step, 5), naming="lazy")
    ),
    "lazy naming: nan in one weight's gradient": lambda job: job.run(
        Plan(before_step=_on(3, 5, _nan_in_one_weights_gradient), naming="lazy")
    ),
    "resumed": _resume,
    "damaged file": lambda job: _load(job, _damage_file),
    "damaged on one rank": lambda job: _load(job, _damage_on_rank_1),
    "save of an unchecked step": _unsaved,
    "two forwards per update": lambda job: job.run(Plan(forwards=2)),
    "batch changed in place": lambda job: job.run(
        Plan(steps=10, after_backward=lambda _m, batch: batch["x"].zero_())
    ),
}

# Each has a model of its own, wrapped with these options.
VARIANTS: dict[str, dict[str, Any]] = {
    "static graph": {"static_graph": True, "comm_hook": faulty_all_reduce},
    "bucket views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001, "comm_hook": faulty_all_reduce},
    "fp16 hook": {"comm_hook": fp16_compress_hook},
}
VARIANT_SCENARIOS: dict[str, Scenario] = {
    "unguarded": lambda job: job.run(Plan(guarded=False, steps=12)),
    "clean": lambda job: job.run(Plan(steps=12)),
    "nan-once": lambda job: job.run(Plan(faults.forward([3], [5], STEP_ONLY, NAN))),
    "forward-x1000": lambda job: job.run(Plan(faults.forward([3], range(3, 99), EVERYWHERE, 1000.0))),
    "nan in the reduction": lambda job: _spoil_reduction(job, at=7),
    "nan in one copy of it": lambda job: _spoil_reduction(job, at=7, only=2),
}
