"""Check 3: after the update all replicas must hold the same bits. In: named tensors. Out: who differs.

Next step: the guard turns a divergence into an alarm; nothing is named without a strict majority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from .._trail import raw
from ..digest import WORDS, digest
from .sharded import compare_shards, is_sharded

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup

GATHER_BYTES = 16 * 2**20  # of a vote, per rank


@dataclass(frozen=True, slots=True)
class Divergence:
    """Result of one weight check, equal on all ranks; false when the replicas agree."""

    tensors: tuple[str, ...] = ()  # names of the tensors that differ somewhere
    ranks: tuple[int, ...] = ()  # named: differ from a strict majority, for at least one tensor
    involved: tuple[int, ...] = ()  # ranks of the tensors on which no majority exists
    bytes_compared: int = 0  # on each rank
    tensors_compared: int = 0
    rows: str = field(default="", repr=False, compare=False)  # digests of equal replicas: 48 hex digits each
    # Of `beside`: a digest (48 hex digits) where all ranks hold one, None where they differ.
    beside: Mapping[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.tensors)


def find_divergent_ranks(
    tensors: Mapping[str, Tensor],
    group: ProcessGroup | None = None,
    *,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    device: torch.device | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> Divergence:
    """Compare replicas bit by bit; a collective of `group`, with one host synchronisation.

    Healthy replicas cost one MAX all-reduce of [x, ~x] over their digests: max(x) = min(x) in every word if
    and only if all are equal, whatever the number of ranks. Only then are rows
    gathered and voted on, see `judge`.

    Args:
        tensors: the same names in the same order on every rank, all on one device. DTensors, as
            `fully_shard` over a 2-D mesh makes them: each local shard is compared along the replicate
            dimension, and the result is that of all ranks of the job, which all call this.
        group: the replicas; None is the default group, or for DTensors their mesh's. Ranks in the result are
            global ranks.
        around: makes the context in which each collective runs, and nothing else.
        device: whose memory `group` moves; None: where the first tensor lies.
        beside: more tensors, in the same all-reduce: equal or not, and judged by the caller.

    Raises:
        ConfigurationError: DTensors of which each shard exists once, or that lie on several meshes.
    """
    import torch
    import torch.distributed as dist

    if group is None and any(is_sharded(t) for t in tensors.values()):
        return compare_shards(tensors, partial(find_divergent_ranks, around=around, device=device), around)
    names, more = tuple(tensors), dict(beside or {})
    compared = sum(t.numel() * t.element_size() for t in (*tensors.values(), *more.values()))
    if not names and not more:
        return Divergence()
    own = digest([*tensors.values(), *more.values()])
    own = own if device is None else own.to(device)
    both = torch.cat([own, ~own], dim=1)
    with around():
        dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
        both = both.cpu()  # the host synchronisation; the digests of equal replicas come with it
    differing = (both[:, :WORDS] != ~both[:, WORDS:]).any(dim=1).nonzero().flatten().tolist()
    suspects = [i for i in differing if i < len(names)]
    apart = {
        name: None if i in differing else raw(both[i, :WORDS]) for i, name in enumerate(more, len(names))
    }
    total = len(names) + len(more)
    if not suspects:
        rows = raw(both[: len(names), :WORDS])
        return Divergence(bytes_compared=compared, tensors_compared=total, rows=rows, beside=apart)
    world = dist.get_world_size(group)

    def gather(rows: Tensor) -> Tensor:
        out = rows.new_empty(world * len(rows), WORDS)
        rows = rows.contiguous()
        with around():
            dist.all_gather_into_tensor(out, rows, group=group)
        return out.view(world, len(rows), WORDS).cpu()

    outvoted, undecided = judge(own[suspects], world, gather)
    members = dist.get_process_group_ranks(group) if group is not None else range(dist.get_world_size())
    return Divergence(
        tensors=tuple(names[i] for i in suspects),
        ranks=tuple(sorted(members[i] for i in outvoted)),
        involved=tuple(sorted(members[i] for i in undecided)),
        bytes_compared=compared,
        tensors_compared=total,
        beside=apart,
    )


def compare_replicas(
    tensors: Mapping[str, Tensor],
    group: ProcessGroup,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    device: torch.device | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> Divergence:
    """`find_divergent_ranks` for tensors some of which are shards, as an optimizer's counters are not.

    Those counters lie in host memory, which NCCL does not move: hence `device`.
    """
    shards = {name: t for name, t in tensors.items() if is_sharded(t)}
    whole = {name: t for name, t in tensors.items() if name not in shards}
    if not shards:
        return find_divergent_ranks(whole, group, around=around, device=device, beside=beside)
    one = find_divergent_ranks(shards, around=around, device=device)
    other = find_divergent_ranks(whole, group, around=around, device=device, beside=beside)
    differing = {*one.tensors, *other.tensors}
    return Divergence(
        tensors=tuple(name for name in tensors if name in differing),
        ranks=tuple(sorted({*one.ranks, *other.ranks})),
        involved=tuple(sorted({*one.involved, *other.involved})),
        bytes_compared=one.bytes_compared + other.bytes_compared,
        tensors_compared=one.tensors_compared + other.tensors_compared,
        beside=other.beside,
    )


def judge(mine: Tensor, world: int, gather: Callable[[Tensor], Tensor]) -> tuple[set[int], set[int]]:
    """Who is outvoted, and who is involved where nobody is; a collective that needs GATHER_BYTES at most.

    One row per rank stands for its whole table. Where more than half of the ranks hold one table, they are
    the majority of each tensor, and whoever holds another is outvoted on some tensor: nothing more is needed.
    Only otherwise are tensors voted on one by one, as many at a time as fit.

    Args:
        mine: int64 [tensors, 3], this rank's rows of the tensors that differ somewhere.
        gather: collects such rows from all `world` ranks into [ranks, tensors, 3].
    """
    import torch

    outvoted, _ = vote(gather(digest([mine])))
    if outvoted:
        return outvoted, set()
    undecided: set[int] = set()
    for rows in torch.split(mine, max(1, GATHER_BYTES // (world * mine[0].nbytes))):
        more, open_ = vote(gather(rows))
        outvoted |= more
        undecided |= open_
    return outvoted, undecided


def vote(tables: Tensor) -> tuple[set[int], set[int]]:
    """Judge each tensor by itself.

    If more than half of the ranks hold one row, each of its words is the median of that word.

    Args:
        tables: int64 [ranks, tensors, 3], the digest rows of the differing tensors.

    Returns:
        Ranks outvoted by more than half of all for some tensor; ranks of tensors without such a majority.
    """
    ranks = len(tables)
    same = (tables == tables[0]).all(dim=2)
    unlike_first = 2 * same.sum(0) <= ranks
    if unlike_first.any():
        some = tables[:, unlike_first]
        same[:, unlike_first] = (some == some.median(dim=0).values).all(dim=2)
    decided = 2 * same.sum(0) > ranks
    outvoted = set((~same[:, decided]).any(dim=1).nonzero().flatten().tolist())
    return outvoted, set() if decided.all() else set(range(ranks))
