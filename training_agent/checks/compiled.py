"""Check 2 under `torch.compile`: compute a captured unit again through the user's own compiled callable.

Comes in: a `Capture`, of this rank or of a peer. Goes out: its `Evidence`, as from `checks.replay`, which
is for models that are not compiled. A compiler decides by what it sees: aliases instead of parameters, or
the module without DDP around it, may get another graph and other bits. So callable, DDP and parameters are
those of the step. DDP is told not to reduce, and gradients are taken by `autograd.grad`, which runs the
users' tensor hooks and neither their post-accumulate hooks nor DDP's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .._capture import Capture, reentered
from .._evidence import Depth, Evidence, Recorder
from .._standing_in import copies_of, standing_in
from .replay import LossFunction, output_tensors, run_unit


class CompiledReplay:
    """The compiled callable of one training loop.

    Parameters
    ----------
    ddp: the DDP module, perhaps inside the callable.
    model: what the loop calls.
    parameters: the trained ones by name, in the order of the rows of evidence.
    statistics: what a forward left in running statistics, `Statistics.now`.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        model: Any,
        parameters: Mapping[str, nn.Parameter],
        statistics: Callable[[], Sequence[Tensor]],
    ) -> None:
        self.model = model
        self._ddp = ddp
        self._parameters = parameters
        self._statistics = statistics
        self._recorder: Recorder | None = None

    def module_returned(self, output: Any) -> None:
        """The wrapped module's permanent hook: one that came and went with each replay would compile anew."""
        if self._recorder is not None:
            self._recorder.returned(output_tensors(output), self._statistics())

    def recompute(
        self,
        compute_loss: LossFunction | None,
        capture: Capture,
        depth: Depth,
        device: torch.device,
        read: Sequence[bool] | None = None,
    ) -> Evidence:
        """Run the captured unit once more, without any reduction; arguments as for `replay.recompute`.

        Raises:
            RuntimeError and whatever the user's code raises: the unit cannot be computed here.
        """
        trained = [n for n, p in self._parameters.items() if p.requires_grad]
        if set(trained) != set(self._parameters) & capture.trained:
            raise RuntimeError("this rank trains other parameters than the one whose micro-batch it got")
        recorder = self._recorder = Recorder(len(self._parameters), depth, read)
        inputs = [self._parameters[name] for name in trained]

        def differentiate(roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
            torch.autograd.grad(roots, inputs, seeds, allow_unused=True)

        module = self._ddp.module
        try:
            with (
                reentered(capture, module, device),
                _unreduced(self._ddp),
                self._watched(recorder),
                standing_in(module, copies_of(capture.buffers)),
            ):
                run_unit(capture, compute_loss, self.model, self.model, recorder, differentiate)
        finally:
            self._recorder = None
            torch.clear_autocast_cache()
        return recorder.evidence()

    @contextmanager
    def _watched(self, recorder: Recorder) -> Iterator[None]:
        """Digest each gradient as it appears and let go of it: a second copy of all would not fit."""

        def taken(index: int) -> Callable[[Tensor], Tensor]:
            def hook(gradient: Tensor) -> Tensor:
                recorder.gradient(index, gradient)
                return gradient.new_zeros(()).expand_as(gradient)

            return hook

        with ExitStack() as stack:
            for index, parameter in enumerate(self._parameters.values()):
                if parameter.requires_grad:
                    handle = parameter.register_hook(taken(index))  # type: ignore[no-untyped-call]
                    stack.callback(handle.remove)
            yield


@contextmanager
def _unreduced(ddp: DistributedDataParallel) -> Iterator[None]:
    """Inside the block a forward through DDP prepares no reduction and broadcasts no buffers."""
    before = ddp.require_backward_grad_sync, ddp.require_forward_param_sync
    ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False
    try:
        yield
    finally:
        ddp.require_backward_grad_sync, ddp.require_forward_param_sync = before


def is_compiled(model: Any) -> bool:
    """Whether `model`, a module or a loss function, or a module inside it goes through `torch.compile`."""
    parts = model.modules() if isinstance(model, nn.Module) else [model]
    return any(
        hasattr(part, "_orig_mod")
        or hasattr(part, "_torchdynamo_orig_callable")
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in parts
    )
