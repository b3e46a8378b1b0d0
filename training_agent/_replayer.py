"""Chooses how a captured unit is computed again: on aliases, through what the user compiled, or on all ranks.

Comes in: what the loop calls. Goes out: `Evidence` of a capture. Next: `_ring` compares it.
"""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ._capture import Capture, Unit
from ._evidence import Depth, Evidence
from ._leaves import GatheredLeaves, Leaves
from ._startup import Setup
from ._statistics import Statistics
from .checks.block import recompute_block, recompute_inside, rows_of
from .checks.compiled import CompiledReplay, is_compiled
from .checks.nonfinite import read_locally
from .checks.replay import WithoutDdp, recompute
from .checks.together import ReplayTogether
from .errors import ConfigurationError


class Replayer:
    """The way of one training loop; each leaves everything as it was."""

    def __init__(self, setup: Setup, leaves: Leaves, statistics: Statistics) -> None:
        self._setup, self._statistics = setup, statistics.now
        self._read = read_locally(list(setup.parameters.values()), setup.naming)
        self._compiled: CompiledReplay | None = None
        self._together: ReplayTogether | None = None
        self._blocks = {block.name: block for block in setup.blocks}
        if isinstance(leaves, GatheredLeaves):
            self._together = ReplayTogether(
                setup.module, setup.compute_loss, setup.parameters, leaves, self._read, self._statistics
            )
        elif is_compiled(setup.compute_loss) or is_compiled(setup.model):
            self._compiled = CompiledReplay(self._ddp, setup.model, setup.parameters, self._statistics)

    @property
    def compiled(self) -> bool:
        """Whether the loop's own computations go through a compiler."""
        return self._compiled is not None

    def called(self, model: Any) -> None:
        """The loop hands `model` to its loss function; perhaps it was compiled after `attach`."""
        if self._compiled is not None:
            self._compiled.model = model
        elif hasattr(model, "_orig_mod"):
            if self._together is not None:
                raise ConfigurationError("torch.compile around a model under fully_shard is not guarded.")
            parameters = self._setup.parameters
            self._compiled = CompiledReplay(self._ddp, model, parameters, self._statistics)

    def module_returned(self, output: Any) -> None:
        """The wrapped module returned `output` inside a replay."""
        through = self._compiled or self._together
        if through is not None:
            through.module_returned(output)

    def recompute(self, capture: Capture, depth: Depth) -> Evidence:
        """Compute a capture again.

        Raises:
            RuntimeError and whatever the user's code raises: it cannot be computed here.
        """
        setup, read = self._setup, self._read
        if capture.unit is Unit.BLOCK:
            block = self._blocks[capture.block]
            if capture.whole is not None:
                forward = self._forward
                return recompute_inside(setup.module, block, capture, depth, setup.device, forward)
            part = setup.module.get_submodule(block.name)
            return recompute_block(part, block, capture, depth, setup.device)
        if self._together is not None:
            return self._together.recompute(capture, depth, setup.device)
        if self._compiled is not None:
            return self._compiled.recompute(setup.compute_loss, capture, depth, setup.device, read)
        names = list(setup.parameters)
        compute_loss, device = setup.compute_loss, setup.device
        return recompute(self._ddp, compute_loss, capture, depth, device, names, read, self._statistics)

    def _forward(self, capture: Capture) -> object:
        """Compute a whole micro-batch, the forward alone."""
        compute = self._setup.compute_loss
        if capture.unit is Unit.MODULE or compute is None:
            return self._setup.module(*capture.args, **capture.kwargs)
        return compute(WithoutDdp(self._ddp), *capture.args, **capture.kwargs)

    def rows_of(self, capture: Capture) -> tuple[str, ...]:
        """Names of the gradients that its evidence begins with."""
        if capture.unit is Unit.BLOCK:
            return rows_of(self._blocks[capture.block], sum(capture.inputs))
        return tuple(self._setup.parameters)

    @property
    def _ddp(self) -> DistributedDataParallel:
        assert isinstance(self._setup.outer, DistributedDataParallel)
        return self._setup.outer
