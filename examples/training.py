"""The loop: forward, backward, clip, step, checkpoint. The lines with `guard` are the agent's.

Comes in: `TrainConfig` and `AgentSettings` from `examples.train`. Goes out: checkpoints, and weights with
their hashes per rank, which `examples.demo.proof` compares.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from examples.config import TrainConfig
from examples.injection import injector_from_environment, schedule_of
from examples.llama import Llama, ModelConfig, compute_loss, micro_batch
from training_agent import CheckpointStore, SdcAlarm, attach
from training_agent.checkpoint import CheckpointInfo
from training_agent.errors import CheckpointError, ConfigurationError
from training_agent.report import job_reporter
from training_agent.settings import AgentSettings

GROUP_TIMEOUT = timedelta(seconds=60)
LossFunction = Callable[[nn.Module, Tensor], Tensor]


def train(config: TrainConfig, settings: AgentSettings) -> None:
    """Train from the newest checkpoint that can be trusted to the last step."""
    start_process_group()
    rank = dist.get_rank()
    model, optimizer = build(config)
    if settings.shared_dir is None:
        raise ConfigurationError(
            "SDC_SHARED_DIR is not set: checkpoints need a folder that all nodes share. "
            "Set it in the job's manifest."
        )
    store = CheckpointStore(settings.shared_dir / "checkpoints", dist.get_world_size())
    guard = attach(
        model,
        optimizer,
        compute_loss=compute_loss,
        schedule=schedule_of(config),
        settings=settings,
        reporter=job_reporter(settings, rank),
        checkpoints=store,
    )
    gpu = settings.place(rank, int(os.environ["LOCAL_RANK"])).gpu_uuid
    injector = injector_from_environment(config, middle_layer(model), optimizer, lambda: guard.phase, gpu)
    checkpoint = agree_on(store)
    try:
        if checkpoint:
            state, manifest = store.load(checkpoint)
            model.module.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            guard.after_load(manifest)
        elif rank == 0:
            store.save(0, state_of(model, optimizer), guard.manifest())
        for step in range(guard.step + 1, config.steps + 1):
            injector.begin_step(step)
            loss = one_step(config, model, optimizer, guard.compute_loss, step)
            if rank == 0:
                log(f"step {step}/{config.steps} loss {loss:.4f}")
            if step % config.checkpoint_every == 0:
                guard.before_save()
                if rank == 0:
                    store.save(step, state_of(model, optimizer), guard.manifest())
    except SdcAlarm:
        keep(config.out / "faulty" / "at-alarm.pt", model, optimizer, guard.step)
        meet()
        raise
    keep(config.out / "resumed" / "final.pt", model, optimizer, guard.step)
    guard.close()
    dist.destroy_process_group()


def start_process_group() -> None:
    """Join the job; one thread a rank, since thread counts change the bits of sums on a CPU."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)


def meet() -> None:
    """Wait for the others before leaving, for a bounded time: a launcher kills siblings at the first exit."""
    with contextlib.suppress(RuntimeError):  # one that has left already need not be waited for
        dist.monitored_barrier(timeout=timedelta(seconds=10))


def agree_on(store: CheckpointStore) -> CheckpointInfo | None:
    """The checkpoint to start from, as rank 0 sees it: a rank that looks later may see a newer one."""
    choice: list[CheckpointInfo | str | None] = [None]
    if dist.get_rank() == 0:
        try:
            choice = [store.resume()]
        except CheckpointError as e:
            choice = [str(e)]
    dist.broadcast_object_list(choice)
    if isinstance(choice[0], str):
        raise CheckpointError(choice[0])  # on every rank alike, so that all end with the same code
    return choice[0]


def build(config: TrainConfig) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """Model and optimizer, equal on all ranks."""
    torch.manual_seed(config.seed % 2**63)
    model = DistributedDataParallel(Llama(ModelConfig()))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def middle_layer(model: DistributedDataParallel) -> nn.Module:
    """The down-projection of the block in the middle, where the demo's faults strike."""
    blocks = list(model.module.blocks)
    layer: nn.Module = blocks[len(blocks) // 2].feed_forward.down
    return layer


def one_step(
    config: TrainConfig,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    loss_function: LossFunction,
    step: int,
) -> float:
    """Apply one update and return this rank's loss; raises SdcAlarm when a check fires."""
    tokens = micro_batch(ModelConfig(), config.seed, step, dist.get_rank())
    loss = loss_function(model, tokens)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def state_of(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a checkpoint holds."""
    return {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}


def keep(path: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write this rank's hashes after `step` beside `path`, and from rank 0 the weights to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rank = dist.get_rank()
    weights = dict(model.module.state_dict())
    moments = {
        f"{index}.{name}": value
        for index, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
    }
    hashes = {
        "rank": rank,
        "step": step,
        "weights_sha256": sha256_of(weights),
        "moments_sha256": sha256_of(moments),
    }
    path.with_name(f"{path.stem}-rank-{rank}.json").write_text(json.dumps(hashes))
    if rank == 0:
        torch.save(weights, path)


def sha256_of(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names and bytes of the tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def log(line: str) -> None:
    """One line on standard output, at once: the demo follows it."""
    os.write(1, (line + "\n").encode())
