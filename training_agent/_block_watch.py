"""Records one block of one real step: what it started from, what came out, and the way there.

Comes in: calls of hooks on that block, put there for this step only. Goes out: a `BlockRecord`, with the
reason where it cannot be compared. Next: `_layers` has it replayed. The block runs deterministic kernels, its
backward too; the rest of the step keeps the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from . import _capture
from ._block_graph import Edge, Node, used_outside
from ._block_inputs import Views, hooked, unfit
from ._blocks import Block
from ._capture import Capture, Unit
from ._evidence import Depth, Evidence, Recorder
from ._leaves import inside_backward
from ._readable import readable
from ._refusals import kept_out
from ._step_record import MicroBatch, StepRecord
from ._walk import copied_buffers
from ._watch import StepWatch
from .checks.nonfinite import GradientNorms, at_end_of_backward
from .checks.replay import apart, output_tensors
from .determinism import DeterministicMode


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """What is known of the block when its step's update is due."""

    obstacle: str | None  # why it cannot be compared
    capture: Capture | None
    evidence: Callable[[], Evidence]
    leak: Callable[[], str]  # what inside the block is used outside of it as well; "" without
    around: MicroBatch | None = None  # the micro-batch that the block was a part of


class BlockWatch:
    """One block in one step, from `install` to `ended`."""

    def __init__(
        self,
        module: nn.Module,
        block: Block,
        micro_batch: int,
        watch: StepWatch,
        norms: GradientNorms,
        depth: Depth,
        device: torch.device,
        *,
        strict: bool,
    ) -> None:
        """`micro_batch`: which one of the update, from 0. `strict`: the block runs deterministic kernels."""
        self.block, self._module, self._micro_batch = block, module, micro_batch
        self._watch, self._norms = watch, norms
        self._depth, self._device, self._strict = depth, device, strict
        self._mode = DeterministicMode()
        self._handles: list[RemovableHandle] = []
        self._own = dict(module.named_parameters())
        self._calls = 0
        self._inside = False  # the watched forward runs
        self._problem: str | None = None
        self._capture: Capture | None = None
        self._recorder: Recorder | None = None
        self._versions: list[tuple[Tensor, int]] = []
        self._sizes: list[int] = []  # of the outputs, bytes
        self._came: list[int] = []  # bytes of the input gradients
        self._waiting = 0  # inputs whose gradient is still to come
        self._backward = False  # the block's own has begun
        self._roots: list[Node] = []
        self._starts: list[Node] = []
        self._ends: list[Edge] = []

    def install(self) -> None:
        """Put the hooks on; `ended` takes them away."""
        module = self._module
        if not {*self.block.parameters, *self.block.shared} <= self._own.keys():
            self._problem = "has other weights than it had when the guard was attached"
            return
        # First of all hooks, and last of all: the user's own are part of the block, in the replay too.
        self._handles = [
            module.register_forward_pre_hook(kept_out(self._enter), with_kwargs=True, prepend=True),
            module.register_forward_hook(kept_out(self._leave), always_call=True),
            *(self._watch_leaf(i, self._own[name]) for i, name in enumerate(self.block.parameters)
              if self._own[name].requires_grad),
        ]  # fmt: skip
        self._watch.told = self._step_returned

    def end(self) -> None:
        """Take the hooks away, whatever was seen."""
        self._watch.told = None
        self._mode.leave()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def ended(self, record: StepRecord) -> BlockRecord:
        """The step is complete."""
        self.end()
        obstacle = record.obstacle or self._obstacle(record.micro_batches)
        recorder, capture = self._recorder, self._capture
        foreign = {id(p) for n, p in self._own.items() if n not in self.block.parameters}
        if capture is not None:
            foreign |= {id(leaf) for leaf in tree_leaves((capture.args, capture.kwargs))}
        roots, ends, starts = self._roots, self._ends, self._starts

        def evidence() -> Evidence:
            assert recorder is not None
            return recorder.evidence()

        return BlockRecord(
            obstacle,
            capture,
            evidence,
            lambda: used_outside(roots, ends, set(starts), foreign),
            next(iter(self._watch.batches[self._micro_batch :]), None),
        )

    # -- the forward -----------------------------------------------------------------------------------

    def _enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if (
            inside_backward()
        ):  # checkpointing computes the block once more: with the kernels of the first time
            if self._capture is not None and self._recording:
                self._deterministic()
            return None
        if not self._norms.active() or not torch.is_grad_enabled():
            return None
        if len(self._watch.batches) - 1 != self._micro_batch:
            return None
        self._calls += 1
        if self._calls > 1:
            return None
        self._inside = True
        self._deterministic()
        self._problem = unfit((args, kwargs)) or hooked(module)
        if self._problem is not None:
            return None
        views = Views(self._on_input)
        seen = views.of(args), {k: views.of(v) for k, v in kwargs.items()}
        self._waiting, self._starts = len(views.made), views.nodes((args, kwargs))
        self._take(args, kwargs, views)
        return seen

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any], views: Views) -> None:
        """Everything that a peer needs: tensors by reference, without the graph behind them."""
        kept: dict[int, Tensor] = {}

        def keep(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if id(value) not in kept:
                bare = value.detach().requires_grad_(value.requires_grad)
                kept[id(value)] = value if value.is_leaf and value.requires_grad else bare
            return kept[id(value)]

        args, kwargs = tree_map(keep, (args, kwargs))
        module = self._module
        self._versions = [(t, t._version) for t in kept.values() if not t.is_inference()]
        capture = _capture.take(Unit.BLOCK, module, self._device, args, kwargs, self._own)
        capture.block = self.block.name
        capture.buffers = copied_buffers(module)
        capture.inputs = tuple(known in views.made for known in kept)
        self._capture = capture
        self._recorder = Recorder(len(self.block.parameters) + len(views.made), self._depth)

    def _leave(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        if inside_backward():
            if not self._backward:
                self._mode.leave()
            return None
        if not self._inside:
            return None
        self._inside = False
        self._mode.leave()
        recorder, capture = self._recorder, self._capture
        if recorder is None or capture is None:
            return None
        if not all(map(readable, output_tensors(output))):
            self._problem, self._recorder = "returns tensors without bytes of their own", None
            return None
        output, joined = apart(output)
        for tensor in output_tensors(output):
            recorder.output(tensor)
            self._sizes.append(tensor.numel() * tensor.element_size())
            if not tensor.requires_grad:
                continue
            self._ends.append((tensor.grad_fn, tensor.output_nr))
            index = len(capture.seeds)
            capture.seeds.append(None)
            if id(tensor) not in joined:
                through = tensor.grad_fn in self._starts  # an input as it came: nothing of the block's own
                tensor.register_hook(self._on_output(index, capture, through=through))  # type: ignore[no-untyped-call]
        return output

    def _step_returned(self, outputs: list[Tensor]) -> None:
        if len(self._watch.batches) - 1 == self._micro_batch:
            self._roots += [t.grad_fn for t in outputs if t.grad_fn is not None]

    # -- the backward ----------------------------------------------------------------------------------

    def _on_output(self, index: int, capture: Capture, *, through: bool) -> Callable[[Tensor | None], None]:
        def hook(gradient: Tensor | None) -> None:
            if gradient is None or not self._recording:
                return
            if not self._backward and not through:
                self._backward = True
                self._deterministic()
                capture.backward = _capture.current_contexts(self._device)
                at_end_of_backward(self._mode.leave, 0)
            capture.seeds[index] = gradient.detach()

        return hook

    def _on_input(self, number: int, gradient: Tensor) -> None:
        if self._recorder is None or not self._recording:
            return
        self._recorder.gradient(len(self.block.parameters) + number, gradient)
        self._came.append(gradient.numel() * gradient.element_size())
        self._waiting -= 1
        if self._waiting == 0:  # of all nodes of the block these were made first, so they come last
            self._mode.leave()

    def _watch_leaf(self, row: int, parameter: nn.Parameter) -> RemovableHandle:
        def hook(gradient: Tensor) -> None:
            if self._recorder is not None and self._recording:
                self._recorder.gradient(row, gradient)

        handle: RemovableHandle = parameter.register_hook(hook)  # type: ignore[no-untyped-call]
        return handle

    @property
    def _recording(self) -> bool:
        return self._norms.backwards == self._micro_batch

    def _deterministic(self) -> None:
        if self._strict:
            self._mode.enter()

    # -- what came of it -------------------------------------------------------------------------------

    def _obstacle(self, micro_batches: int) -> str | None:
        title = self.block.title
        if self._micro_batch >= micro_batches:
            return f"the update had {micro_batches} micro-batches, number {self._micro_batch + 1} was due"
        if self._problem is not None:
            return f"{title} {self._problem}"
        if self._calls != 1:
            return f"{title} was called {self._calls} times in its micro-batch"
        capture, recorder = self._capture, self._recorder
        if capture is None or recorder is None or not self._sizes:
            return f"{title} returned no tensor"
        if any(t._version != version for t, version in self._versions):
            return f"an input of {title} was changed in place after its forward began"
        if capture.seeds and not any(seed is not None for seed in capture.seeds):
            return f"no gradient came back to {title}"
        return self._vacuity(recorder)

    def _vacuity(self, recorder: Recorder) -> str | None:
        """It counts only if every gradient that check 1 saw of this block, and every output, was digested."""
        wanted = list(self._sizes)
        if self._depth is not Depth.OUTPUT:
            seen = self._norms.seen(self._micro_batch)
            own = (self._own[name] for name in self.block.parameters)
            wanted += [*self._came, *(p.numel() * p.element_size() for p in own if id(p) in seen)]
        if (recorder.tensors, recorder.nbytes) == (len(wanted), sum(wanted)):
            return None
        return (
            f"{recorder.tensors} tensors with {recorder.nbytes} bytes of {self.block.title} were digested, "
            f"{len(wanted)} with {sum(wanted)} were expected"
        )
