"""Programs that keep something beside weights and buffers, as cases: counters, states, generators.

Goes out: cases for `cases`. Their unguarded runs have no discarded pass: gradients are summed in the order of
ranks, so that it makes no difference how DDP lays out its buckets, and a trace that a discarded pass leaves
in what they keep is seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize

from tests.distributed.loops import Loop, plain_step
from tests.distributed.models import Batch, Net, batch_for, loss_of

RARELY = 0.2


class DrawsElsewhere(Net):
    """Leaves its dropout out now and then, as other generators than torch's tell it."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        draws = random.random(), np.random.random(), float(torch.rand((), generator=self.generator))
        out: Tensor = super().forward(x)
        return out * 1.5 if min(draws) < RARELY else out


class Counts(Net):
    """A factor that falls with the number of calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 + 1 / self.calls)


class Carries(Net):
    """A state that goes from batch to batch, where the data say so."""

    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(8)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x + self.state)
        self.seen = [*self.seen, hidden.detach().mean(0)][-3:]
        if float(x[0, 0]) > 0:
            self.state = torch.stack(self.seen).mean(0)
        return self.head(hidden)


class ScalesItsInput(Net):
    """In place: the batch is another one afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


class Masks(Net):
    """Puts a mask on its weights: the second time nothing changes."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.up.weight.data *= (torch.arange(12) % 3 > 0).float()[:, None]
        return super().forward(x)


class Clamps(Net):
    """Holds a weight within bounds that it never leaves, where the data say so: on some ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bound", torch.tensor(100.0))  # DDP sends it with each forward

    def forward(self, x: Tensor) -> Tensor:
        if float(x[0, 1]) > 0:
            with torch.no_grad():
                self.up.weight.clamp_(-self.bound, self.bound)
        return super().forward(x)


class Averages(Net):
    """Moves a teacher inside it towards itself, and asks it; at first both are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(8, 4)
        self.teacher.load_state_dict(self.head.state_dict())
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for theirs, own in zip(self.teacher.parameters(), self.head.parameters(), strict=True):
                theirs.mul_(0.9).add_(own, alpha=0.1)
        return super().forward(x) + 0.1 * self.teacher(x)


class Fades(Net):
    """Writes a weight in each second call, the first not among them."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls % 2 == 0:
            with torch.no_grad():
                self.up.weight.mul_(0.9)
        return super().forward(x)


class OwnRows(Net):
    """Each rank trains a table of its own."""

    _ddp_params_and_buffers_to_ignore = ("table.weight",)

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.table((x[:, 0] > 0).long()))


class Normed(Net):
    """Its weights are computed from others, which the loop has cached during the forward."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.up)
        parametrizations.weight_norm(self.head)


class RunningMean:
    """Of losses; each rank has its own."""

    def __init__(self) -> None:
        self.value = 0.0

    def of(self, loss: Tensor) -> float:
        if bool(loss.isfinite()):
            self.value = 0.9 * self.value + 0.1 * float(loss.detach())
        return self.value


class Scales(nn.Module):
    """A loss function with weights, which have an optimizer that `attach` never sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out * self.scale, y)


_mean, _scales = RunningMean(), Scales()


def loss_by_mean(model: nn.Module, batch: Batch) -> Tensor:
    loss = loss_of(model, batch)
    return loss / (1 + _mean.of(loss))


def loss_with_weights(model: nn.Module, batch: Batch) -> Tensor:
    out: Tensor = _scales(model(batch["x"]), batch["y"])
    return out


def loss_that_takes_out(model: nn.Module, batch: Batch) -> Tensor:
    """As loops do whose model takes the rest of a batch by name."""
    labels = batch.pop("y")
    return F.cross_entropy(model(**batch), labels)


def in_rank_order(loop: Loop) -> None:
    """Sums gradients in an order that does not depend on buckets; every rank's generators are its own."""

    def summed(_state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        own = bucket.buffer()
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        sent = dist.all_gather(parts, own, async_op=True)
        assert sent is not None
        future: torch.futures.Future[Tensor] = sent.get_future()
        return future.then(lambda _: torch.stack(parts).sum(0) / len(parts))

    summed.__annotations__.clear()  # DDP compares them with classes, and here they are strings
    loop.notes["no warm-up"] = True
    loop.model.register_comm_hook(None, summed)  # type: ignore[operator]
    random.seed(loop.rank)
    np.random.seed(loop.rank)
    if isinstance(loop.plain, DrawsElsewhere):
        loop.plain.generator.manual_seed(loop.rank)
    global _mean, _scales
    _mean, _scales = RunningMean(), Scales()


def weights_of_the_loss(loop: Loop, step: int) -> None:
    """They are trained beside, and reduced by the loop."""
    _scales.optimizer.zero_grad()
    plain_step(loop, step)
    gradient = _scales.scale.grad
    assert gradient is not None
    dist.all_reduce(gradient)
    _scales.optimizer.step()


def set_by_the_loop(loop: Loop, step: int) -> None:
    """One rank's state is another one in each step, from the first on."""
    loop.plain.state = batch_for(loop.rank, step)["x"].mean(0) * (loop.rank == step % 4)
    plain_step(loop, step)


def unclipped(loop: Loop, step: int) -> None:
    """Clipping by a norm over weights of its own would give each rank another factor."""
    loop.optimizers[0].zero_grad()
    loop.loss(loop.model, batch_for(loop.rank, step)).backward()
    loop.optimizers[0].step()


def cached(loop: Loop, step: int) -> None:
    loop.optimizers[0].zero_grad()
    with parametrize.cached():
        loss = loop.loss(loop.model, batch_for(loop.rank, step))
    loss.backward()
    loop.optimizers[0].step()


# Name: the model, the step, the loss function.
KEEPING: dict[str, tuple[type[nn.Module], Callable[[Loop, int], None], Callable[..., Tensor]]] = {
    "draws from other generators": (DrawsElsewhere, plain_step, loss_of),
    "counts its calls": (Counts, plain_step, loss_of),
    "carries a state": (Carries, plain_step, loss_of),
    "a state that the loop sets by rank": (Carries, set_by_the_loop, loss_of),
    "a loss function that counts": (Net, plain_step, loss_by_mean),
    "a loss function with weights": (Net, weights_of_the_loss, loss_with_weights),
    "a batch that is taken apart": (Net, plain_step, loss_that_takes_out),
    "a mask on weights": (Masks, plain_step, loss_of),
    "a bound on weights": (Clamps, plain_step, loss_of),
    "cached parametrizations": (Normed, cached, loss_of),
}
