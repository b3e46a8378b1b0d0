"""Check 2 on one block: compute its captured forward and backward again and record what comes out.

Comes in: a block's `Capture`, of this rank or of a peer. Goes out: its `Evidence`; rows as `rows_of` names
them. Parameters, buffers, gradients, RNG and switches are those from before, as for `checks.replay`.

Alone, or inside the forward of its whole micro-batch: then whatever that forward leaves in places that no
argument shows (a mask kept in an attribute, a global) is what the block of the step found there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from .._blocks import Block
from .._capture import Capture, reentered, set_rng
from .._evidence import Depth, Evidence, Recorder
from .._leaves import inside_backward
from .._standing_in import copies_of, standing_in
from .._walk import named_buffers
from .replay import alias_of, apart, backward_from, output_tensors


def rows_of(block: Block, inputs: int) -> tuple[str, ...]:
    """Names of the gradients' rows: the block's own parameters, then its inputs."""
    prefix = f"{block.name}." if block.name else ""
    names = (*block.parameters, *(f"input {i}" for i in range(inputs)))
    return tuple(prefix + name for name in names)


def recompute_block(
    module: nn.Module, block: Block, capture: Capture, depth: Depth, device: torch.device
) -> Evidence:
    """Run the captured block once more.

    Args:
        module: the block itself, in a model with the weights of the step.
        block: its parameters.
        depth: that of the evidence to compare with.

    Raises:
        RuntimeError and whatever the user's code raises: the block cannot be computed here.
    """
    again = _Again(module, block, capture, depth)
    watcher = module.register_forward_hook(again.leave)

    def run() -> None:
        module(*again.args, **again.kwargs)
        again.differentiate()

    state = again.aliases | copies_of(capture.buffers)
    return _computed(module, state, capture, run, again.recorder, (watcher,), device)


def recompute_inside(
    root: nn.Module,
    block: Block,
    capture: Capture,
    depth: Depth,
    device: torch.device,
    forward: Callable[[Capture], object],
) -> Evidence:
    """The same inside the forward of `capture.whole`, which gives the block its surroundings, not its inputs.

    Args:
        root: the wrapped module.
        forward: computes a whole micro-batch through it; what comes out of that is not looked at.

    Raises:
        RuntimeError and whatever the user's code raises: the block cannot be computed here.
    """
    whole, part = capture.whole, root.get_submodule(block.name)
    assert whole is not None
    again = _Again(part, block, capture, depth)
    watchers = (
        part.register_forward_pre_hook(again.enter(device), with_kwargs=True, prepend=True),
        part.register_forward_hook(again.leave_copies),
    )

    def run() -> None:
        forward(whole)
        if not again.returned:
            raise RuntimeError(f"the forward of its micro-batch did not come to {block.title}")
        again.differentiate()

    own = {id(b): capture.buffers[n] for n, b in named_buffers(part).items() if n in capture.buffers}
    prefix = f"{block.name}." if block.name else ""
    state = {prefix + name: alias for name, alias in again.aliases.items()}
    for name, buffer in named_buffers(root).items():
        if id(buffer) in own or name in whole.buffers:
            state[name] = own.get(id(buffer), whole.buffers.get(name, buffer)).clone()
    return _computed(root, state, whole, run, again.recorder, watchers, device)


class _Again:
    """One more computation of a block: what goes in, and what is recorded of what comes out."""

    def __init__(self, module: nn.Module, block: Block, capture: Capture, depth: Depth) -> None:
        self._capture = capture
        self.recorder = Recorder(len(block.parameters) + sum(capture.inputs), depth)
        known = dict(module.named_parameters())
        rows: dict[str, int | None] = {name: i for i, name in enumerate(block.parameters)}
        rows |= dict.fromkeys(block.shared)
        self.aliases = {
            name: alias_of(known[name], row, self.recorder)
            for name, row in rows.items()
            if name in capture.trained
        }
        self._inputs, self.args, self.kwargs = _arguments(capture, self.recorder, len(block.parameters))
        self.returned: list[Tensor] = []

    def enter(self, device: torch.device) -> Callable[..., Any]:
        """A hook that puts the captured inputs in the place of those that come, and the RNG's state."""

        def hook(_module: nn.Module, _args: Any, _kwargs: Any) -> Any:
            if not torch.is_grad_enabled():  # the step did not count such calls either
                return None
            set_rng(self._capture.cpu_rng, self._capture.device_rng, device)
            return self.args, self.kwargs

        return hook

    def leave(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """A hook behind the user's own, as in the step; their backward hooks on the module come behind it."""
        output, _ = apart(output)
        for tensor in output_tensors(output):
            self.recorder.output(tensor)
            self.returned.append(tensor)
        return output

    def leave_copies(self, module: nn.Module, args: Any, output: Any) -> Any:
        """The same; what follows gets copies, so that it changes nothing of what was recorded."""
        if inside_backward() or not torch.is_grad_enabled():
            return None
        if self.returned:
            raise RuntimeError("the forward of its micro-batch came to it twice")
        output = self.leave(module, args, output)
        return tree_map(_unlinked, output)

    def differentiate(self) -> None:
        """The backward from the outputs, with the gradients that entered them in the step."""
        leaves = [*self.aliases.values(), *self._inputs]
        if self.recorder.depth is Depth.OUTPUT or not leaves:
            return
        roots = [t for t in self.returned if t.requires_grad]
        backward_from(
            roots,
            self._capture.seeds,
            self._capture.backward,
            partial(torch.autograd.backward, inputs=leaves),
        )


def _unlinked(value: Any) -> Any:
    """A copy that leads nowhere and asks for a gradient as the value did: the model may take one in there."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _computed(
    module: nn.Module,
    state: Mapping[str, Tensor],
    start: Capture,
    run: Callable[[], None],
    recorder: Recorder,
    watchers: Iterable[RemovableHandle],
    device: torch.device,
) -> Evidence:
    """Run it where `state` stands in for parameters and buffers of `module`, which begins as at `start`."""
    try:
        with reentered(start, module, device), standing_in(module, state):
            run()
    finally:
        for watcher in watchers:
            watcher.remove()
        torch.clear_autocast_cache()
    return recorder.evidence()


def _arguments(
    capture: Capture, recorder: Recorder, first: int
) -> tuple[list[Tensor], tuple[Any, ...], dict[str, Any]]:
    """Leaves that require a gradient, and the captured arguments with them in their places.

    One tensor given twice stays one: attention asks whether query, key and value are the same object.
    """
    leaves: dict[int, Tensor] = {}
    compared = iter(capture.inputs)
    seen: dict[int, Tensor] = {}
    row = first

    def stand_in(value: Any) -> Any:
        nonlocal row
        if not isinstance(value, Tensor):
            return value
        if id(value) not in seen:
            counts = next(compared)
            seen[id(value)] = value
            if value.requires_grad:
                leaves[id(value)] = alias_of(value, row if counts else None, recorder)
            row += counts
        return leaves.get(id(value), value)

    args, kwargs = tree_map(stand_in, (capture.args, capture.kwargs))
    return list(leaves.values()), args, kwargs
