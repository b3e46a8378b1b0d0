"""One rank that counts what the guard adds to a healthy step: host syncs, collectives, bytes; then the
reduction's checksum with one wrong element.

Usage: cost_worker.py OUT_DIR, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.bench.counting import Counts, counted
from tests.bench.model import TINY, Decoder, batch_for, compute_loss
from tests.bench.subjects import settings_for
from tests.matrix import reduction_job
from training_agent import Schedule, _reduction, attach

STEPS = 3  # the last one is counted: DDP has its final buckets, a deferred guard has something to read


def main(out: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found = {}
    plain, model = count(rank, None, {}, nothing)
    tiny = sum(p.numel() * p.element_size() for p in model.parameters() if p.dim() < 2)
    every = sum(p.numel() * p.element_size() for p in model.parameters())
    tensors = len(list(model.parameters()))
    for mode in ("immediate", "deferred"):
        for name, options, user in (
            ("guarded", {}, nothing),
            ("lazy naming", {"naming": "lazy"}, nothing),
            ("with item", {}, lambda loss: loss.item()),
            ("layers between", {"schedule": Schedule(1000, 100, None, layer_every=500)}, nothing),
            ("layer audit", {"schedule": Schedule(1000, 100, None, layer_every=1)}, nothing),
            ("checksum", {"schedule": Schedule(None, 100, None, reduction=True)}, nothing),
        ):
            guarded, _ = count(rank, mode, options, user)
            added = guarded.less(plain)
            found[f"{mode}, {name}"] = {
                **added.as_dict(),
                "gradient_bytes": every,
                "tiny_bytes": tiny,
                "tensors": tensors,
            }
    for name, ballast in (("small batch", 0), ("large batch", 50_000)):
        found[f"audit, {name}"] = audited(rank, ballast)
    if dist.get_world_size() == 3:  # here, since starting three ranks takes longer
        found["reduction"] = reductions(rank)
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def audited(rank: int, ballast: int) -> dict[str, Any]:
    """Counts of the backward of the second audited step, whose batch has `ballast` more numbers."""
    torch.manual_seed(1)
    ddp = DistributedDataParallel(Decoder(TINY))
    optimizer = torch.optim.AdamW(ddp.parameters())
    guard = attach(
        ddp,
        optimizer,
        compute_loss=lambda net, tokens, _ballast: compute_loss(net, tokens),
        schedule=Schedule(2, 100, None),
        settings=settings_for(rank),
    )
    for number in range(1, 5):
        optimizer.zero_grad()
        loss = guard.compute_loss(ddp, batch_for(TINY, 64, rank, number), torch.ones(ballast))
        counts = counted(loss.backward)
        optimizer.step()
    passed = guard.manifest()["audits_passed"]
    guard.close()
    return {**counts.as_dict(), "audits_passed": passed}


def reductions(rank: int) -> dict[str, Any]:
    """One wrong element of each size inside the all-reduce, after a short measurement."""
    _reduction.CALIBRATION = 12
    return {kind: reduction_job.run(kind, 4, 1, rank) for kind in ("fp32 weights", "compressing hook")}


def nothing(_loss: torch.Tensor) -> None:
    """What this loop does between backward and step."""


def count(
    rank: int, mode: str | None, options: dict[str, Any], user: Callable[[torch.Tensor], Any]
) -> tuple[Counts, torch.nn.Module]:
    """Counts between two optimizer steps, and the model; `user` is more of the loop."""
    torch.manual_seed(1)
    ddp = DistributedDataParallel(Decoder(TINY))
    optimizer = torch.optim.AdamW(ddp.parameters(), fused=True)
    loss_of: Callable[..., torch.Tensor] = compute_loss
    if mode is not None:
        options = {"schedule": Schedule(None, 100, None), **options}
        guard = attach(
            ddp,
            optimizer,
            compute_loss=compute_loss,
            settings=settings_for(rank),
            mode=mode,
            **options,
        )
        loss_of = guard.compute_loss

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(ddp, batch_for(TINY, 64, rank, number))
        loss.backward()
        user(loss)
        optimizer.step()

    for number in range(1, STEPS):
        step(number)
    counts = counted(lambda: step(STEPS))
    if mode is not None:
        guard.close()
    return counts, ddp.module


if __name__ == "__main__":
    main(Path(sys.argv[1]))
