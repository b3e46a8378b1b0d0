"""Check 1: non-finite gradients, each rank's own before they are reduced, and the reduced ones before
clipping.

Comes in: gradients, by post-accumulate hooks (they see the local gradient and leave the comm-hook slot free).
Goes out: two counters and the norms behind them. Next: a non-finite step is replayed (`checks.replay`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .._evidence import norm

# Callbacks queued in a backward run when it ends, in order. DDP finalises in one of them, and with
# static_graph in one that an earlier one queues: ours hops twice, so that it comes after both [seen with
# torch 2.13].
_HOPS = 2


class GradientNorms:
    """Norm of every local gradient of a step, and of every reduced one, kept on the device until asked."""

    def __init__(self, parameters: Sequence[nn.Parameter], active: Callable[[], bool]) -> None:
        """Hook `parameters`; `active` says whether the backward in progress is the step's own."""
        self._parameters = tuple(parameters)
        self._active = active
        self._handles = []
        for i, p in enumerate(self._parameters):
            self._handles.append(p.register_hook(self._on_entering(i)))  # type: ignore[no-untyped-call]
            self._handles.append(p.register_post_accumulate_grad_hook(self._on_accumulated(i)))  # type: ignore[no-untyped-call]
        self.reset()

    def reset(self) -> None:
        """Forget the step."""
        self._locals: list[list[Tensor | None]] = [self._blank()]  # per backward
        self._reduced: Tensor | None = None
        self._versions: list[int | None] = []
        self.in_backward = False
        self.backwards = 0
        self.reentrant = False  # a backward ran inside a backward
        self._task = -1

    def local(self, backward: int = 0) -> tuple[Tensor | None, ...]:
        """Local gradient norm per parameter in one backward of the step; None where no gradient came."""
        return tuple(self._locals[backward]) if backward < len(self._locals) else ()

    @property
    def gradients_seen(self) -> int:
        """Parameters that got a gradient in this step."""
        return sum(any(n is not None for n in norms) for norms in zip(*self._locals, strict=True))

    def local_nonfinite(self, device: torch.device) -> Tensor:
        """int64 scalar: 1 when some local gradient is NaN, Inf or too large for a float32 norm."""
        return _any_nonfinite([n for norms in self._locals for n in norms if n is not None], device)

    def reduced_nonfinite(self, device: torch.device) -> Tensor:
        """int64 scalar: the same for the reduced gradients, as they were before any clipping."""
        return _any_nonfinite([] if self._reduced is None else [self._reduced], device)

    def untouched(self) -> bool:
        """Whether the gradients are still those that the last backward left: nobody clipped or unscaled."""
        return self._versions == self._gradient_versions()

    def dropped(self) -> bool:
        """Whether the gradients of a backward were thrown away without an update, as a GradScaler does."""
        if self.backwards == 0:
            return False
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not gradients:
            return True
        # zero_grad(set_to_none=False) writes zeros in place; asking the device only if somebody wrote.
        return not self.untouched() and not any(bool(g.any()) for g in gradients)

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _blank(self) -> list[Tensor | None]:
        return [None] * len(self._parameters)

    def _gradient_versions(self) -> list[int | None]:
        return [None if p.grad is None else p.grad._version for p in self._parameters]

    def _on_entering(self, index: int) -> Callable[[Tensor], None]:
        """From the second backward of an update on: `grad` then holds the first one's reduction already."""

        def hook(gradient: Tensor) -> None:
            if self.backwards > 0 and self._active():
                norms = self._locals[-1]
                known, new = norms[index], norm(gradient.detach())
                norms[index] = new if known is None else torch.maximum(known, new)  # keeps NaN and Inf

        return hook

    def _on_accumulated(self, index: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            if not self._active() or parameter.grad is None:
                return
            if self.backwards == 0:
                self._locals[0][index] = norm(parameter.grad.detach())
            task = torch._C._current_graph_task_id()
            self.reentrant |= self.in_backward and task != self._task
            if not self.in_backward:
                self.in_backward, self._task = True, task
                _at_end_of_backward(self._on_reduced, _HOPS)

        return hook

    def _on_reduced(self) -> None:
        self.in_backward = False
        self.backwards += 1
        self._locals.append(self._blank())
        gradients = [p.grad.detach() for p in self._parameters if p.grad is not None]
        if gradients:
            self._reduced = torch.stack([n.float() for n in torch._foreach_norm(gradients)])
        self._versions = self._gradient_versions()


def _at_end_of_backward(action: Callable[[], None], hops: int) -> None:
    def callback() -> None:
        if hops:
            _at_end_of_backward(action, hops - 1)
        else:
            action()

    # Public in effect: DDP's and FSDP's Python sides use it, and there is no other name for it.
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _any_nonfinite(norms: Sequence[Tensor], device: torch.device) -> Tensor:
    if not norms:
        return torch.zeros((), dtype=torch.int64, device=device)
    flat = torch.cat([n.reshape(-1).float() for n in norms])
    return (~torch.isfinite(flat)).any().to(device=device, dtype=torch.int64)
