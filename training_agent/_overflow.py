"""What a GradScaler answers by itself: gradients that overflow are its daily business, and no fault.

Comes in: the counts of a step, and whether this process trains with a scaler. Goes out: the step counted as
an overflow, or a `Sighting` where one rank alone overflows again and again. Next: `_update` leaves the step
to the scaler.

A scaler answers for each optimizer by itself: with several, one may be passed over and the other step.

Beside gradients that never overflow (bfloat16, float32) its scale doubles without end, and scaled gradients
outgrow a norm in float32 long before they are not finite. That is no fault either.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from ._alarm import Sighting
from ._evidence import widen
from ._gate import Tally, ranks_that
from ._ledger import Ledger
from ._sightings import overflowing
from ._startup import Setup
from .checks.nonfinite import GradientNorms

GROWN = 2.0**32  # a scale that float16 gradients never reach; from here on 4e9 is a norm that does not fit


@dataclass(slots=True)
class Overflows:
    """Those of one job; every method is called on all ranks alike."""

    setup: Setup
    ledger: Ledger
    norms: GradientNorms
    now: bool = False  # the step in progress is one

    def told(self, tally: Tally, optimizer: Optimizer) -> Tally:
        """The counts of a step that is judged before the update of `optimizer`.

        The first one to step tells what the scaler found in its own gradients only, and where it is not fused
        nothing: the scaler never calls one whose gradients overflowed.
        """
        if _unexplained(tally) and self._outgrown(optimizer):
            tally = replace(tally, nonfinite=0, reduced=0)
        elif _unexplained(tally) and self._several:
            (scaling,) = self.setup.comm.total([scales(optimizer)])
            tally = replace(tally, overflow=scaling)
        self.now = bool(tally.overflow)
        return tally

    def told_late(self, tally: Tally) -> Tally:
        """The same in deferred mode, one step later: the gate has stopped the update as a scaler would."""
        return replace(tally, overflow=1) if _unexplained(tally) and self._outgrown() else tally

    @property
    def drops(self) -> bool:
        """Whether the step in progress is dropped as a whole; else the scaler says which optimizers step."""
        return self.now and not self._several

    def passed_over(self, optimizer: Optimizer) -> bool:
        """Whether the scaler had this optimizer change nothing; asks the device in overflowing steps only."""
        found = getattr(optimizer, "found_inf", None) if self.now else None
        return found is not None and bool(found)

    def scaled_apart(self, optimizer: Optimizer) -> bool:
        """Whether a scaler speaks of its gradients only, and not of the other optimizers'."""
        return self._several and hasattr(optimizer, "found_inf")

    def sighting(self, step: int, tally: Tally, own: Tensor) -> Sighting | None:
        """Book an overflow; what one rank that alone has one too often comes to. `own`: this rank's flag."""
        comm = self.setup.comm
        again = self.ledger.overflowed(frozenset(ranks_that(comm, tally.nonfinite, own)), comm.world)
        return None if again is None else overflowing(step, again, self.setup.rank_map)

    def _outgrown(self, optimizer: Optimizer | None = None) -> bool:
        """Whether only the scale is large, on every rank; norms are wider then. A collective."""
        scale = max((float(s.get_scale()) for s in _scalers(optimizer)), default=0.0)
        own = scale >= GROWN and self.norms.left_finite()
        (ranks,) = self.setup.comm.total([own])
        if ranks < self.setup.comm.world:
            return False
        widen()
        self.ledger.note(
            f"a GradScaler's scale has grown beyond {GROWN:.0e}: norms of scaled gradients are taken in "
            "float64 from now on. Gradients that are not float16 need no scaler (enabled=False)"
        )
        return True

    @property
    def _several(self) -> bool:
        return len(self.setup.optimizers) > 1


def _unexplained(tally: Tally) -> bool:
    """Whether check 1 has something to say that no scaler has spoken of."""
    return bool(tally.nonfinite or tally.reduced) and not tally.overflow


def scales(optimizer: Optimizer | None = None) -> bool:
    """Whether this process trains with a GradScaler, or one is about to have `optimizer` step."""
    return bool(_scalers(optimizer))


def _scalers(optimizer: Optimizer | None) -> list[GradScaler]:
    """Those of this process, or those that are about to have `optimizer` step.

    The loop keeps them and no guard ever sees one; so all objects are asked: once when the process is to end,
    and in steps that may be an overflow.
    """
    found = [o for o in gc.get_objects() if issubclass(type(o), GradScaler) and o.is_enabled()]
    # Private, and the only word on it: without that an alarm is raised, as without a scaler.
    return [s for s in found if optimizer is None or id(optimizer) in getattr(s, "_per_optimizer_states", ())]
