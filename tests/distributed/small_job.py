"""One rank of a small guarded job whose end is an exit code. Usage: small_job.py MODE [ONE_RANK]."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed import faults
from tests.distributed.faults import EVERYWHERE
from tests.distributed.small_model import Model, batch_for, compute_loss, settings_for
from training_agent import Guard, Schedule, _examine, attach
from training_agent._phase import Phase
from training_agent.checks import weights
from training_agent.checks.weights import Divergence, compare_replicas
from training_agent.digest import digest

LAST = 5  # no audit is due at it


def train(
    guard: Guard,
    ddp: nn.Module,
    optimizer: torch.optim.Optimizer,
    nan_on: int | None,
    strict: bool = False,
    scaled: bool = False,
) -> None:
    """The loop; the data of the last step has a NaN on one rank. `strict`: so that clipping raises.

    `scaled`: with a GradScaler, which takes the NaN for an overflow.
    """
    rank = int(os.environ["RANK"])
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for step in range(1, LAST + 1):
        optimizer.zero_grad()
        batch = batch_for(rank, step)
        if (rank, step) == (nan_on, LAST):
            batch["x"][0, 0] = float("nan")
        scaler.scale(guard.compute_loss(ddp, batch)).backward()
        scaler.unscale_(optimizer)
        if strict:
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
        scaler.update()


def _no_memory(*_: Any) -> Any:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


def main(mode: str, one: int) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    model = Model()
    ddp = DistributedDataParallel(model)
    deferred = mode.startswith("deferred")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=deferred)

    def vanish(during: str) -> None:
        """Rank `one` leaves without a word, or hangs."""
        if rank == one and mode in (f"dies in {during}", f"stops in {during}"):
            os.kill(os.getpid(), signal.SIGKILL if mode.startswith("dies") else signal.SIGSTOP)

    def compared(*args: Any, **kwargs: Any) -> Divergence:
        if guard.step:  # not before the first step
            vanish("weight check")
            weights.digest = _no_memory if (rank, mode) == (one, "no memory in weight check") else digest
        return compare_replicas(*args, **kwargs)

    _examine.compare_replicas = compared

    def loss_that_dies(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        vanish(guard.phase.value)
        if mode == "fails in replay" and rank == one and guard.phase is Phase.REPLAY:
            raise RuntimeError("out of memory")
        return compute_loss(model, batch)

    guard = attach(
        ddp,
        optimizer,
        compute_loss=loss_that_dies,
        schedule=Schedule(audit_every=2, check_every=2, ckpt_every=None),
        settings=settings_for(rank),
        mode="deferred" if deferred else "immediate",
    )
    if mode.startswith("stops"):  # the start itself may take longer on a busy machine
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=8))
    if mode == "alarm" or mode.endswith("arbitration"):
        faults.forward([one if mode == "alarm" else 0], range(3, 99), EVERYWHERE, 1000.0)(
            model, guard, rank, lambda: guard.step + 1
        )
    strict, scaled = mode.endswith("error_if_nonfinite"), "scaled" in mode
    nan_on = one if deferred or strict or scaled else None
    train(guard, ddp, optimizer, nan_on, strict=strict, scaled=scaled)
    sys.stdout.write(f"done at {guard.step} {guard.manifest()['audits_skipped']}\n")
    end(guard, mode, first=rank != one)


def end(guard: Guard, mode: str, first: bool) -> None:
    """As a loop does, or without closing, or this rank `first` and without a word."""
    if first and mode.endswith("others gone"):
        os._exit(0)
    if mode.endswith(("not closed", "others gone")):
        return
    if mode != "deferred, group destroyed first":
        guard.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
