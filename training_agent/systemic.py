"""Row S1: what no bad GPU explains. Pure.

In: pairs and contests of one alarm, and whom they would name. Out: one finding that names nobody, or None.
Next: `training_agent.attribution` puts it in the place of all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from .contest import MAX_CONTESTED, MAX_INVOLVED, Contested, contested_targets, places_of
from .contract import Finding, FindingKind, Pair
from .placement import RankMap


def most_are_named(rank_map: RankMap, names: Collection[int]) -> Finding | None:
    """More than half of all ranks would be accused at once: their originals and the replays of others differ.

    That is a difference between the two ways of computing (a compiled model, another kernel), not hardware.
    """
    if 2 * len(names) <= rank_map.size:
        return None
    text = (
        f"{len(names)} of {rank_map.size} ranks differ from what their peers replay: not hardware; the step "
    )
    text += "and its replay are computed in different ways (a compiled model, other kernels or settings)"
    return Finding(FindingKind.SOFTWARE, involved=places_of(rank_map, sorted(names)), evidence=text)


def software(rank_map: RankMap, pairs: Sequence[Pair], contested: Sequence[Contested]) -> Finding | None:
    """Row S1: too much is contested for a bad GPU, every rank has a result of its own, or whole nodes agree
    with each other against the rest.
    """
    if contested_targets(pairs) is None:
        involved = sorted({r for p in pairs for r in (p.replayer, p.target)})
        text = (
            f"{len(pairs)} replays mismatch, more than {MAX_CONTESTED}: not one GPU, look for a difference "
        )
        text += "in software, settings or non-deterministic kernels"
        return Finding(FindingKind.SOFTWARE, involved=places_of(rank_map, involved), evidence=text)
    if contested and all(map(_each_alone, contested)):
        ranks = sorted({r for c in contested for r in c.results})
        text = (
            "every rank has a result of its own: that is the code or the environment (something in it "
            "depends on the rank), or several GPUs at once"
        )
        return Finding(FindingKind.SOFTWARE, involved=places_of(rank_map, ranks), evidence=text)
    by_node: defaultdict[str, set[int]] = defaultdict(set)
    for c in contested:
        by_node.clear()
        # Those who answered: one that could not must not make its node's software look like bad GPUs.
        for rank in c.results:
            by_node[rank_map.node_of(rank)].add(rank)
        camps = _camps(rank_map, by_node, c)
        if camps:
            ranks = sorted(r for camp in camps for r in camp)
            nodes = ", ".join(sorted({rank_map.node_of(r) for r in ranks})[:MAX_INVOLVED])
            text = f"all GPUs of {nodes} agree bit for bit among themselves and differ from the rest on the "
            text += f"micro-batch of rank {c.target}: compare software, settings and hardware models"
            return Finding(FindingKind.SOFTWARE, involved=places_of(rank_map, ranks), evidence=text)
    return None


def _each_alone(c: Contested) -> bool:
    """Three ranks or more answered and no two agree: all GPUs but one would have to be bad."""
    return len(c.results) > 2 and len(set(c.results.values())) == len(c.results)


def _camps(rank_map: RankMap, by_node: Mapping[str, set[int]], c: Contested) -> list[set[int]]:
    """Groups of at least two ranks, all those of their nodes, that hold one result against the majority.

    Without a majority nobody is "the rest", so it takes two camps that stand against each other.
    """
    groups: defaultdict[str, set[int]] = defaultdict(set)
    for rank, result in c.results.items():
        groups[result].add(rank)
    majority = c.majority
    camps = [
        ranks
        for result, ranks in groups.items()
        if result != majority
        and len(ranks) > 1
        and all(by_node[node] <= ranks for node in {rank_map.node_of(r) for r in ranks})
    ]
    return camps if majority is not None or len(camps) > 1 else []
