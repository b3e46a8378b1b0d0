"""Chooses how a captured unit is computed again: on aliases, or through what the user compiled.

Comes in: what the loop calls. Goes out: `Evidence` of a capture. Next: `_ring` compares it.
"""

from __future__ import annotations

from typing import Any

from ._capture import Capture
from ._evidence import Depth, Evidence
from ._startup import Setup
from .checks.compiled import CompiledReplay, is_compiled
from .checks.nonfinite import read_locally
from .checks.replay import recompute


class Replayer:
    """The way of one training loop; both ways leave everything as it was."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._read = read_locally(list(setup.parameters.values()), setup.naming)
        self._compiled: CompiledReplay | None = None
        if is_compiled(setup.compute_loss) or is_compiled(setup.model):
            self._compiled = CompiledReplay(setup.ddp, setup.model, setup.parameters)

    @property
    def compiled(self) -> bool:
        """Whether the loop's own computations go through a compiler."""
        return self._compiled is not None

    def called(self, model: Any) -> None:
        """The loop hands `model` to its loss function; perhaps it was compiled after `attach`."""
        if self._compiled is not None:
            self._compiled.model = model
        elif hasattr(model, "_orig_mod"):
            self._compiled = CompiledReplay(self._setup.ddp, model, self._setup.parameters)

    def module_returned(self, output: Any) -> None:
        """The wrapped module returned `output` inside a replay."""
        if self._compiled is not None:
            self._compiled.module_returned(output)

    def recompute(self, capture: Capture, depth: Depth) -> Evidence:
        """Compute a capture again.

        Raises:
            RuntimeError and whatever the user's code raises: it cannot be computed here.
        """
        setup, read = self._setup, self._read
        if self._compiled is not None:
            return self._compiled.recompute(setup.compute_loss, capture, depth, setup.device, read)
        names = list(setup.parameters)
        return recompute(setup.ddp, setup.compute_loss, capture, depth, setup.device, names, read)
