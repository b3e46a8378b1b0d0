"""Check 2 under `fully_shard`: all ranks replay at once, through the sharded model itself.

Comes in: a `Capture`, of this rank or of a peer. Goes out: its `Evidence`. Weights are gathered and gradients
reduced as in a step, so that every rank's collectives meet those of the others; what is reduced is thrown
away. Weights, gradients, buffers, RNG and switches are those from before. Next: `_ring` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .._aside import put_aside, reducing, reshard
from .._capture import Capture, reentered
from .._evidence import Depth, Evidence, Recorder
from .._leaves import GatheredLeaves, inside_backward
from .._standing_in import copies_of, standing_in
from .replay import LossFunction, output_tensors, run_unit


class ReplayTogether:
    """The sharded model of one training loop; every call of `recompute` is one on all ranks.

    Parameters
    ----------
    model: what `fully_shard` holds.
    parameters: the trained ones by name, in the order of the rows of evidence.
    leaves: where their local gradients come to light.
    read: whose gradients check 1 reads, as for `Recorder`.
    statistics: what a forward left in running statistics, `Statistics.now`.
    """

    def __init__(
        self,
        model: nn.Module,
        compute_loss: LossFunction | None,
        parameters: Mapping[str, nn.Parameter],
        leaves: GatheredLeaves,
        read: Sequence[bool],
        statistics: Callable[[], Sequence[Tensor]],
    ) -> None:
        self._model, self._compute_loss = model, compute_loss
        self._parameters = list(parameters.values())
        self._leaves, self._read = leaves, read
        self._statistics = statistics
        self._recorder: Recorder | None = None

    def module_returned(self, output: object) -> None:
        """The model returned `output` inside a replay."""
        if self._recorder is not None:
            self._recorder.returned(output_tensors(output), self._statistics())

    def recompute(self, capture: Capture, depth: Depth, device: torch.device) -> Evidence:
        """Run the captured unit once more.

        Raises:
            RuntimeError and whatever the user's code raises: the ranks are out of step then, as they are
                when that happens in a step.
        """
        recorder = self._recorder = Recorder(len(self._parameters), depth, self._read)

        def gathered(weights: Tensor) -> None:
            if not inside_backward():
                recorder.output(weights)

        arguments = tree_leaves((capture.args, capture.kwargs))
        given = [t for t in arguments if isinstance(t, Tensor) and t.is_leaf and t.requires_grad]
        stop = self._leaves.watch(recorder.gradient, gathered)
        try:
            with (
                reentered(capture, self._model, device),
                put_aside([*self._parameters, *given]),
                reducing(self._model),
                standing_in(self._model, copies_of(capture.buffers)),
            ):
                model, differentiate = self._model, torch.autograd.backward
                run_unit(capture, self._compute_loss, model, model, recorder, differentiate)
        finally:
            stop()
            self._recorder = None
            reshard(self._model)
            torch.clear_autocast_cache()
        return recorder.evidence()
