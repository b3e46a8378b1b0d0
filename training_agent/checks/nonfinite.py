"""Check 1: non-finite gradients, each rank's own before they are reduced, and the reduced ones before
clipping.

Comes in: gradients, by post-accumulate hooks (they see the local gradient and leave the comm-hook slot free).
Goes out: two counters and the norms behind them. Next: a non-finite step is replayed (`checks.replay`).

The local read names a rank, the reduced one detects: a NaN survives the sum. Reads are queued and made many
at a time, as far as the gradient stays local until then. The reduced gradient is one and the same on all
ranks: each reads its share of it, and all of them together see everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .._evidence import norm, norms
from ..policy import Naming

# Callbacks queued in a backward run when it ends, in order. DDP finalises in one of them, and with
# static_graph in one that an earlier one queues: ours hops twice, so that it comes after both [seen with
# torch 2.13].
HOPS = 2
_QUEUED = {"cpu": 1 << 18}  # elements that wait for one call: on a CPU what the cache still holds
_QUEUED_ELSEWHERE = 1 << 25  # launches cost more than reads there
TINY = 1 << 16  # elements; a 1-D parameter of at most this size is read with lazy naming


def read_locally(parameters: Sequence[Tensor], naming: Naming) -> tuple[bool, ...]:
    """Whose local gradients check 1 reads, one answer per parameter; equal on all ranks."""
    return tuple(naming is Naming.FULL or (p.dim() < 2 and p.numel() <= TINY) for p in parameters)


class Share(NamedTuple):
    """One of `ranks` equal parts of the reduced gradient, by elements."""

    part: int
    ranks: int


class Slice(NamedTuple):
    """Elements `start` to `stop` of one parameter, flat; `tensor`: which one."""

    tensor: int
    start: int
    stop: int


def slices_of(sizes: Sequence[int], share: Share) -> tuple[Slice, ...]:
    """What belongs to a share of tensors that lie one behind the other; `sizes`: elements of each."""
    total = sum(sizes)
    first, last = (total * part // share.ranks for part in (share.part, share.part + 1))
    found, offset = [], 0
    for index, size in enumerate(sizes):
        start, stop = max(first - offset, 0), min(last - offset, size)
        if start < stop:
            found.append(Slice(index, start, stop))
        offset += size
    return tuple(found)


WHOLE = Share(0, 1)


class GradientNorms:
    """Norms of the local gradients of a step, and of the reduced ones, kept on the device until asked."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        active: Callable[[], bool],
        *,
        naming: Naming = Naming.FULL,
        at_once: bool = True,
        share: Share = WHOLE,
    ) -> None:
        """Hook `parameters`.

        Args:
            active: whether the backward in progress is the step's own.
            naming: `lazy` reads the tiny 1-D gradients only.
            at_once: read each gradient as it comes: it is reduced where it lies (`gradient_as_bucket_view`).
            share: which part of the reduced gradient to read, where all ranks hold the same.
        """
        self._parameters = tuple(parameters)
        self.active = active
        device = self._parameters[0].device.type if self._parameters else "cpu"
        self._queue_limit = 0 if at_once else _QUEUED.get(device, _QUEUED_ELSEWHERE)
        self.share = share
        self._slices = slices_of([p.numel() for p in self._parameters], share)
        self.handles: list[RemovableHandle] = []  # those of whoever watches the same backwards, too
        self._hook(read_locally(self._parameters, naming))
        self.reset()

    def reset(self) -> None:
        """Forget the step."""
        self._locals: list[list[Tensor | None]] = [self._blank()]  # per backward
        self._came: list[list[bool]] = [[False] * len(self._parameters)]  # the same, read or not
        self._queue: list[tuple[int, Tensor]] = []
        self._queued = 0  # elements
        self._reduced: Tensor | None = None
        self._versions: list[int | None] = []
        self.in_backward = False
        self.backwards = 0
        self.reentrant = False  # a backward ran inside a backward
        self._task = -1

    def local(self, backward: int = 0) -> tuple[Tensor | None, ...]:
        """Local gradient norm per parameter in one backward; None where none came or none is read."""
        return tuple(self._locals[backward]) if backward < len(self._locals) else ()

    def came(self, backward: int = 0) -> tuple[bool, ...]:
        """Per parameter whether a gradient came in one backward of the step."""
        return tuple(self._came[backward]) if backward < len(self._came) else ()

    def seen(self, backward: int = 0) -> set[int]:
        """`id`s of the parameters to which a gradient came in one backward of the step."""
        return {id(p) for p, here in zip(self._parameters, self.came(backward), strict=True) if here}

    def local_nonfinite(self, device: torch.device) -> Tensor:
        """int64 scalar: 1 when some local gradient is NaN, Inf or too large for a float32 norm."""
        return _any_nonfinite([n for norms in self._locals for n in norms if n is not None], device)

    def reduced_nonfinite(self, device: torch.device) -> Tensor:
        """int64 scalar: the same for the reduced gradients, as they were before any clipping."""
        return _any_nonfinite([] if self._reduced is None else [self._reduced], device)

    def left_nonfinite(self) -> bool:
        """Whether the gradients as they lie here now, all of them, are not finite; waits for the device."""
        left = [g.detach() for g in self._gradients() if g is not None]
        return bool(left) and not bool(torch.stack([n.float() for n in norms(left)]).isfinite().all())

    def left_finite(self) -> bool:
        """Whether each element of the gradients as they lie here now is finite; waits for the device."""
        left = [g.detach() for g in self._gradients() if g is not None]
        return all(bool(g.isfinite().all()) for g in left)

    def reduced_norm(self, device: torch.device) -> Tensor:
        """Scalar: the norm of what was read of the reduced gradients together; 0 before any."""
        if self._reduced is None:
            return torch.zeros((), device=device)
        whole: Tensor = torch.linalg.vector_norm(self._reduced)
        return whole.to(device)

    def untouched(self) -> bool:
        """Whether the gradients are still those that the last backward left: nobody clipped or unscaled."""
        return self._versions == [_version(g) for g in self._gradients()]

    def dropped(self) -> bool:
        """Whether the gradients of a backward were thrown away without an update, as a GradScaler does."""
        if self.backwards == 0:
            return False
        gradients = [g for g in self._gradients() if g is not None]
        if not gradients:
            return True
        # zero_grad(set_to_none=False) writes zeros in place; asking the device only if somebody wrote.
        return not self.untouched() and not any(bool(g.any()) for g in gradients)

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self.handles:
            handle.remove()

    def _hook(self, read: Sequence[bool]) -> None:
        for i, p in enumerate(self._parameters):
            if read[i]:
                self.handles.append(p.register_hook(self._on_entering(i)))  # type: ignore[no-untyped-call]
            self.handles.append(p.register_post_accumulate_grad_hook(self._on_accumulated(i, read[i])))  # type: ignore[no-untyped-call]

    def _gradients(self) -> list[Tensor | None]:
        """The reduced ones, as far as they lie on this rank."""
        return [p.grad for p in self._parameters]

    def _blank(self) -> list[Tensor | None]:
        return [None] * len(self._parameters)

    def _on_entering(self, index: int) -> Callable[[Tensor], None]:
        """From the second backward of an update on: `grad` then holds the first one's reduction already."""

        def hook(gradient: Tensor) -> None:
            if self.backwards > 0 and self.active():
                norms = self._locals[-1]
                known, new = norms[index], norm(gradient.detach())
                norms[index] = new if known is None else torch.maximum(known, new)  # keeps NaN and Inf

        return hook

    def _on_accumulated(self, index: int, read: bool) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            gradient = parameter.grad
            if gradient is None or not self.active():
                return
            self._note(index)
            if read and self.backwards == 0:
                self._queue.append((index, gradient))
                self._queued += gradient.numel()
            # DDP ends inside an inner backward, before the outer one's callbacks run.
            if self.reentrant or self._queued >= self._queue_limit:
                self._read_queue()

        return hook

    def _note(self, index: int) -> None:
        """A gradient came, the first of its backward perhaps."""
        task = torch._C._current_graph_task_id()
        if not self.in_backward:
            self.in_backward, self._task = True, task
            at_end_of_backward(self._read_queue, 0)  # before DDP writes the reduced gradients back
            at_end_of_backward(self._on_reduced, HOPS)
        elif task != self._task:
            self.reentrant = True
        self._came[-1][index] = True

    def _read_queue(self) -> None:
        if self._queue:
            known = self._locals[0]
            for (index, _), found in zip(self._queue, norms([g for _, g in self._queue]), strict=True):
                known[index] = found
            self._queue, self._queued = [], 0

    def _on_reduced(self) -> None:
        self.in_backward = False
        self.backwards += 1
        self._locals.append(self._blank())
        self._came.append([False] * len(self._parameters))
        every = self._gradients()
        read = [g for g in self._to_read(every) if g is not None]
        if read:
            self._reduced = torch.stack([n.float() for n in norms(read)])
        self._versions = [_version(g) for g in every]

    def _to_read(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """This rank's share of the reduced gradients."""
        return [_part(gradients[s.tensor], s) for s in self._slices]


def at_end_of_backward(action: Callable[[], None], hops: int) -> None:
    """Run `action` when the backward in progress ends, `hops` callbacks after those that wait by now."""

    def callback() -> None:
        if hops:
            at_end_of_backward(action, hops - 1)
        else:
            action()

    # Public in effect: DDP's and FSDP's Python sides use it, and there is no other name for it.
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _part(gradient: Tensor | None, wanted: Slice) -> Tensor | None:
    """The slice of a gradient; all of it where its elements do not lie in order."""
    if gradient is None or wanted.stop - wanted.start == gradient.numel() or not gradient.is_contiguous():
        return gradient
    return gradient.detach().view(-1)[wanted.start : wanted.stop]


def _version(gradient: Tensor | None) -> int | None:
    return None if gradient is None else gradient._version


def _any_nonfinite(norms: Sequence[Tensor], device: torch.device) -> Tensor:
    if not norms:
        return torch.zeros((), dtype=torch.int64, device=device)
    flat = norms[0] if len(norms) == 1 else torch.stack([n.float() for n in norms])
    return torch.isfinite(flat).all().logical_not().to(device=device, dtype=torch.int64)
