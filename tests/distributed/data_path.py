"""Audits that rebuild the batch: a loader, or the function itself, that is wrong on one rank or on all.

Next: `models_worker` trains each case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.distributed import loops
from tests.distributed.cases import Case
from tests.distributed.loops import Loop
from tests.distributed.models import Batch, batch_for

BAD = 1  # the rank with the trouble


def unclipped(loop: Loop, step: int) -> None:
    """Nothing between backward and update."""
    loop.optimizers[0].zero_grad()
    loop.loss(loop.model, batch_for(loop.rank, step)).backward()
    loop.optimizers[0].step()


def spoilt(loop: Loop, step: int) -> None:
    """The loader of one rank gives one wrong number from step 3 on."""
    loop.optimizers[0].zero_grad()
    batch = batch_for(loop.rank, step)
    if loop.rank == BAD and step >= 3:
        batch["x"][2, 1] += 1e-3
    loop.loss(loop.model, batch).backward()
    loop.optimizers[0].step()


def uneven(loop: Loop, step: int) -> None:
    """Rank BAD accumulates two micro-batches, the others one."""
    loop.optimizers[0].zero_grad()
    if loop.rank == BAD:
        with loop.model.no_sync():
            loop.loss(loop.model, batch_for(loop.rank, step, 1)).backward()
    loop.loss(loop.model, batch_for(loop.rank, step)).backward()
    loop.optimizers[0].step()


def rebuilt(step: int, rank: int) -> Batch:
    torch.rand(1)  # the loop's RNG must not notice
    return batch_for(rank, step)


def data_cases(own: int) -> dict[str, Case]:
    """By name, for rank `own`."""

    def failing(step: int, rank: int) -> Batch:
        if own == BAD:
            raise OSError("the file is gone")
        return batch_for(rank, step)

    def case(rebuild: Callable[[int, int], Any], **changed: Any) -> Case:
        return Case(**{"step": unclipped, **changed}, options={"rebuild_batch": rebuild})

    return {
        "data: clean": case(rebuilt),
        "data: spoilt": case(rebuilt, step=spoilt),
        "data: accumulation": case(
            lambda step, rank: [batch_for(rank, step, micro) for micro in range(3)], step=loops.accumulate
        ),
        "data: uneven": case(
            lambda step, rank: (
                [batch_for(rank, step, 1), batch_for(rank, step)] if rank == BAD else batch_for(rank, step)
            ),
            step=uneven,
        ),
        "data: failing": case(failing),
        "data: other": case(lambda step, rank: batch_for(rank, step + 1)),
        "data: without compute_loss": case(rebuilt, loss=None),
    }
