"""One rank of three. Usage: capsule_job.py FOLDER faulty|healthy: GPU 1 is wrong from step 7 on, or none is.

Goes out: checkpoints of steps 0, 4 and 11, and what the alarm of step 12 leaves in the shared folder. `build`
and `build_faulty` are what `sdc replay --model` calls afterwards; `sdc bisect` launches it again, healthy.
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
from training_agent import CheckpointStore, Guard, Phase, Schedule, attach, job_reporter
from training_agent.checks.replay import LossFunction
from training_agent.contract import Job
from training_agent.faults import Element, FaultSpec, Injection, Where
from training_agent.settings import AgentSettings

BAD, FROM, ALARM, SAVES = 1, 7, 12, (4, 11)
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


def start(store: CheckpointStore, model: Model, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    """From the store's checkpoint, or with one of step 0."""
    found = [store.resume() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    if found[0] is not None:
        state, manifest = store.load(found[0])
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        guard.after_load(manifest)
    elif dist.get_rank() == 0:
        save(store, model, optimizer, guard)
    dist.barrier()


def save(store: CheckpointStore, model: Model, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    """On rank 0."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    store.save(guard.step, state, guard.manifest())


def main(folder: Path, faulty: bool) -> None:
    """Train until the alarm."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    model, _ = build()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    store = CheckpointStore(folder / "checkpoints", dist.get_world_size())
    settings = settings_of(rank, Path(os.environ.get("SDC_SHARED_DIR") or folder))
    guard = attach(
        ddp,
        optimizer,
        compute_loss=compute_loss,
        schedule=Schedule(audit_every=ALARM, check_every=1, ckpt_every=None),
        settings=settings,
        reporter=job_reporter(settings, rank),
        checkpoints=store,
    )
    layer = model.blocks[1].down
    if faulty:
        Injection(FAULT, rank=rank, step=lambda: guard.step + 1, phase=lambda: guard.phase, module=layer)
    start(store, model, optimizer, guard)
    for step in range(guard.step + 1, ALARM + 1):
        torch.manual_seed(1000 * step + rank)  # dropout, too, is a function of the step
        optimizer.zero_grad()
        guard.compute_loss(ddp, batch_for(rank, step)).backward()
        optimizer.step()
        if step in SAVES:
            guard.before_save()
            if rank == 0:
                save(store, model, optimizer, guard)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "faulty")
