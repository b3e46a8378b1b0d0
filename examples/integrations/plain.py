"""A plain DDP loop with the lines of the README's diff in it, and a schedule that suits a minute.

torchrun --nproc-per-node 3 -m examples.integrations.plain --steps 16
"""

from __future__ import annotations

import gc
from typing import Any

from examples.integrations.arguments import arguments
from training_agent import AgentSettings, CheckpointStore, attach, hold_while_quarantined, job_reporter

hold_while_quarantined(settings := AgentSettings.from_env())

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from examples.injection import inject, schedule_of
from examples.llama import Llama, ModelConfig, micro_batch
from examples.llama import compute_loss as loss_of

config = arguments()


def batch_of(step: int) -> Tensor:
    return micro_batch(model_config, 0, step, rank)


def state_of(step: int, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"step": step, "model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}


model_config = ModelConfig(layers=2)
folder = config.out / "checkpoints"

dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
torch.manual_seed(0)
ddp = DistributedDataParallel(Llama(model_config))
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

store = CheckpointStore(folder, dist.get_world_size())
guard = attach(
    ddp,
    optimizer,
    compute_loss=loss_of,
    reporter=job_reporter(settings, rank),
    checkpoints=store,
    schedule=schedule_of(config),
)
inject(ddp.module.blocks[1].feed_forward.down, lambda guard=guard: guard, config)  # type: ignore[misc]

if found := store.resume():
    state, manifest = store.load(found)
    ddp.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    guard.after_load(manifest)

while step < config.steps:
    step += 1
    loss = guard.compute_loss(ddp, batch_of(step))
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % config.checkpoint_every == 0:
        guard.before_save()
        if rank == 0:
            store.save(step, state_of(step, ddp, optimizer), guard.manifest())
guard.close()
del guard, ddp, optimizer  # they hold the process group, which torch may abort over at exit
gc.collect()
dist.destroy_process_group()
