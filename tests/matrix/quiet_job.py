"""One of three healthy ranks: five kinds of model, every step audited; counts alarms, which must be none.

Usage: quiet_job.py OUT_DIR STEPS [KIND ...], with RANK and friends set. The kinds are those that false alarms
come from: dropout, BatchNorm in eval mode, tied weights, frozen layers, fp16 with a GradScaler.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training_agent import AgentSettings, Schedule, SdcAlarm, attach
from training_agent.contract import Job

WIDTH, CLASSES, BATCH = 16, 8, 8


class Net(nn.Module):
    """Embedding, a hidden layer, a head; `kind` decides what makes it special."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.3 if kind == "dropout" else 0.0)
        self.norm = nn.BatchNorm1d(WIDTH) if kind == "BatchNorm in eval mode" else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        if kind == "tied weights":
            self.head.weight = self.embedding.weight
        if kind == "frozen layers":
            self.up.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        hidden: Tensor = self.norm(x + self.down(self.drop(F.gelu(self.up(x)))))
        out: Tensor = self.head(_Noise.apply(hidden) if self.kind == NOISY else hidden)
        return out


KINDS = ("dropout", "BatchNorm in eval mode", "tied weights", "frozen layers", "fp16 with a GradScaler")


NOISY = "noise in the backward"  # no deterministic kernel: case A3


class _Noise(torch.autograd.Function):
    """The identity; its backward adds noise that no seed decides, as atomic additions do."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return gradient * (1 + 1e-6 * (time.perf_counter_ns() % 97))


def run(kind: str, steps: int, rank: int) -> dict[str, Any]:
    """Train until `steps` updates were applied, audit every one."""
    torch.manual_seed(4)
    net = Net(kind)
    ddp = DistributedDataParallel(net)
    if kind == "BatchNorm in eval mode":
        net.norm.eval()
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    half = kind == "fp16 with a GradScaler"
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=50, enabled=half)

    def compute_loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16 if half else torch.bfloat16):
            logits = model(ids)
        return F.cross_entropy(logits.float(), targets)

    settings = AgentSettings(
        cluster="c", job=Job("j", "u"), node=f"hyperpod-i-{rank:017x}", gpu_uuids=(f"GPU-{rank}",)
    )
    guard = attach(
        ddp, optimizer, compute_loss=compute_loss, schedule=Schedule(1, 1, None), settings=settings
    )
    batch_of = _batches(rank)
    alarm, scaled = "", 0
    try:
        for _ in range(2 * steps + 50):  # those that the scaler skips are no audits
            if guard.step >= steps:
                break
            optimizer.zero_grad()
            loss = guard.compute_loss(ddp, *batch_of())
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            scaled += scaler.get_scale() < before
    except SdcAlarm as e:
        alarm = str(e)
    manifest = guard.manifest()
    guard.close()
    kept = (
        "notes",
        "audits_passed",
        "audits_skipped",
        "weight_checks_passed",
        "tensors_compared",
        "bytes_compared",
    )
    return {"alarm": alarm, "skipped_by_scaler": scaled, **{k: manifest[k] for k in kept}}


def _batches(rank: int) -> Callable[[], tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(rank)

    def batch() -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, CLASSES, (BATCH,), generator=generator)
        return ids, ids.roll(1)

    return batch


def main(out: Path, steps: int, kinds: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = {}
    for kind in kinds:
        found[kind] = run(kind, steps, rank)
        (out / f"{rank}.json").write_text(json.dumps(found))
        sys.stdout.write(f"- {kind}: {found[kind]['audits_passed']} audits\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:]) or KINDS)
