"""What is known of a step when its update is due, and why it cannot be computed again where it cannot.

Comes in: captures and gradients as `_watch` sees them. Goes out: a `StepRecord`. Next: `_update` judges it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ._capture import Capture, Unit
from ._evidence import Evidence
from ._kept import KeptValues
from ._written import Places


@dataclass(slots=True)
class MicroBatch:
    """One forward that feeds the update, and the backward that follows it."""

    capture: Capture
    backward: int  # the running number, within the step, of the backward that it should feed
    loss: Tensor | None = None
    inputs: list[tuple[Tensor, int]] = field(default_factory=list)  # with their version counters
    forwards: int = 0  # of the wrapped module inside it
    outputs: tuple[int, int] = (0, 0)  # tensors, bytes; running statistics with them
    kept: KeptValues | None = None  # what the program kept when it began; only where it is to be compared
    weights: Places | None = None  # where they were then; only there as well
    outside: str | None = None  # users' hooks that a replay does not run as the step did

    def obstacle(self) -> str | None:
        """Why it cannot be computed again elsewhere; None when it can."""
        if self.forwards > 1 and self.capture.buffers:
            return f"the loss function called a model with buffers {self.forwards} times"
        if not any(seed is not None for seed in self.capture.seeds):
            return "the backward did not start at the audited outputs"
        return self.outside or self.changed()

    def changed(self) -> str | None:
        """Whether it can no longer be told what it started from."""
        if any(t._version != version for t, version in self.inputs):
            return "the batch was changed in place after the forward began"
        return None

    @property
    def loss_audited(self) -> bool:
        """Whether the audited unit holds the whole loss function: ours, or the model's own."""
        if self.capture.unit is not Unit.MODULE:
            return self.capture.unit is Unit.LOSS
        seeds = [seed for seed in self.capture.seeds if seed is not None]
        return bool(seeds) and all(seed.dim() == 0 for seed in seeds)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What is known of one step when its update is due; stays valid while the next one is computed."""

    step: int
    audit: bool
    micro_batches: int
    obstacle: str | None  # why no micro-batch can be compared
    batch: MicroBatch | None  # the one to compare
    evidence: Callable[[], Evidence]  # what this rank's own computation of it produced
    nonfinite: Callable[[], tuple[MicroBatch | None, Evidence | None]]  # the first bad micro-batch

    def past_loss(self) -> str | None:
        """What to say where `attach` got a loss function and this step went past it, if it did."""
        if self.batch is None or self.obstacle is not None or self.batch.loss_audited:
            return None
        return (
            "the loss function is not audited: attach() got compute_loss, and the loop calls the model "
            "without it. Call guard.compute_loss(model, ...) instead"
        )
