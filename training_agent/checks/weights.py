"""Check 3: after the update all replicas must hold the same bits. In: named tensors. Out: who differs.

Next step: the guard turns a divergence into an alarm; nothing is named without a strict majority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..digest import WORDS, digest

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Result of one weight check, equal on all ranks; false when the replicas agree."""

    tensors: tuple[str, ...] = ()  # names of the tensors that differ somewhere
    ranks: tuple[int, ...] = ()  # named: differ from a strict majority, for at least one tensor
    involved: tuple[int, ...] = ()  # ranks of the tensors on which no majority exists
    bytes_compared: int = 0  # on each rank
    tensors_compared: int = 0

    def __bool__(self) -> bool:
        return bool(self.tensors)


def find_divergent_ranks(tensors: Mapping[str, Tensor], group: ProcessGroup | None = None) -> Divergence:
    """Compare replicas bit by bit; a collective of `group`, with one host synchronisation.

    Healthy replicas cost one MAX all-reduce of [x, ~x] over their digests: max(x) = min(x) in every word if
    and only if all are equal, whatever the number of ranks. Only then are the rows of the differing tensors
    gathered and voted on.

    Args:
        tensors: the same names in the same order on every rank, all on one device.
        group: the replicas; None is the default group. Ranks in the result are global ranks.
    """
    import torch
    import torch.distributed as dist

    names = tuple(tensors)
    compared = sum(t.numel() * t.element_size() for t in tensors.values())
    if not names:
        return Divergence()
    own = digest(list(tensors.values()))
    both = torch.cat([own, ~own], dim=1)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    differs = (both[:, :WORDS] != ~both[:, WORDS:]).any(dim=1)
    flags: list[bool] = differs.tolist()  # the host synchronisation
    suspects = [i for i, flag in enumerate(flags) if flag]
    if not suspects:
        return Divergence(bytes_compared=compared, tensors_compared=len(names))
    mine = own[suspects].contiguous()
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    tables = [[tuple(row) for row in table.tolist()] for table in gathered]
    outvoted, undecided = vote(tables)
    members = dist.get_process_group_ranks(group) if group is not None else range(dist.get_world_size())
    return Divergence(
        tensors=tuple(names[i] for i in suspects),
        ranks=tuple(sorted(members[i] for i in outvoted)),
        involved=tuple(sorted(members[i] for i in undecided)),
        bytes_compared=compared,
        tensors_compared=len(names),
    )


def vote(tables: Sequence[Sequence[Row]]) -> tuple[set[int], set[int]]:
    """Judge each tensor by itself.

    Args:
        tables: per rank the digest rows of the differing tensors, in the same order.

    Returns:
        Ranks outvoted by more than half of all for some tensor; ranks of tensors without such a majority.
    """
    outvoted: set[int] = set()
    undecided: set[int] = set()
    for copies in zip(*tables, strict=True):
        row, count = Counter(copies).most_common(1)[0]
        if 2 * count > len(copies):
            outvoted |= {rank for rank, copy in enumerate(copies) if copy != row}
        else:
            undecided |= set(range(len(copies)))
    return outvoted, undecided
