"""Who must replay whom, worked out from the specification alone: nothing of the agent is imported here.

Ranks stand node by node in a line, which is shifted against itself: first by one node's GPU count, and with
rotation from audit to audit by one more, as long as nobody meets its own node.
"""

from __future__ import annotations

from typing import Any


def offset(layout: dict[str, Any], audit: int, partner: str) -> int:
    """The shift of audit number `audit` since the start, counted from 0; the preflight is no audit."""
    ranks, per_node = layout["ranks"], layout["ranks"] // layout["nodes"]
    legal = [
        o
        for o in range(1, ranks)
        if all(r // per_node != ((r + o) % ranks) // per_node for r in range(ranks))
    ]
    return legal[audit % len(legal)] if partner == "rotate" else per_node


def audit_steps(schedule: dict[str, Any], first: int, last: int) -> list[int]:
    """Steps from `first` to `last` that are audited."""
    every, at_checkpoint = schedule["audit_every"], schedule["ckpt_every"]
    if every is None:
        return []
    strict = schedule.get("strict", True) and at_checkpoint is not None
    return [s for s in range(first, last + 1) if s % every == 0 or (strict and s % at_checkpoint == 0)]


def rank_of(role: str | None, layout: dict[str, Any], shift: int) -> int | None:
    """The rank behind a role."""
    if role is None:
        return None
    if role == "replayer":
        return int(layout["victim"] - shift) % int(layout["ranks"])
    return int(layout[role])


def pairs(kind: str, layout: dict[str, Any], shift: int) -> set[tuple[int, int]]:
    """Mismatching (replayer, target).

    `own` is the victim's own micro-batch, `both` is it and the one that the victim replayed, `four` is both
    of two victims.
    """
    n, victim, second = layout["ranks"], layout["victim"], layout["second"]
    own = {((victim - shift) % n, victim)}
    both = own | {(victim, (victim + shift) % n)}
    other = {((second - shift) % n, second), (second, (second + shift) % n)}
    return {"own": own, "both": both, "four": both | other}[kind]
