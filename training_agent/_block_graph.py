"""Whether something inside a block is used outside of it too, read off the autograd graph of the step.

Comes in: nodes of the graph, kept since the forward. Goes out: a sentence, or nothing. Used by `_layers` when
a block mismatches: what flows into a block by a way of its own (a weight used by its name, an inner value
kept for a loss) is in its gradients and in no replay, and no GPU is to blame for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

Node = Any  # torch.autograd.graph.Node
Edge = tuple[Node, int]  # a node and the number of its output
_DEPTH = 8  # from a weight's cast to the weight


def used_outside(
    roots: Iterable[Node], ends: Sequence[Edge], starts: Collection[Node], foreign: Collection[int]
) -> str:
    """Look for an edge into the block that does not go through its outputs; "" without one.

    Args:
        roots: what the backward began at.
        ends: the block's outputs.
        starts: the views that stood for its inputs.
        foreign: `id`s of leaves that are no part of the comparison (weights of other blocks as well).
    """
    inside = reached((node for node, _ in ends), starts)
    allowed = set(ends)
    outside = reached([*roots, *starts], inside)
    for node in outside:
        for following, number in node.next_functions:
            if following in inside and (following, number) not in allowed and not _only(following, foreign):
                return f"what {following.name()} gives inside it is used outside of it as well"
    return ""


def reached(begin: Iterable[Node], stop: Collection[Node] = ()) -> set[Node]:
    """All nodes that a backward from `begin` comes to, without `stop` and what only those lead to."""
    found: set[Node] = set()
    waiting = [node for node in begin if node is not None and node not in stop]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        waiting += [n for n, _ in node.next_functions if n is not None and n not in stop and n not in found]
    return found


def _only(node: Node, foreign: Collection[int], depth: int = _DEPTH) -> bool:
    """Whether all that this node passes a gradient to is foreign."""
    leaf = getattr(node, "variable", None)
    if leaf is not None:
        return id(leaf) in foreign
    following = [n for n, _ in node.next_functions if n is not None]
    return bool(following) and depth > 0 and all(_only(n, foreign, depth - 1) for n in following)
