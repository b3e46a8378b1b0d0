"""Watches one step's forwards and backwards: what they started from, and on an audit step what came out.

Comes in: calls of the hooks that `guard` installs. Goes out: a `StepRecord`, with the reason where the step
cannot be compared. Next: `_update` judges it, `_ring` ships and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from . import _capture
from ._arguments import with_containers_of_its_own
from ._capture import Capture, Unit
from ._evidence import Depth, Evidence, Recorder, finiteness, size_of
from ._kept import KeptValues
from ._leaves import Leaves, Stop, inside_backward
from ._readable import readable, readable_ones
from ._startup import Setup
from ._statistics import Statistics
from ._step_record import MicroBatch, StepRecord
from ._walk import copied_buffers
from ._written import WrittenWeights
from .checks.nonfinite import GradientNorms
from .checks.replay import apart, output_tensors
from .policy import Policy


class StepWatch:
    """One step from its first forward to its update; `begin` starts the next one."""

    def __init__(
        self,
        module: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        norms: GradientNorms,
        device: torch.device,
        leaves: Leaves,
        kept: Callable[[], KeptValues] = dict,
    ) -> None:
        self._module, self._kept = module, kept
        self.written = WrittenWeights(module)
        self.statistics = Statistics(module)
        self._named = parameters
        self._norms = norms
        self._device = device
        self._parameters = list(parameters.values())
        self._leaves = leaves
        self._stop: Stop | None = None
        self.per_update = 1  # micro-batches of the last update
        self.outside: Callable[[Unit], str | None] = lambda _unit: None  # what a replay leaves out
        self.told: Callable[[list[Tensor]], None] | None = None  # gets what a backward may begin at
        self.batches: list[MicroBatch] = []
        self.always_keep = False  # what the program keeps, at the begin of each micro-batch
        self.begin(audit=False)
        self.open = False

    def begin(
        self,
        *,
        audit: bool,
        depth: Depth = Depth.BITS,
        turn: int = 0,
        complete: Callable[[Capture | None], None] | None = None,
    ) -> None:
        """Forget the last step and watch the next; `audit`: record digests of the `turn`-th micro-batch.

        With several micro-batches per update the audited one rotates; how many there are is taken from the
        last update. `complete` is told when the first backward begins, with the first micro-batch if nothing
        is missing in it then.
        """
        self.end()
        self._norms.reset()
        self.open = True
        self.audit = audit
        self.in_loss = False
        self._chosen = turn % self.per_update if audit else 0
        self.keeping = {self._chosen} if audit else set()  # micro-batches that a replay may need it for
        self._complete = complete
        self._recorder = Recorder(len(self._parameters), depth) if audit else None
        if self._recorder is not None:
            # From now on, so that it comes after every tensor hook of the user.
            self._stop = self._leaves.watch(self._on_gradient, self._on_gathered)

    def end(self) -> None:
        """Stop watching; references to batch and loss go."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self.batches:
            self.per_update = len(self.batches)
        self.batches = []
        self._recorder = None
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
        batch = self.batches[-1]
        batch.forwards += 1
        if batch.forwards == 1:
            batch.capture.buffers = copied_buffers(self._module)

    def leave_module(self, output: Any) -> Any:
        """The wrapped module returned `output`; what comes back stands in for it."""
        inside: set[int] = set()
        if not self.in_loss:
            output, inside = apart(output)
        every = list(output_tensors(output))
        tensors = readable_ones(every)
        if self._recorder is not None and self._is_chosen:
            left = self.statistics.now()
            self._recorder.returned(every, left)
            self.batches[-1].outputs = _add(self.batches[-1].outputs, [*tensors, *left])
        if not self.in_loss:
            self.batches[-1].loss = size_of(tensors)
            if any(t.requires_grad and not readable(t) for t in every):
                self.batches[-1].outside = "the backward may begin at an output without bytes of its own"
            self._watch_seeds([t for t in tensors if t.requires_grad], inside)
        return output

    def leave_loss(self, loss: Tensor) -> None:
        """The loss function returned."""
        batch = self.batches[-1]
        batch.loss = loss.detach()
        if self._recorder is not None and self._is_chosen:
            self._recorder.loss(loss)
            batch.outputs = _add(batch.outputs, [loss])
        self._watch_seeds([loss])

    # -- the gradients ---------------------------------------------------------------------------------

    def _on_gradient(self, index: int, gradient: Tensor) -> None:
        self._on_backward()  # a loss that does not come from the outputs; DDP's first reduction comes after
        if self._recorder is not None and self._recording():
            self._recorder.gradient(index, gradient)

    def _on_gathered(self, weights: Tensor) -> None:
        """Under `fully_shard`: the weights that this forward uses, as other ranks handed them out."""
        if self._recorder is not None and self._recording() and not inside_backward():
            self._recorder.output(weights)
            self.batches[-1].outputs = _add(self.batches[-1].outputs, [weights])

    def loss(self) -> Tensor:
        """Scalar: the last micro-batch's loss, or what stands in for it; 0 without any."""
        known = self.batches[-1].loss if self.batches else None
        return torch.zeros((), device=self._device) if known is None else known.detach().to(self._device)

    # -- after the backward ----------------------------------------------------------------------------

    def record(self, step: int) -> StepRecord:
        """What is known now, right before the update of `step`."""
        batches, norms, recorder = list(self.batches), self._norms, self._recorder
        by_backward = [norms.local(i) for i in range(norms.backwards)]
        index = self._chosen if self._chosen < len(batches) else None
        batch = None if index is None else batches[index]

        def evidence() -> Evidence:
            if recorder is not None:
                return recorder.evidence()
            assert index is not None and batch is not None
            return finiteness(by_backward[index], batch.loss)

        def nonfinite() -> tuple[MicroBatch | None, Evidence | None]:
            bad = next((i for i, n in enumerate(by_backward) if finiteness(n, None).has_nonfinite), index)
            if bad is None or bad >= len(batches) or batches[bad].obstacle():
                return None, None
            return batches[bad], finiteness(by_backward[bad], batches[bad].loss)

        obstacle = self._obstacle(batch)
        return StepRecord(step, self.audit, len(batches), obstacle, batch, evidence, nonfinite)

    def _obstacle(self, batch: MicroBatch | None) -> str | None:
        if not self.batches or not self.open:
            return "no forward was seen"
        starts = [b.backward for b in self.batches]
        if starts != list(range(self._norms.backwards)):
            return f"{len(starts)} forwards and {self._norms.backwards} backwards fed one update out of turn"
        if self._norms.reentrant:
            return "a backward ran inside the backward (reentrant checkpointing): pass use_reentrant=False"
        if batch is None:
            return f"the update had {len(starts)} micro-batches, number {self._chosen + 1} was to be audited"
        moved = None if batch.weights is None else self.written.since(batch.weights)
        return batch.obstacle() or moved or (self._vacuity(batch) if self._recorder is not None else None)

    def _vacuity(self, batch: MicroBatch) -> str | None:
        """An audit counts only if everything that check 1 saw, and every output, was digested."""
        recorder = self._recorder
        assert recorder is not None
        came = self._norms.came(batch.backward)
        seen = [i for i, here in enumerate(came) if here]
        if recorder.depth is Depth.OUTPUT:
            wanted = batch.outputs
        else:
            nbytes = sum(map(self._leaves.nbytes, seen)) + batch.outputs[1]
            wanted = len(seen) + batch.outputs[0], nbytes
        if seen and wanted[0] and (recorder.tensors, recorder.nbytes) == wanted:
            return None
        return (
            f"{recorder.tensors} tensors with {recorder.nbytes} bytes were digested, "
            f"{wanted[0]} with {wanted[1]} were expected"
        )

    @property
    def _is_chosen(self) -> bool:
        return len(self.batches) == self._chosen + 1

    def _recording(self) -> bool:
        return self._is_chosen and self._norms.backwards == self.batches[-1].backward

    def _start_unit(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        args, kwargs = with_containers_of_its_own((args, kwargs))
        tensors = output_tensors((args, kwargs))
        keep = self.always_keep or len(self.batches) in self.keeping
        self.batches.append(
            MicroBatch(
                _capture.take(unit, self._module, self._device, args, kwargs, self._named),
                self._norms.backwards,
                inputs=[(t, t._version) for t in tensors if not t.is_inference()],
                kept=self._kept() if keep else None,
                weights=self.written.places() if keep else None,
                outside=self.outside(unit),
            )
        )

    def _watch_seeds(self, outputs: list[Tensor], inside: Collection[int] = ()) -> None:
        if self.told is not None:
            self.told(outputs)
        batch = self.batches[-1]
        # Without a loss function the seeds are as large as the outputs: one micro-batch keeps them.
        keeps = batch.capture.unit is Unit.LOSS or self._is_chosen
        capture, seeds = batch.capture, batch.capture.seeds
        for tensor in outputs:
            if not tensor.requires_grad:
                continue
            index = len(seeds)
            seeds.append(None)
            if id(tensor) in inside:
                continue

            def keep(gradient: Tensor | None, index: int = index) -> None:
                # None: a node with several outputs got a gradient for another one of them only
                if gradient is not None and seeds[index] is None and (keeps or gradient.dim() == 0):
                    seeds[index] = gradient.detach()
                if capture.backward is None:
                    capture.backward = _capture.current_contexts(self._device)
                self._on_backward()

            tensor.register_hook(keep)  # type: ignore[no-untyped-call]

    def _on_backward(self) -> None:
        tell, self._complete = self._complete, None
        if tell is not None:
            capture = self.batches[0].capture if self.batches else None
            whole = capture is not None and all(seed is not None for seed in capture.seeds)
            tell(capture if whole else None)


def _add(counted: tuple[int, int], tensors: list[Tensor]) -> tuple[int, int]:
    nbytes = sum(t.numel() * t.element_size() for t in tensors)
    return counted[0] + len(tensors), counted[1] + nbytes


def watch_of(setup: Setup, norms: GradientNorms, leaves: Leaves, kept: Callable[[], KeptValues]) -> StepWatch:
    """The watch of what `attach` was given."""
    watch = StepWatch(setup.module, setup.parameters, norms, setup.device, leaves, kept)
    watch.always_keep = setup.policy is Policy.RETRY  # whichever step is computed again
    return watch
