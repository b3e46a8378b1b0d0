"""Check 2: compute a captured forward and backward again and record what comes out.

Comes in: a `Capture`, of this rank or of a peer. Goes out: its `Evidence`. Parameters, buffers, gradients,
RNG and switches are those from before, bit for bit. Next: `_ring` compares, `attribution` judges.

The replay runs on detached aliases of the parameters: they share memory with the parameters and have
gradients of their own, so neither DDP's hooks nor the user's post-accumulate hooks fire. The user's tensor
hooks change gradients and are therefore copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from .._capture import Capture, Contexts, Unit, reentered, switched
from .._evidence import Depth, Evidence, Recorder, size_of
from .._hooks import called_with_hooks
from .._readable import readable
from .._standing_in import copies_of, standing_in

LossFunction = Callable[..., Tensor]


def recompute(
    ddp: DistributedDataParallel,
    compute_loss: LossFunction | None,
    capture: Capture,
    depth: Depth,
    device: torch.device,
    parameters: Sequence[str] | None = None,
    read: Sequence[bool] | None = None,
    statistics: Callable[[], Sequence[Tensor]] = tuple,
) -> Evidence:
    """Run the captured unit once more, without any reduction.

    Args:
        ddp: the wrapped model; `capture` came from a replica with the same weights.
        compute_loss: the user's loss function; needed when the captured unit is the loss.
        depth: must be that of the evidence to compare with. BITS needs deterministic kernels on both sides.
        parameters: names behind the rows of the evidence; None: those that require a gradient now.
        read: whose gradients check 1 reads, as for `Recorder`.
        statistics: what the forward left in running statistics, `Statistics.now`; nothing by default.

    Raises:
        RuntimeError and whatever the user's code raises: the unit cannot be computed here.
    """
    module = ddp.module
    known = dict(module.named_parameters())
    rows = parameters or [name for name, p in known.items() if p.requires_grad]
    recorder = Recorder(len(rows), depth, read)
    aliases = {
        name: alias_of(known[name], i, recorder) for i, name in enumerate(rows) if name in capture.trained
    }
    state = {**aliases, **copies_of(capture.buffers)}

    def returned(_module: nn.Module, _args: Any, output: Any) -> None:
        recorder.returned(output_tensors(output), statistics())

    def differentiate(roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
        # `inputs` keeps everything else that the graph reaches (tensors outside the model) untouched.
        torch.autograd.backward(roots, seeds, inputs=list(aliases.values()))

    watcher = module.register_forward_hook(returned)
    try:
        # Through the backward as well: activation checkpointing looks parameters up again in there.
        with reentered(capture, module, device), standing_in(module, state):
            run_unit(capture, compute_loss, module, WithoutDdp(ddp), recorder, differentiate)
    finally:
        watcher.remove()
        torch.clear_autocast_cache()
    return recorder.evidence()


def output_tensors(output: Any) -> Iterator[Tensor]:
    """Tensors inside a module's output, in a fixed order: tuples, lists, mappings, dataclass-like objects."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from output_tensors(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from output_tensors(value)
    elif hasattr(output, "__dict__"):
        yield from output_tensors(vars(output))


def seeded(output: Any) -> list[Tensor]:
    """Outputs at which a backward may begin, as far as what enters there can be kept."""
    return [t for t in output_tensors(output) if t.requires_grad and readable(t)]


def apart(output: Any) -> tuple[Any, set[int]]:
    """Give each output a node of its own; the `id`s of those that could not be given one.

    The gradient that enters the logits from outside is a seed of the replay; what flows into them from the
    loss inside the model is not. Tensors in objects that torch cannot take apart (a key-value cache) stay as
    they are: the rest of the model reads them, so what flows into them comes from inside.
    """
    live = seeded(output)
    if len(live) < 2:
        return output, set()
    ids = {id(t) for t in live}
    divided = tree_map(lambda v: v.view_as(v) if isinstance(v, Tensor) and id(v) in ids else v, output)
    same = {id(t) for t in live} & {id(t) for t in output_tensors(divided)}
    return divided, same if len(same) < len(live) else set()


def run_unit(
    capture: Capture,
    compute_loss: LossFunction | None,
    module: Callable[..., Any],
    model: Any,
    recorder: Recorder,
    differentiate: Callable[[Sequence[Tensor], Sequence[Tensor]], None],
) -> None:
    """Run the forward of the captured unit and, where it is compared, its backward.

    Args:
        module: called with the captured arguments when the unit is the wrapped module.
        model: what the loss function gets otherwise.
        recorder: gets the loss here; outputs and gradients come to it by hooks.
        differentiate: runs the backward from roots with the gradients that entered them.
    """
    if capture.unit is Unit.MODULE or compute_loss is None:
        output = module(*capture.args, **capture.kwargs)
        size = size_of(list(output_tensors(output)))
        if recorder.depth is Depth.FINITENESS and size is not None:
            recorder.loss(size)
        roots = seeded(output)
    else:
        roots = [compute_loss(model, *capture.args, **capture.kwargs)]
        recorder.loss(roots[0])
    if recorder.depth is Depth.OUTPUT:
        return
    seeds = capture.seeds or [torch.ones_like(root) for root in roots]  # none yet: the preflight
    backward_from(roots, seeds, capture.backward, differentiate)


def backward_from(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor | None],
    contexts: Contexts | None,
    differentiate: Callable[[Sequence[Tensor], Sequence[Tensor]], None],
) -> None:
    """Run the backward of a replay.

    Args:
        roots: the outputs that require a gradient.
        seeds: what entered each of them in the step; None: nothing did.
        contexts: switches as they were when the step's backward began; None: as they are.
        differentiate: gets the roots that were reached, and their seeds.

    Raises:
        RuntimeError: the replay has other outputs than the step had.
    """
    if len(roots) != len(seeds):
        raise RuntimeError(f"the replay has {len(roots)} outputs, the original had {len(seeds)}")
    reached = [(root, seed) for root, seed in zip(roots, seeds, strict=True) if seed is not None]
    if reached:
        with switched(contexts, roots[0].device):
            differentiate([r for r, _ in reached], [s for _, s in reached])


class WithoutDdp:
    """What the loss function gets as `model` in a replay: calls go past DDP, everything else to it.

    Forward hooks on DDP are run, as those on the model are: they may be part of it.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return called_with_hooks(self._ddp, self._ddp.module, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ddp, name)


def alias_of(leaf: Tensor, index: int | None, recorder: Recorder) -> Tensor:
    """A leaf on the same memory, with the user's hooks, whose gradient becomes row `index` (None: no row)."""
    alias = leaf.detach().requires_grad_()
    for hook in tensor_hooks(leaf):
        alias.register_hook(hook)  # type: ignore[no-untyped-call]

    def enters(gradient: Tensor) -> None:
        if index is not None:
            recorder.gradient(index, gradient)

    def drop(leaf: Tensor) -> None:
        leaf.grad = None  # digested already; a second copy of all gradients would not fit

    alias.register_hook(enters)  # type: ignore[no-untyped-call]
    alias.register_post_accumulate_grad_hook(drop)  # type: ignore[no-untyped-call]
    return alias


def tensor_hooks(parameter: Tensor) -> tuple[Callable[[Tensor], Tensor | None], ...]:
    """The user's hooks on a parameter's gradient, in order."""
    return tuple((parameter._backward_hooks or {}).values())
