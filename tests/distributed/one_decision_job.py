"""A4's job: four ranks, rank 2's batch holds a NaN at step 7. One JSON line per rank, then the alarm."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from training_agent import Schedule, SdcAlarm, attach, exit_codes
from training_agent.contract import Job
from training_agent.settings import AgentSettings


def main() -> None:
    exit_codes.install()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    settings = AgentSettings("demo", Job("job", "uid"), f"hyperpod-i-{rank:017x}", gpu_uuids=("GPU-0",) * 4)

    def compute_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch) - batch).square().mean()

    guard = attach(
        model, optimizer, compute_loss=compute_loss, schedule=Schedule(100, 100, None), settings=settings
    )
    for step in range(1, 12):
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        if (rank, step) == (2, 7):
            batch[0, 0] = float("nan")
        optimizer.zero_grad()
        guard.compute_loss(model, batch).backward()
        before = bits(model)
        try:
            optimizer.step()
        except SdcAlarm as e:
            left = {"rank": rank, "step": step, "applied": guard.step, "same": bits(model) == before}
            sys.stdout.write(json.dumps({**left, "nonfinite": e.alarm.nonfinite_ranks}) + "\n")
            sys.stdout.flush()
            raise
    sys.stdout.write("trained through\n")


def bits(model: torch.nn.Module) -> str:
    """Fingerprint of the weights."""
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


main()
