"""One rank of three whose GPU number 1 is wrong from step 5 on. Usage: capsule_job.py SHARED_DIR.

Goes out: checkpoints of steps 4 and 0, and what an alarm leaves in the shared folder. `build` and
`build_faulty` are what `sdc replay --model` calls afterwards.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.small_model import Model, batch_for, compute_loss
from training_agent import CheckpointStore, Phase, Schedule, attach, job_reporter
from training_agent.checks.replay import LossFunction
from training_agent.contract import Job
from training_agent.faults import Element, FaultSpec, Injection, Where
from training_agent.settings import AgentSettings

BAD, FROM = 1, 5
FAULT = FaultSpec(Where.FORWARD_OUTPUT, Element(1000.0), BAD, FROM, seed=3)


def build() -> tuple[Model, LossFunction]:
    """The job's model and loss."""
    torch.manual_seed(1)
    return Model(), compute_loss


def build_faulty() -> tuple[Model, LossFunction]:
    """The same on a GPU with the job's fault."""
    model, loss = build()
    layer = model.blocks[1].down
    Injection(FAULT, rank=BAD, step=lambda: FROM, phase=lambda: Phase.REPLAY, module=layer)
    return model, loss


def settings_of(rank: int, shared: Path) -> AgentSettings:
    """One GPU a node."""
    return AgentSettings(
        cluster="demo",
        job=Job("job", "uid", namespace="training"),
        node=f"hyperpod-i-{rank:017x}",
        gpu_uuids=(f"GPU-{rank}",),
        shared_dir=shared,
    )


def main(shared: Path) -> None:
    """Train until the alarm."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    model, _ = build()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    store = CheckpointStore(shared / "checkpoints", dist.get_world_size())
    settings = settings_of(rank, shared)
    guard = attach(
        ddp,
        optimizer,
        compute_loss=compute_loss,
        schedule=Schedule(audit_every=5, check_every=5, ckpt_every=4),
        settings=settings,
        reporter=job_reporter(settings, rank),
        checkpoints=store,
    )
    layer = model.blocks[1].down
    Injection(FAULT, rank=rank, step=lambda: guard.step + 1, phase=lambda: guard.phase, module=layer)
    if rank == 0:
        store.save(0, {"model": model.state_dict()}, guard.manifest())
    for step in range(1, 9):
        optimizer.zero_grad()
        guard.compute_loss(ddp, batch_for(rank, step)).backward()
        optimizer.step()
        if step % 4 == 0:
            guard.before_save()
            if rank == 0:
                store.save(step, {"model": model.state_dict()}, guard.manifest())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
