"""What a GradScaler answers by itself: gradients that overflow are its daily business, and no fault.

Comes in: the counts of a step, and whether this process trains with a scaler. Goes out: the step counted as
an overflow, or a `Sighting` where one rank alone overflows again and again. Next: `_update` leaves the step
to the scaler.

A scaler answers for each optimizer by itself: with several, one may be passed over and the other step.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from ._alarm import Sighting
from ._gate import Tally, ranks_that
from ._ledger import Ledger
from ._sightings import overflowing
from ._startup import Setup


@dataclass(slots=True)
class Overflows:
    """Those of one job; every method is called on all ranks alike."""

    setup: Setup
    ledger: Ledger
    now: bool = False  # the step in progress is one

    def told(self, tally: Tally, optimizer: Optimizer) -> Tally:
        """The counts of a step that is judged before the update of `optimizer`.

        The first one to step tells what the scaler found in its own gradients only, and where it is not fused
        nothing: the scaler never calls one whose gradients overflowed.
        """
        unseen = (tally.nonfinite or tally.reduced) and not tally.overflow
        if unseen and self._several:
            (scaling,) = self.setup.comm.total([scales(optimizer)])
            tally = replace(tally, overflow=scaling)
        self.now = bool(tally.overflow)
        return tally

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

    @property
    def _several(self) -> bool:
        return len(self.setup.optimizers) > 1


def scales(optimizer: Optimizer | None = None) -> bool:
    """Whether this process trains with a GradScaler, or one is about to have `optimizer` step.

    The loop keeps it and no guard ever sees it; so all objects are asked: once when the process is to end,
    and in steps that may be an overflow of several optimizers.
    """
    scalers = [o for o in gc.get_objects() if issubclass(type(o), GradScaler) and o.is_enabled()]
    # Private, and the only word on it: without that an alarm is raised, as without a scaler.
    return any(optimizer is None or id(optimizer) in getattr(s, "_per_optimizer_states", ()) for s in scalers)
