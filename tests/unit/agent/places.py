"""Builders of rank maps."""

from __future__ import annotations

from collections.abc import Sequence

from training_agent.contract import Place
from training_agent.placement import RankMap


def rank_map(nodes: Sequence[int]) -> RankMap:
    """A map from the node index of each rank: [0, 0, 1, 1] is two nodes of two GPUs."""
    local: dict[int, int] = {}
    places = []
    for rank, node in enumerate(nodes):
        local[node] = local.get(node, -1) + 1
        instance = f"i-{node:017x}"
        places.append(Place(rank, local[node], f"hyperpod-{instance}", instance, f"GPU-{node}-{local[node]}"))
    return RankMap(tuple(places))


def even_map(ranks: int, per_node: int) -> RankMap:
    """Nodes filled one after the other."""
    return rank_map([rank // per_node for rank in range(ranks)])
