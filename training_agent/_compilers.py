"""What a compiler changes about a mismatch: another graph gives other bits, and no GPU is to blame.

Comes in: what the ring and the arbiters found while `torch.compile` had compiled something on some rank. Goes
out: findings that name only what eager code shows as well, or what no other graph can explain; or nothing.
Next: `_examine` turns that into a `Sighting`, a skipped audit, or replays that are off.

Ranks that saw other shapes may hold other graphs for the same code (one of them dynamic), and a compiled
callable that nobody told us of is never used in a replay. Both look like one faulty GPU.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ._capture import Capture
from ._comm import Comm
from ._readable import kind_of, readable
from ._ring import Answer
from .checks.replay import output_tensors
from .contest import MAX_CONTESTED, Contested, places_of
from .contract import Finding, FindingKind, Pair, SecondConfirmation, Verdict
from .placement import RankMap


def graphs() -> int:
    """How many graphs `torch.compile` has made in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def eagerly() -> AbstractContextManager[Any]:
    """Compiled code runs as it was written inside the block."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    if not hasattr(torch.compiler, "set_stance"):  # before torch 2.6
        from torch._dynamo import config

        old: AbstractContextManager[Any] = config.patch(disable=True)  # type: ignore[attr-defined, unused-ignore]
        return old
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@dataclass(slots=True)
class Footing:
    """For which arguments replays have reproduced this rank's steps with the graphs that exist now."""

    comm: Comm
    _graphs: int = 0
    _passed: set[str] = field(default_factory=set)

    def passed(self, capture: Capture) -> None:
        """An audit of `capture` passed on all ranks."""
        if graphs() != self._graphs:
            self._graphs = graphs()
            self._passed.clear()
        self._passed.add(signature(capture))

    def compiled(self) -> bool:
        """Whether any rank has compiled anything; a collective."""
        return self.comm.total([graphs()])[0] > 0

    def settled(self, capture: Capture) -> bool:
        """Whether no other graph can explain a mismatch; a collective.

        No rank compiled anything since an audit of arguments like these passed, and all ranks have the same.
        """
        mine = signature(capture)
        proven = graphs() == self._graphs and mine in self._passed
        answers = self.comm.gather((proven, mine))
        return all(ok and other == mine for ok, other in answers)


def signature(capture: Capture) -> str:
    """What a compiler may choose a graph by: kinds and shapes of the arguments, flags, switches."""

    def kind(value: Any) -> object:
        if isinstance(value, Tensor) and not readable(value):  # sizes and strides may be unknown
            return str(value.dtype), kind_of(value)
        if isinstance(value, Tensor):
            return str(value.dtype), tuple(value.shape), value.stride()
        if isinstance(value, (bool, int, float, str, type(None))):
            return value
        return type(value).__name__, [kind(t) for t in output_tensors(value)]

    arguments = [kind(leaf) for leaf in tree_leaves((capture.args, capture.kwargs))]
    whole = (capture.unit, arguments, capture.training, sorted(capture.trained), capture.contexts)
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:16]


def chosen(pairs: Sequence[Pair]) -> tuple[tuple[int, ...], tuple[Pair, ...]]:
    """Whose micro-batches to arbitrate, at most MAX_CONTESTED, and these pairs."""
    targets = tuple(sorted({p.target for p in pairs}))[:MAX_CONTESTED]
    return targets, tuple(p for p in pairs if p.target in targets)


def eager_contests(
    pairs: Sequence[Pair], answers: Mapping[int, Answer], voters: Mapping[int, Collection[int]]
) -> list[Contested]:
    """Lay out answers that all voters computed without a compiler, target and replayer included.

    Args:
        voters: by contested micro-batch, in the order of the answers.
    """
    laid_out = []
    for i, (target, asked) in enumerate(voters.items()):
        replayer = next(p.replayer for p in pairs if p.target == target)
        results = {r: answers[r].again[i] for r in sorted(asked)}
        votes = {r: v for r, v in results.items() if v is not None}
        absent = tuple(r for r, v in results.items() if v is None)
        laid_out.append(Contested(target, replayer, votes, votes.get(target), votes.get(replayer), absent))
    return laid_out


def one_offs(findings: Sequence[Finding], named: Sequence[Finding]) -> tuple[Finding, ...]:
    """Ranks that were wrong once and right when asked again, beside those `named` already."""
    known = {f.rank for f in named}
    return tuple(
        f
        for f in findings
        if f.rank is not None
        and f.rank not in known
        and (f.verdict is Verdict.TRANSIENT or f.second_confirmation is SecondConfirmation.AGREES)
    )


def only_compiled(rank_map: RankMap, pairs: Sequence[Pair]) -> Finding:
    """The finding of a mismatch that only compiled code shows, on ranks that had agreed before."""
    ranks = sorted({r for p in pairs for r in (p.replayer, p.target)})
    return Finding(
        FindingKind.PAIR,
        verdict=Verdict.UNATTRIBUTABLE,
        involved=places_of(rank_map, ranks),
        evidence=f"compiled replays among ranks {', '.join(map(str, ranks[:MAX_CONTESTED]))} differ, as they "
        "did not before with the same graphs; without the compiler all GPUs agree",
    )
