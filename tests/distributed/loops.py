"""Training steps that people really write, for the models of `models`. Next: `cases` puts both together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.distributed.models import batch_for, ragged_batch


@dataclass(slots=True)
class Loop:
    """What a step of some case works on."""

    model: nn.Module  # as wrapped
    plain: nn.Module
    optimizers: list[Optimizer]
    loss: Callable[..., Tensor]
    rank: int
    guard: Any  # None in an unguarded run
    scaler: Any = None
    notes: dict[str, Any] = field(default_factory=dict)


def plain_step(loop: Loop, step: int) -> None:
    loop.optimizers[0].zero_grad()
    loop.loss(loop.model, batch_for(loop.rank, step)).backward()
    nn.utils.clip_grad_norm_(loop.plain.parameters(), 1.0)
    loop.optimizers[0].step()


def ragged(loop: Loop, step: int) -> None:
    """Numbers of rows that differ by rank and step."""
    loop.optimizers[0].zero_grad()
    loop.loss(loop.model, ragged_batch(loop.rank, step)).backward()
    loop.optimizers[0].step()


def other_environment(loop: Loop, step: int) -> None:
    """From step 4 on rank 2 computes with another number of threads, which can change bits."""
    torch.set_num_threads(2 if loop.rank == 2 and step >= 4 else 1)
    try:
        plain_step(loop, step)
    finally:
        torch.set_num_threads(1)


def accumulate(loop: Loop, step: int) -> None:
    """Three micro-batches, the first two under no_sync."""
    loop.optimizers[0].zero_grad()
    for micro in range(3):
        with loop.model.no_sync() if micro < 2 else nullcontext():
            (loop.loss(loop.model, batch_for(loop.rank, step, micro)) / 3).backward()
    loop.optimizers[0].step()


def saved_each_time(loop: Loop, step: int) -> None:
    """What stands before every save."""
    plain_step(loop, step)
    loop.guard.before_save(together=True)


def ballasted(loop: Loop, step: int) -> None:
    """A batch that is worth sending ahead, while messages of the loop's own are under way.

    It outgrows what was agreed on one rank, and later some ranks accumulate two micro-batches.
    """
    size = 80_000 if (step, loop.rank) == (4, 1) else 30_000 + 500 * loop.rank
    batches = 2 if step > 4 and loop.rank % 2 else 1
    world, theirs = dist.get_world_size(), torch.zeros(3)
    loop.optimizers[0].zero_grad()
    for micro in range(batches):
        with loop.model.no_sync() if micro < batches - 1 else nullcontext():
            batch = batch_for(loop.rank, step, micro) | {"ballast": torch.full((size,), 0.5 + step + micro)}
            loss = loop.loss(loop.model, batch)
            if micro == 0:
                mine = torch.full((3,), float(loop.rank))
                works = [dist.all_reduce(torch.ones(2), async_op=True)]
                works.append(dist.irecv(theirs, (loop.rank + 1) % world))
                works.append(dist.isend(mine, (loop.rank - 1) % world))
            (loss / batches).backward()
    for work in works:
        work.wait()
    assert theirs.tolist() == [(loop.rank + 1) % world] * 3, "the loop's own messages reach it"
    loop.optimizers[0].step()


def freeze_and_thaw(loop: Loop, step: int) -> None:
    for p in loop.plain.up.parameters():
        p.requires_grad_(not 3 <= step <= 4)
    plain_step(loop, step)


def replace_data(loop: Loop, step: int) -> None:
    if step == 3:
        for p in loop.plain.parameters():
            p.data = p.data.clone()
    plain_step(loop, step)


def several_forwards(loop: Loop, step: int) -> None:
    """Two forwards, one backward."""
    loop.optimizers[0].zero_grad()
    first = loop.loss(loop.model, batch_for(loop.rank, step))
    second = loop.loss(loop.model, batch_for(loop.rank, step, 1))
    (first + second).backward()
    loop.optimizers[0].step()


def evaluate_between(loop: Loop, step: int) -> None:
    plain_step(loop, step)
    loop.model.eval()
    with torch.no_grad():
        loop.loss(loop.model, batch_for(loop.rank, step, 7))
    loop.model.train()


def forgotten_no_grad(loop: Loop, step: int) -> None:
    """An evaluation that builds a graph which nobody uses."""
    loop.model.eval()
    loop.loss(loop.model, batch_for(loop.rank, step, 7))
    loop.model.train()
    plain_step(loop, step)


def two_optimizers(loop: Loop, step: int) -> None:
    for optimizer in loop.optimizers:
        optimizer.zero_grad()
    loop.loss(loop.model, batch_for(loop.rank, step)).backward()
    for optimizer in loop.optimizers:
        optimizer.step()


def closure(loop: Loop, step: int) -> None:
    """As Lightning does."""

    def run() -> Tensor:
        loop.optimizers[0].zero_grad()
        loss = loop.loss(loop.model, batch_for(loop.rank, step))
        loss.backward()
        return loss

    loop.optimizers[0].step(run)


def returned_loss(loop: Loop, step: int) -> None:
    loop.optimizers[0].zero_grad()
    batch = batch_for(loop.rank, step)
    loop.model(batch["x"], batch["y"])["loss"].backward()
    loop.optimizers[0].step()


def scaled(loop: Loop, step: int) -> None:
    """fp16 style: rank 2 overflows now and then, which the scaler answers by skipping the step."""
    loop.optimizers[0].zero_grad()
    batch = batch_for(loop.rank, step)
    if loop.rank == 2 and step in loop.notes.get("overflows", ()):
        batch["x"][0, 0] = float("inf")
    loop.scaler.scale(loop.loss(loop.model, batch)).backward()
    loop.scaler.step(loop.optimizers[0])
    loop.scaler.update()


def half(loop: Loop, step: int) -> None:
    """The forward under fp16 autocast, as the loop opens it."""
    loop.optimizers[0].zero_grad()
    batch = batch_for(loop.rank, step)
    if loop.rank == 2 and step in loop.notes.get("overflows", ()):
        batch["x"][0, 0] = 1e5  # too large for fp16
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loop.loss(loop.model, batch)
    loop.scaler.scale(loss).backward()
    loop.scaler.step(loop.optimizers[0])
    loop.scaler.update()


def half_forward(loop: Loop, step: int) -> None:
    """The loss function under bf16 autocast, the backward outside of it, as torch's documentation has it."""
    loop.optimizers[0].zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loop.loss(loop.model, batch_for(loop.rank, step))
    loss.backward()
    loop.optimizers[0].step()


def late_hook(loop: Loop, step: int) -> None:
    """A forward hook that comes after the guard's, and changes some batches' outputs."""
    if step == 1:
        loop.plain.register_forward_hook(doubling)
    plain_step(loop, step)


def doubling(_module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
    return output * 2 if bool(args[0][0, 0] > 0) else None


def with_copy(loop: Loop, step: int) -> None:
    """A copy of the model that some batches go through as well, as a teacher's."""
    if step == 1:
        loop.plain.__dict__["teacher"] = [copy.deepcopy(loop.plain)]
    plain_step(loop, step)


def class_setting_by_rank(loop: Loop, step: int) -> None:
    """From step 2 on one rank has an attribute of its own where the others have their class's."""
    if step > 1 and loop.rank == 1:
        loop.plain.scale = 1.25  # type: ignore[assignment]
    plain_step(loop, step)


def settings_by_rank(loop: Loop, step: int) -> None:
    """From step 2 on one rank has another dropout rate than the others, as it adapts it to its own data."""
    if step > 1:
        loop.plain.drop.p = 0.3 if loop.rank == 1 else 0.1  # type: ignore[union-attr]
    plain_step(loop, step)
