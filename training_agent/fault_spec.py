"""One fault as a value: place, shape, rank, step, persistence, seed. Pure.

Next step: `fault_sites.Injection` puts it into effect. Use both from `training_agent.faults`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ._phase import Phase
from .errors import ConfigurationError
from .fault_shapes import Shape, Spot

EVERYWHERE = frozenset({Phase.TRAINING, Phase.REPLAY, Phase.ARBITRATION})  # all that the GPU computes
STEP_ONLY = frozenset({Phase.TRAINING})
REPLAYS = frozenset({Phase.REPLAY, Phase.ARBITRATION})


class Where(str, Enum):
    """What goes wrong."""

    FORWARD_OUTPUT = "forward-output"  # of a layer; the gradient path stays
    INPUT_GRADIENT = "input-gradient"  # of a layer: what its backward hands on
    WEIGHT_GRADIENT = "weight-gradient"  # this rank's own, before the reduction
    LOSS = "loss"  # what the loss function returns, and with it every gradient
    WEIGHTS = "weights"  # stored ones, right after the update
    OPTIMIZER_STATE = "optimizer-state"  # a stored moment, right after the update
    REDUCED_GRADIENT = "reduced-gradient"  # inside the all-reduce
    LOADED_CHECKPOINT = "loaded-checkpoint"  # weights between load and the first step


COMPUTED = frozenset({Where.FORWARD_OUTPUT, Where.INPUT_GRADIENT, Where.WEIGHT_GRADIENT, Where.LOSS})


class Persistence(str, Enum):
    """How often a fault strikes from its step on."""

    ALWAYS = "always"
    ONCE = "once"  # at its step, the first time that it is due
    EACH_NTH = "each-nth"  # every `nth` time that it is due: an intermittent fault
    ABOVE = "above"  # only elements of a magnitude over `magnitude`: certain operands


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """What strikes, where and when.

    Raises:
        ConfigurationError: the numbers contradict each other.
    """

    where: Where
    shape: Shape
    rank: int | None  # None: every rank alike, for what all of them receive
    step: int = 1  # the step at which, or from which on; 1-based
    persistence: Persistence = Persistence.ALWAYS
    nth: int = 1
    magnitude: float = 0.0
    phases: frozenset[Phase] = EVERYWHERE
    seed: int = 0

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ConfigurationError(
                f"step={self.step}: steps count from 1 (0 is the state before the first)"
            )
        if self.nth < 1:
            raise ConfigurationError(f"nth={self.nth}: give a number from 1 on")
        if self.rank is None and self.where is not Where.REDUCED_GRADIENT:
            raise ConfigurationError(f"rank=None means all ranks, and {self.where.value} is one rank's own")

    @property
    def above(self) -> float | None:
        """The magnitude that an element must exceed, if any."""
        return self.magnitude if self.persistence is Persistence.ABOVE else None

    def spot(self, index: int = 0) -> Spot:
        """Where in the tensor; `index` tells several bad GPUs apart."""
        return Spot(self.seed, index)

    def due(self, step: int, phase: Phase) -> bool:
        """Whether the computation in progress can be hit; how often it is, is counted by the injection."""
        if self.where in COMPUTED and phase not in self.phases:
            return False
        return step == self.step if self.persistence is Persistence.ONCE else step >= self.step
