"""One rank of an HSDP job, two shards by `WORLD_SIZE` / 2 replicas. Usage: OUT_DIR."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from training_agent import ConfigurationError, attach, find_divergent_ranks

SHARDS = 2


def trained(mesh: Any) -> nn.Module:
    """A sharded model after one update."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    return model


def found(model: nn.Module, bad: tuple[int, ...]) -> dict[str, Any]:
    """What the check says while a bit of the shards of `bad` is flipped."""
    words = model.get_parameter("0.weight").detach().to_local().view(torch.int32).view(-1)  # type: ignore[attr-defined]
    if dist.get_rank() in bad:
        words[3] ^= 1 << 22
    divergence = find_divergent_ranks(dict(model.named_parameters()))
    if dist.get_rank() in bad:
        words[3] ^= 1 << 22
    assert divergence.tensors_compared == 4 and divergence.bytes_compared > 0
    return {name: list(getattr(divergence, name)) for name in ("tensors", "ranks", "involved")}


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except ConfigurationError as e:
        return str(e)
    return "accepted"


def main(out: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    world = dist.get_world_size()
    names = ("replicate", "shard")
    hsdp = trained(init_device_mesh("cpu", (world // SHARDS, SHARDS), mesh_dim_names=names))
    fsdp = trained(init_device_mesh("cpu", (world,)))
    results: dict[str, Any] = {"healthy": found(hsdp, ()), "rank 3": found(hsdp, (3,))}
    results["ranks 2 and 5"] = found(hsdp, (2, 5))
    for name, model in (("attach", hsdp), ("attach, plain FSDP", fsdp)):
        optimizer = torch.optim.SGD(model.parameters())
        results[name] = refusal(lambda model=model, optimizer=optimizer: attach(model, optimizer))  # type: ignore[misc]
    results["plain FSDP"] = refusal(lambda: find_divergent_ranks(dict(fsdp.named_parameters())))
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
