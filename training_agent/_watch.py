"""Watches one step's forwards and backwards: what they started from, and on an audit step what came out.

Comes in: calls of the hooks that `guard` installs. Goes out: `capture` and the step's `Evidence`, or the
reason why this step cannot be audited. Next: `_ring` ships and compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from . import _capture
from ._capture import Capture, Unit
from ._evidence import Depth, Evidence, Recorder, finiteness
from .checks.nonfinite import GradientNorms
from .checks.replay import output_tensors, watch_gradients


class StepWatch:
    """One step from its first forward to its update; `begin` starts the next one."""

    def __init__(self, module: nn.Module, norms: GradientNorms, device: torch.device) -> None:
        self._module = module
        self._norms = norms
        self._device = device
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._handles: list[RemovableHandle] = []
        self._buffer_copies: dict[str, tuple[tuple[int, int], Tensor]] = {}
        self.begin(audit=False)
        self.open = False

    def begin(self, *, audit: bool) -> None:
        """Forget the last step and watch the next; `audit`: record digests as well."""
        self.end()
        self._norms.reset()
        self.open = True
        self.audit = audit
        self.capture: Capture | None = None
        self.loss: Tensor | None = None
        self._units = 0
        self._forwards = 0  # of the wrapped module inside the unit
        self.in_loss = False
        self._inputs: list[tuple[Tensor, int]] = []
        self._outputs = (0, 0)  # tensors, bytes
        self._recorder = Recorder(len(self._parameters), Depth.BITS) if audit else None
        if self._recorder is not None:
            # Registered now, so that they run after every tensor hook of the user.
            self._handles = watch_gradients(self._parameters, self._recorder)

    def end(self) -> None:
        """Stop watching; references to batch and loss go."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.capture = self.loss = self._recorder = None
        self._inputs = []
        self.open = False

    # -- the forward, in order -------------------------------------------------------------------------

    @contextmanager
    def inside_loss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """The loss function runs inside the block."""
        self._start_unit(Unit.LOSS, args, kwargs)
        self.in_loss = True
        try:
            yield
        finally:
            self.in_loss = False

    def enter_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The wrapped module's forward starts, after DDP has broadcast its buffers."""
        if not self.in_loss:
            self._start_unit(Unit.MODULE, args, kwargs)
        self._forwards += 1
        if self.capture is not None and self._forwards == 1:
            self.capture.buffers = self._copy_buffers()

    def leave_module(self, output: Any) -> None:
        """The wrapped module returned `output`."""
        tensors = list(output_tensors(output))
        if self._recorder is not None and self._units == 1:
            for tensor in tensors:
                self._recorder.output(tensor)
            self._outputs = _add(self._outputs, tensors)
        if not self.in_loss:
            self._watch_seeds([t for t in tensors if t.requires_grad])

    def leave_loss(self, loss: Tensor) -> None:
        """The loss function returned."""
        if self._units != 1:
            return
        self.loss = loss.detach()
        if self._recorder is not None:
            self._recorder.loss(loss)
            self._outputs = _add(self._outputs, [loss])
        self._watch_seeds([loss])

    # -- after the backward ----------------------------------------------------------------------------

    @property
    def loss_audited(self) -> bool:
        """Whether the audited unit holds the whole loss function."""
        return self.capture is not None and self.capture.unit is Unit.LOSS

    def obstacle(self) -> str | None:
        """Why this step cannot be compared with a replay; None when it can."""
        if self.capture is None:
            return "no forward was seen"
        if self._units != 1 or self._norms.backwards != 1:
            return f"{self._units} forwards and {self._norms.backwards} backwards fed one update"
        if self._forwards > 1 and self.capture.buffers:
            return f"the loss function called a model with buffers {self._forwards} times"
        if not any(seed is not None for seed in self.capture.seeds):
            return "the backward did not start at the audited outputs"
        if any(t._version != version for t, version in self._inputs):
            return "the batch was changed in place after the forward began"
        if self._recorder is not None:
            return self._vacuity(self._recorder)
        return None

    def evidence(self) -> Evidence:
        """What this step's own computation produced."""
        if self._recorder is not None:
            return self._recorder.evidence()
        return finiteness(self._norms.local, self.loss)

    def _vacuity(self, recorder: Recorder) -> str | None:
        """An audit counts only if everything that check 1 saw, and every output, was digested."""
        seen = [p for p, n in zip(self._parameters, self._norms.local, strict=True) if n is not None]
        tensors = len(seen) + self._outputs[0]
        nbytes = sum(p.numel() * p.element_size() for p in seen) + self._outputs[1]
        if seen and (recorder.tensors, recorder.nbytes) == (tensors, nbytes):
            return None
        return (
            f"{recorder.tensors} tensors with {recorder.nbytes} bytes were digested, "
            f"{tensors} with {nbytes} were expected"
        )

    def _start_unit(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._units += 1
        if self._units == 1:
            self._forwards = 0
            self.capture = _capture.take(unit, self._module, self._device, args, kwargs)
            tensors = output_tensors((args, kwargs))
            self._inputs = [(t, t._version) for t in tensors if not t.is_inference()]

    def _watch_seeds(self, outputs: list[Tensor]) -> None:
        if self.capture is None or self._units != 1:
            return
        seeds = self.capture.seeds
        for tensor in outputs:
            if not tensor.requires_grad:
                continue
            index = len(seeds)
            seeds.append(None)

            def keep(gradient: Tensor, index: int = index) -> None:
                if seeds[index] is None:
                    seeds[index] = gradient.detach()

            tensor.register_hook(keep)  # type: ignore[no-untyped-call]

    def _copy_buffers(self) -> dict[str, Tensor]:
        """Copies of all buffers; an unchanged one keeps the copy of an earlier step."""
        copies = {}
        for name, buffer in self._module.named_buffers():
            key = (buffer.data_ptr(), buffer._version)
            known = self._buffer_copies.get(name)
            copies[name] = known[1] if known is not None and known[0] == key else buffer.detach().clone()
            self._buffer_copies[name] = (key, copies[name])
        return copies


def _add(counted: tuple[int, int], tensors: list[Tensor]) -> tuple[int, int]:
    nbytes = sum(t.numel() * t.element_size() for t in tensors)
    return counted[0] + len(tensors), counted[1] + nbytes
