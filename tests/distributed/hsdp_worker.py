"""One rank of an HSDP job, two shards by `WORLD_SIZE` / 2 replicas. Usage: OUT_DIR FORM."""

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
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.distributed import hsdp_guarded
from tests.distributed.small_model import settings_for
from training_agent import ConfigurationError, attach, find_divergent_ranks, train

SHARDS = 2
BAD = 3


class Talks(nn.Module):
    """Communicates in its forward."""

    def forward(self, x: Tensor) -> Tensor:
        dist.all_reduce(x.detach().clone())
        return x


def built(*wrapped: Any, model: nn.Module | None = None) -> nn.Module:
    """A model whose parts of these numbers are sharded over these meshes; "all": the model itself."""
    torch.manual_seed(3)
    model = model or nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    for part, mesh in wrapped:
        fully_shard(model if part == "all" else model.get_submodule(part), mesh=mesh)
    return model


def trained(model: nn.Module) -> nn.Module:
    """After one update."""
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


def attached(model: nn.Module, **options: Any) -> None:
    guard = attach(
        model, torch.optim.SGD(model.parameters()), settings=settings_for(dist.get_rank()), **options
    )
    try:
        model(torch.randn(4, 8))
    finally:
        guard.abandon()


def refusals(mesh: Any, flat: Any) -> dict[str, str]:
    torch.manual_seed(3)
    talking = nn.Sequential(nn.Linear(8, 4), Talks())

    def compiled(model: nn.Module, x: Tensor) -> Any:
        return model(x)

    compiled._torchdynamo_orig_callable = compiled  # type: ignore[attr-defined]  # loading dynamo takes seconds
    cases: dict[str, Callable[[], object]] = {
        "plain FSDP": lambda: attached(built(("all", flat))),
        "find, plain FSDP": lambda: find_divergent_ranks(dict(built(("all", flat)).named_parameters())),
        "a part": lambda: attached(built(("0", mesh))),
        "not the outermost": lambda: attached(built(("0", mesh), ("2", mesh))),
        "two meshes": lambda: attached(built(("0", mesh), ("all", flat))),
        "compiled": lambda: attached(built(("all", mesh)), compute_loss=compiled),
        "collectives": lambda: attached(built(("all", mesh), model=talking)),
        "train": lambda: train(
            built(("all", mesh)),  # type: ignore[arg-type]
            torch.optim.SGD([torch.zeros(1)]),
            lambda step: None,
            compute_loss=lambda model, batch: torch.zeros(()),
            steps=1,
        ),
    }
    return {name: refusal(call) for name, call in cases.items()}


def main(out: Path, form: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard"))
    results: dict[str, Any] = {}
    if form == "long":
        results |= hsdp_guarded.long(mesh, BAD)
    else:
        hsdp = trained(built(("all", mesh)))
        flips = (("healthy", ()), ("rank 3", (BAD,)), ("ranks 2 and 5", (2, 5)))
        results |= {name: found(hsdp, bad) for name, bad in flips}
    if form == "two replicas":
        results |= hsdp_guarded.two_replicas(mesh, BAD)
    if form == "short":
        results |= hsdp_guarded.short(mesh, BAD)
        results["refusals"] = refusals(mesh, init_device_mesh("cpu", (world,)))
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2])
