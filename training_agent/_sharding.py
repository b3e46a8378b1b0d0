"""HSDP: who holds copies of whose shards, and what cannot be guarded under `fully_shard`.

Comes in: the module that `fully_shard` sharded over a mesh of replicas and shards. Goes out: a `Sharding`, or
`ConfigurationError` before anything is computed. Next: `_startup` sets the guard up over all ranks of the
mesh, `placement.replica_partners` says who replays whom.

A rank's micro-batch is its own, as under DDP; the weights it computes with are gathered from the ranks of its
replica at each use. So a wrong result is that of one rank, unless all ranks of its replica are wrong alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .checks.compiled import is_compiled
from .checks.sharded import is_sharded, local_shards
from .contest import places_of
from .contract import Finding, FindingKind, SecondConfirmation, Verdict
from .errors import ConfigurationError
from .placement import RankMap


@dataclass(frozen=True, slots=True)
class Sharding:
    """A mesh of replicas and shards."""

    replicas: tuple[tuple[int, ...], ...]  # [replica][shard]: the rank that holds it
    groups: frozenset[str]  # names of the mesh's own process groups

    def believable(
        self, rank_map: RankMap, findings: Sequence[Finding], weights_seen: bool = True
    ) -> tuple[Finding, ...]:
        """Take names back where a mate of the replica may have misled the rank that is accused.

        They computed with one set of weights, gathered from each other: what one of them handed out wrong is
        wrong for all. A rank that is wrong while a mate of its replica is right is wrong by itself, or it was
        wrong once and alone in using what a mate handed out.

        Args:
            weights_seen: the gathered weights are among what was compared, so that all who got wrong ones
                differ, used or not.
        """
        named = {f.rank for f in findings if f.rank is not None}
        once = set() if weights_seen else {f.rank for f in findings if _wrong_once(f)}
        kept = list(findings)
        for replica in self.replicas:
            everybody = named.issuperset(replica)
            doubtful = set(replica) if everybody else once.intersection(replica)
            if len(replica) > 1 and doubtful:
                kept = [f for f in kept if f.rank not in doubtful]
                kept.append(_misled(rank_map, replica, everybody=everybody))
        return tuple(kept)


def _wrong_once(finding: Finding) -> bool:
    """Whether it was not seen wrong again when asked with the weights gathered anew."""
    asked_again = finding.second_confirmation
    return finding.verdict is Verdict.TRANSIENT or asked_again not in (None, SecondConfirmation.REPEATS)


def _misled(rank_map: RankMap, replica: Sequence[int], *, everybody: bool) -> Finding:
    who = ", ".join(map(str, replica[:8]))
    if everybody:
        text = f"all ranks of one replica ({who}) are wrong at once: they gather their weights from each "
    else:
        text = f"in one replica ({who}) a rank was wrong once: its ranks gather their weights from each "
    return Finding(
        FindingKind.PAIR,
        verdict=Verdict.UNATTRIBUTABLE,
        involved=places_of(rank_map, replica),
        evidence=f"{text}other, so one of them may have misled the others",
    )


def sharding_of(model: nn.Module, compute_loss: Any = None) -> Sharding | None:
    """The mesh that `model` is sharded over; None where nothing is sharded.

    Raises:
        ConfigurationError: a shard exists once only, or the model is sharded in a way that is not guarded.
    """
    parameters = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    sharded = {name: p for name, p in parameters.items() if is_sharded(p)}
    if not sharded:
        return None
    from torch.distributed.fsdp import FSDPModule

    plain = [name for name, p in parameters.items() if name not in sharded]
    shards = local_shards(sharded)
    if plain or not isinstance(model, FSDPModule):
        what = (
            f"{', '.join(plain[:3])}: outside of fully_shard" if plain else "The model itself is not sharded"
        )
        raise ConfigurationError(
            f"{what}. attach() guards what fully_shard() holds whole: call fully_shard(model, mesh=mesh) on "
            "the outermost module as well, and pass that module."
        )
    mesh: Any = next(iter(sharded.values())).device_mesh  # type: ignore[attr-defined]
    if mesh.ndim != 2:
        raise ConfigurationError(
            f"The model is sharded over a mesh of {mesh.ndim} dimensions {mesh.mesh_dim_names}; attach() "
            "guards HSDP over two, replicas and shards. find_divergent_ranks(dict(model.named_parameters())) "
            "compares the weights of any mesh with one replicate dimension."
        )
    if is_compiled(model) or is_compiled(compute_loss):
        raise ConfigurationError(
            "torch.compile under fully_shard is not guarded: leave one of the two out, or compare only "
            "weights, with find_divergent_ranks(dict(model.named_parameters()))."
        )
    table = mesh.mesh if shards.replicate_dim == 0 else mesh.mesh.T
    names = frozenset(mesh.get_group(dim).group_name for dim in range(mesh.ndim))
    return Sharding(tuple(tuple(row) for row in table.tolist()), names)
