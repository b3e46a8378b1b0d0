"""Audits where batches come from: a peer builds the batch of a step again and compares it with the one used.

Comes in: the user's `rebuild_batch`, and what a rank gave its loss function. Goes out: a `Sighting` that
names nobody, the reason why nothing could be compared, or nothing. Next: `_examine` hands it on.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ._alarm import Sighting
from ._capture import kept_rng
from ._comm import Comm
from ._step_record import MicroBatch
from .contest import places_of
from .contract import Check, Finding, FindingKind, Pair
from .digest import digest
from .errors import in_short
from .placement import RankMap

RebuildBatch = Callable[[int, int], Any]  # step, rank
_PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class DataPath:
    """The replica group with what builds batches; every method is called on all ranks alike."""

    comm: Comm
    rank_map: RankMap
    device: torch.device
    rebuild: RebuildBatch

    def differs(
        self, step: int, batch: MicroBatch, micro_batches: int, targets: Sequence[int]
    ) -> Sighting | str | None:
        """Build each target's batch of `step` again and compare it with what the target computed from.

        Args:
            batch: this rank's own audited micro-batch.
            micro_batches: of this rank's update; of one with several the list is rebuilt.
            targets: `targets[i]` is whose batch `comm.ranks[i]` rebuilds; a permutation.
        """
        ranks, own = self.comm.ranks, self.comm.rank
        target, args = targets[ranks.index(own)], batch.capture.args
        used, again, problem = "", "", ""
        try:
            used = contents((args[0] if len(args) == 1 else args, *batch.capture.kwargs.values()))
        except Exception as e:  # noqa: BLE001 - whatever is wrong here must not leave others waiting
            problem = f"the batch of rank {own} cannot be digested: {in_short(e)}"
        # How many micro-batches an update has may differ by rank, and so what is rebuilt.
        theirs: dict[int, tuple[str, int, int]] = dict(
            zip(ranks, self.comm.gather((used, micro_batches, batch.backward)), strict=True)
        )
        expected, several, index = theirs[target]
        try:
            with kept_rng(self.device), _kept_python_rng():
                built = self.rebuild(step, target)
            again = contents((built if several == 1 else built[index],))
        except Exception as e:  # noqa: BLE001 - the same for the user's code
            problem = problem or f"rebuild_batch({step}, {target}) failed on rank {own}: {in_short(e)}"
        wrong = again != expected
        if not any(self.comm.total([bool(problem), wrong])):
            return None
        answers = self.comm.gather((target, wrong, problem))
        problems = [p for *_, p in answers if p]
        if problems:
            return str(problems[0])
        pairs = [Pair(r, t) for r, (t, differs, _) in zip(ranks, answers, strict=True) if differs]
        return _sighting(step, sorted(pairs, key=lambda p: p.target), self.rank_map) if pairs else None


@contextmanager
def _kept_python_rng() -> Iterator[None]:
    """Loaders use Python's generator and NumPy's, and seed them by the step; the loop's must stay."""
    plain, numpy = random.getstate(), sys.modules.get("numpy")
    arrays: Any = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(plain)
        if numpy is not None:
            numpy.random.set_state(arrays)


def contents(value: Any) -> str:
    """16 hex digits over all tensors (bits, dtype, shape) and plain values inside; on any device the same."""

    def leaf(found: Any) -> object:
        if isinstance(found, Tensor):
            return str(found.dtype), tuple(found.shape), digest([found.detach()])[0].tolist()
        return found if isinstance(found, _PLAIN) else type(found).__name__

    return hashlib.sha256(repr([leaf(v) for v in tree_leaves(value)]).encode()).hexdigest()[:16]


def _sighting(step: int, pairs: Sequence[Pair], rank_map: RankMap) -> Sighting:
    """Loader, storage and host memory are no GPU: nobody is named. Most ranks at once: it is the function."""
    involved = places_of(rank_map, sorted({r for p in pairs for r in (p.replayer, p.target)}))
    first = pairs[0]
    text = (
        f"rank {first.target} computed step {step} from other data than rank {first.replayer} builds for it"
    )
    if len(pairs) > 1:
        text += f", and so did {len(pairs) - 1} more of {rank_map.size} ranks"
    if 2 * len(pairs) > rank_map.size:
        text += ": rebuild_batch(step, rank) does not give what the loop trains on"
    else:
        text += ": look at loader, storage and host memory of both; their GPUs agree"
    finding = Finding(FindingKind.SOFTWARE, involved=involved, evidence=text)
    return Sighting(Check.REPLAY, step, (finding,), pairs=tuple(pairs), loss_audited=True)
