"""A ready training loop around the guard: resume, forward, backward, clip, step, save.

Comes in: a DDP model, its optimizer, the loss function, a function that gives the batch of a step. Goes out:
the number of updates applied; checkpoints in the store. The bare parts are `training_agent.attach` and
`CheckpointStore`, for loops of one's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ._given import refuse_trained
from ._objects import gathered
from .checkpoint import CheckpointStore
from .checks.replay import LossFunction
from .errors import CheckpointError, ConfigurationError, SdcAlarm
from .guard import Guard, attach
from .schedule import Schedule


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
        `rebuild_batch` gets the number that `batch_of` got.

    Returns
    -------
    Updates applied over all starts.

    Raises
    ------
    SdcAlarm: the guard stays on the model, so that a loop that swallows it cannot go on.
    ConfigurationError, CheckpointError: on every rank; any other error of the loop is passed on. The guard is
        taken off the model.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise ConfigurationError(
            f"train() got a {type(ddp_model).__name__}: it trains and saves a model wrapped in "
            "DistributedDataParallel. Around fully_shard write the loop yourself, with attach()."
        )
    refuse_trained(batch_of, compute_loss, steps, clip_norm, scheduler, on_step, checkpoints)
    schedule = Schedule() if schedule is None else schedule

    def clip() -> None:
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(ddp_model.parameters(), clip_norm)

    number = 0  # of the batch in hand
    rebuild = options.pop("rebuild_batch", None)
    if rebuild is not None:  # dropped steps took their batches with them
        options["rebuild_batch"] = lambda _step, rank: rebuild(number, rank)

    guard = attach(
        ddp_model,
        optimizer,
        compute_loss=compute_loss,
        schedule=schedule,
        checkpoints=checkpoints,
        finish=clip,
        **options,
    )
    saved = _Saved(guard, ddp_model, optimizer, scheduler)
    try:
        dropped = 0 if checkpoints is None else saved.resume(checkpoints)
        while guard.step < steps:
            step = guard.step + 1
            optimizer.zero_grad(set_to_none=True)
            number = step + dropped
            loss = guard.compute_loss(ddp_model, batch_of(number))
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
                saved.save(checkpoints, dropped)
        guard.close()
    except SdcAlarm:
        raise
    except BaseException:
        guard.abandon()
        raise
    return guard.step


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a checkpoint of this loop holds, and how it comes back; both are collectives.

    A file that only one rank can or cannot write or read ends all of them, at once and with its reason.
    """

    guard: Guard
    model: DistributedDataParallel
    optimizer: Optimizer
    scheduler: Any

    def save(self, store: CheckpointStore, dropped: int) -> None:
        self.guard.before_save()
        generators = gathered(_generators(self._device), None, self._device)
        problem = None
        if dist.get_rank() == 0:
            state = {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "rng": generators,
                "dropped": dropped,
            }
            try:
                store.save(self.guard.step, state, self.guard.manifest())
            except (OSError, CheckpointError) as e:
                problem = f"The checkpoint of step {self.guard.step} could not be written: {e}"
        self._agree(problem)

    def resume(self, store: CheckpointStore) -> int:
        """Load what rank 0 chooses (a rank that looks later may see a newer one); batches dropped so far."""
        choice, problem = None, None
        if dist.get_rank() == 0:
            try:
                choice = store.resume()
            except (OSError, CheckpointError) as e:
                problem = str(e)
        self._agree(problem)
        choice = gathered(choice, None, self._device)[0]
        if choice is None:
            return 0
        try:
            state, manifest = store.load(choice)
        except (OSError, CheckpointError) as e:
            problem = str(e)
        self._agree(problem)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if dist.get_rank() < len(state["rng"]):  # more ranks than at the save go on with their own seeds
            _set_generators(state["rng"][dist.get_rank()], self._device)
        self.guard.after_load(manifest)
        return int(state["dropped"])

    def _agree(self, problem: str | None) -> None:
        """Raise on every rank when one of them failed."""
        answers = gathered(problem, None, self._device)
        said = {rank: p for rank, p in enumerate(answers) if p is not None}
        if said:
            rank, text = next(iter(said.items()))
            raise CheckpointError(f"{text} (rank {rank})")

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def _generators(device: torch.device) -> list[Tensor]:
    own = [torch.get_rng_state()]
    return own + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def _set_generators(saved: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(saved[0])
    if device.type == "cuda" and len(saved) > 1:
        torch.cuda.set_rng_state(saved[1], device)
