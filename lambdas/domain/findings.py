"""Which findings of an alarm belong to which incident: one per blamed node, one for the job otherwise.

In: an alarm (claims only, nothing is proven here). Out: groups for `ingest`, and an incident's own findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from training_agent.contract import Alarm, Finding, Place

from .decision_table import row_of


@dataclass(frozen=True, slots=True)
class Group:
    """What one incident is about; `node` None means the whole job."""

    node: str | None
    ranks: tuple[int, ...]


def group(alarm: Alarm) -> tuple[Group, ...]:
    """One group per node that some finding blames, in the order of their names, or one for the job."""
    nodes = sorted({f.place.node for f in alarm.findings if _blamed(f) and f.place is not None})
    if not nodes:
        return (Group(None, alarm.named_ranks),)
    return tuple(Group(node, _ranks(of_node(alarm, node))) for node in nodes)


def of_node(alarm: Alarm, node: str | None) -> tuple[Finding, ...]:
    """Findings of the incident of `node`; all of them for the incident of the job."""
    if node is None:
        return alarm.findings
    return tuple(f for f in alarm.findings if _blamed(f) and f.place is not None and f.place.node == node)


def places(findings: tuple[Finding, ...]) -> tuple[Place, ...]:
    """Claimed places that the findings point at: the named ones, else those involved."""
    seen: dict[int, Place] = {}
    for f in findings:
        for place in (f.place,) if f.place is not None else f.involved:
            seen.setdefault(place.rank, place)
    return tuple(seen[rank] for rank in sorted(seen))


def most_named(named: Sequence[tuple[datetime, str]], around: datetime, window: timedelta) -> int:
    """How many different nodes were named within one `window` that holds the moment `around`."""
    starts = [at for at, _ in named if around - window <= at <= around]
    return max((len({node for at, node in named if s <= at <= s + window}) for s in starts), default=0)


def _blamed(finding: Finding) -> bool:
    return finding.rank is not None and row_of(finding).blames_node


def _ranks(findings: tuple[Finding, ...]) -> tuple[int, ...]:
    return tuple(sorted({f.rank for f in findings if f.rank is not None}))
