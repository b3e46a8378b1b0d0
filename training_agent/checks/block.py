"""Check 2 on one block: compute its captured forward and backward again and record what comes out.

Comes in: a block's `Capture`, of this rank or of a peer. Goes out: its `Evidence`; rows as `rows_of` names
them. Parameters, buffers, gradients, RNG and switches are those from before, as for `checks.replay`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from .._blocks import Block
from .._capture import Capture, reentered, switched
from .._evidence import Depth, Evidence, Recorder
from .replay import Around, alias_of, apart, output_tensors


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
    recorder = Recorder(len(block.parameters) + sum(capture.inputs), depth)
    known = dict(module.named_parameters())
    rows: dict[str, int | None] = {name: i for i, name in enumerate(block.parameters)}
    rows |= dict.fromkeys(block.shared)
    aliases = {
        name: alias_of(known[name], row, recorder) for name, row in rows.items() if name in capture.trained
    }
    inputs, args, kwargs = _arguments(capture, recorder, len(block.parameters))
    state: dict[str, Tensor] = {**aliases, **{n: b.clone() for n, b in capture.buffers.items()}}
    returned: list[Tensor] = []

    def catch(_module: nn.Module, _args: Any, output: Any) -> Any:
        # After the user's own hooks, as in the step; their backward hooks on the module come behind it.
        output, _ = apart(output)
        for tensor in output_tensors(output):
            recorder.output(tensor)
            returned.append(tensor)
        return output

    def run() -> None:
        module(*args, **kwargs)
        leaves = [*aliases.values(), *inputs]
        roots = [t for t in returned if t.requires_grad]
        if depth is Depth.OUTPUT or not leaves:
            return
        if len(roots) != len(capture.seeds):
            raise RuntimeError(f"the replay has {len(roots)} outputs, the original had {len(capture.seeds)}")
        pairs = [(r, s) for r, s in zip(roots, capture.seeds, strict=True) if s is not None]
        if pairs:
            with switched(capture.backward, device):
                torch.autograd.backward([r for r, _ in pairs], [s for _, s in pairs], inputs=leaves)

    watcher = module.register_forward_hook(catch)
    try:
        with reentered(capture, module, device):
            functional_call(Around(module), {f"wrapped.{n}": t for n, t in state.items()}, (run,))
    finally:
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
