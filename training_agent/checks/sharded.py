"""Check 3 for HSDP: local shards are compared with those of the other replicas, never with other shards.

Comes in: DTensors on a device mesh with a replicate dimension. Goes out: the local shards by name, and the
group of ranks that hold the same ones. Next: `checks.weights` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from .weights import Divergence


@dataclass(frozen=True, slots=True)
class Shards:
    """This rank's shards, and who holds copies of them."""

    tensors: dict[str, Tensor]
    replicas: ProcessGroup
    replicate_dim: int  # of the mesh


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor; does not load the module that defines them."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def local_part(tensor: Tensor) -> Tensor:
    """What of a tensor lies on this rank: the shard of a DTensor, all of any other."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor: for a DTensor a collective of its mesh."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local_shards(tensors: Mapping[str, Tensor]) -> Shards:
    """Take DTensors apart.

    Raises:
        ConfigurationError: a shard exists once only, tensors lie on several meshes or on none, or the mesh
            leaves ranks of the job out.
    """
    import torch.distributed as dist

    plain = [name for name, t in tensors.items() if not is_sharded(t)]
    if plain:
        raise ConfigurationError(f"{', '.join(plain[:3])}: not sharded, while others are. Check them apart.")
    found: dict[str, Any] = dict(tensors)
    first = next(iter(found.values()))
    kinds = {(t.device_mesh, tuple(p.is_replicate() for p in t.placements)) for t in found.values()}
    if len(kinds) > 1:
        raise ConfigurationError("Parameters lie on several device meshes, or are placed in several ways.")
    mesh = first.device_mesh
    dims = [i for i, p in enumerate(first.placements) if p.is_replicate() and mesh.size(i) > 1]
    if len(dims) != 1:
        raise ConfigurationError(
            f"{next(iter(found))} lies on a mesh of shape {tuple(mesh.shape)} as {first.placements}: each "
            "shard must exist on the ranks of exactly one replicate dimension. Under plain FSDP it exists "
            "once, and there is nothing to compare it with: shard over a 2-D mesh (HSDP)."
        )
    if mesh.size() != dist.get_world_size():
        raise ConfigurationError(
            f"The device mesh has {mesh.size()} of the job's {dist.get_world_size()} ranks; use one over all."
        )
    shards = {name: t.detach().to_local() for name, t in found.items()}
    return Shards(shards, mesh.get_group(dims[0]), dims[0])


def compare_shards(
    tensors: Mapping[str, Tensor],
    compare: Callable[[Mapping[str, Tensor], ProcessGroup], Divergence],
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Divergence:
    """Compare each shard with its replicas; a collective of the whole job, equal on all its ranks."""
    import torch
    import torch.distributed as dist

    from .._objects import gathered

    shards = local_shards(tensors)
    own = compare(shards.tensors, shards.replicas)
    device = next(iter(shards.tensors.values())).device
    some = torch.tensor([int(bool(own))], device=device)
    with around():
        dist.all_reduce(some, op=dist.ReduceOp.MAX)
        anywhere = int(some)
    if not anywhere:
        return own
    with around():
        everywhere = gathered(own, None, device)
    differing = {name for found in everywhere for name in found.tensors}
    return type(own)(
        tensors=tuple(name for name in tensors if name in differing),
        ranks=tuple(sorted({rank for found in everywhere for rank in found.ranks})),
        involved=tuple(sorted({rank for found in everywhere for rank in found.involved})),
        bytes_compared=own.bytes_compared,
        tensors_compared=own.tensors_compared,
    )
