"""A ready training loop around the guard: resume, forward, backward, clip, step, save.

Comes in: a DDP model, its optimizer, the loss function, a function that gives the batch of a step. Goes out:
the number of updates applied; checkpoints in the store. The bare parts are `training_agent.attach` and
`CheckpointStore`, for loops of one's own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from .checkpoint import CheckpointStore
from .checks.replay import LossFunction
from .errors import SdcAlarm
from .guard import Guard, attach
from .schedule import Schedule

FAREWELL = timedelta(seconds=10)


def train(
    ddp_model: DistributedDataParallel,
    optimizer: Optimizer,
    batch_of: Callable[[int], Any],
    *,
    compute_loss: LossFunction,
    steps: int,
    clip_norm: float | None = None,
    scheduler: Any = None,
    on_step: Callable[[int, Tensor], None] | None = None,
    schedule: Schedule | None = None,
    checkpoints: CheckpointStore | None = None,
    **options: Any,
) -> int:
    """Train to update `steps`, from the newest checkpoint that can be trusted; a collective.

    Parameters
    ----------
    ddp_model, optimizer, compute_loss, schedule: as for `training_agent.attach`.
    batch_of: `batch_of(step)` gives this rank's batch, `compute_loss(model, batch)` its loss. A pure function
        of the step, so that a resumed step sees the same data; after a dropped step it is one ahead.
    clip_norm: largest norm of all gradients together; None does not clip.
    scheduler: stepped after each applied update.
    on_step: called with the step and this rank's loss after each applied update.
    checkpoints: where to resume from and to save to, at the multiples of `schedule.ckpt_every`.
    options: further arguments of `attach`, such as `policy="retry"`: clipping is then repeated as well.

    Returns
    -------
    Updates applied over all starts.

    Raises
    ------
    SdcAlarm, ConfigurationError, CheckpointError: as `attach`, the guard and the store do.
    """
    schedule = schedule or Schedule()

    def clip() -> None:
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(ddp_model.parameters(), clip_norm)

    guard = attach(
        ddp_model,
        optimizer,
        compute_loss=compute_loss,
        schedule=schedule,
        checkpoints=checkpoints,
        finish=clip,
        **options,
    )
    try:
        if checkpoints is not None:
            _resume(guard, ddp_model, optimizer, scheduler, checkpoints)
        dropped = 0
        while guard.step < steps:
            step = guard.step + 1
            optimizer.zero_grad(set_to_none=True)
            loss = guard.compute_loss(ddp_model, batch_of(step + dropped))
            loss.backward()  # type: ignore[no-untyped-call]
            clip()
            optimizer.step()
            if guard.step < step:  # the policy dropped it, and its batch with it
                dropped += 1
                continue
            if scheduler is not None:
                scheduler.step()
            if on_step is not None:
                on_step(step, loss.detach())
            if checkpoints is not None and schedule.checkpoint_due(step):
                _save(guard, ddp_model, optimizer, scheduler, checkpoints)
        guard.close()
    except SdcAlarm:
        _meet()
        raise
    return guard.step


def _save(
    guard: Guard, model: nn.Module, optimizer: Optimizer, scheduler: Any, store: CheckpointStore
) -> None:
    guard.before_save()
    generators: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(generators, torch.get_rng_state())
    if dist.get_rank() == 0:
        state = {
            "model": model.module.state_dict(),  # type: ignore[union-attr]
            "optimizer": optimizer.state_dict(),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "rng": generators,
        }
        store.save(guard.step, state, guard.manifest())


def _resume(
    guard: Guard, model: nn.Module, optimizer: Optimizer, scheduler: Any, store: CheckpointStore
) -> None:
    """Load what rank 0 chooses: a rank that looks later may see a newer one."""
    choice = [store.resume() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(choice)
    if choice[0] is None:
        return
    state, manifest = store.load(choice[0])
    model.module.load_state_dict(state["model"])  # type: ignore[union-attr]
    optimizer.load_state_dict(state["optimizer"])
    if scheduler is not None and state["scheduler"] is not None:
        scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"][dist.get_rank()])
    guard.after_load(manifest)


def _meet() -> None:
    """Wait for the others before leaving, for a bounded time: a launcher kills siblings at the first exit."""
    try:
        dist.monitored_barrier(timeout=FAREWELL)
    except (RuntimeError, ValueError):  # somebody left already, or the backend has no such barrier
        return
