"""Which computation the GPU is doing right now; the guard sets it, fault injectors read it.

Kept alone so that `training_agent.faults` needs nothing of the guard, and the guard nothing of the faults.
"""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    """What the forward and backward in progress are for."""

    TRAINING = "training"  # the step that will be applied
    WARM_UP = "warm-up"  # the discarded pass of every start
    REPLAY = "replay"  # a peer's micro-batch in the ring audit
    ARBITRATION = "arbitration"  # a contested micro-batch, or one's own once more
