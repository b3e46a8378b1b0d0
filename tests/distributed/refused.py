"""What cannot be guarded, each as one `Case`. Next: `models_worker` shows that no rank applies an update."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.distributed import loops, models
from tests.distributed.cases import Case
from tests.distributed.loops import Loop
from training_agent import Schedule
from training_agent.schedule import ScheduleWarning


class SAM(torch.optim.SGD):
    """Sharpness-aware minimisation goes by this name everywhere."""


class Twice(torch.optim.SGD):
    """The same under a name that nobody knows."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        closure()
        loss = closure()
        super().step()
        return loss


class Wrapping(torch.optim.Optimizer):
    """Around another one, as look-ahead is; torch knows nothing of it."""

    def __init__(self, inner: Optimizer) -> None:
        self.__dict__ = inner.__dict__ | {"inner": inner}

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return self.inner.step(closure)


class Complex(models.Net):
    """A parameter with an imaginary part."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.phase.abs()


class Sparse(models.Net):
    """Gradients of an embedding that hold the rows which were used."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 8, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.table(torch.arange(len(x))))


class Putting(models.Net):
    """Calls an operator that has no deterministic kernel on any device."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clone().put_(torch.tensor([3]), torch.ones(1)))


def _step_in_hook(loop: Loop) -> None:
    """Optimizer-in-backward, by a user's own hook."""
    loop.plain.up.weight.register_post_accumulate_grad_hook(lambda _p: loop.optimizers[0].step())


def _fused_into_backward(loop: Loop) -> None:
    """Optimizer-in-backward, torch's own way."""
    from torch.distributed.optim import _apply_optimizer_in_backward

    _apply_optimizer_in_backward(torch.optim.SGD, loop.plain.up.parameters(), {"lr": 0.1})


def from_an_iterator(loop: Loop, _step: int) -> None:
    """The loss function takes the next batch itself."""
    batches = iter([models.batch_for(loop.rank, 1)])
    loop.loss(loop.model, batches).backward()


def uneven(loop: Loop, step: int) -> None:
    """Ranks run out of batches one after the other."""
    with loop.model.join():  # type: ignore[operator]
        for number in range(1 + loop.rank):
            loops.plain_step(loop, step + number)


def loss_of_next(model: nn.Module, batches: Iterator[models.Batch]) -> Tensor:
    return models.loss_of(model, next(batches))


def under_anomaly_mode(loop: Loop, step: int) -> None:
    """It would end the one rank that has a NaN, inside its backward."""
    with torch.autograd.detect_anomaly():
        loops.plain_step(loop, step)


def _forced_without_audits() -> Schedule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        return Schedule(None, 2, None, kernels="forced")  # type: ignore[arg-type]


def sharded(model: nn.Module) -> list[Optimizer]:
    """ZeRO-1 around SGD."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns of its own where it is imported

    return [ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)]


def sgd(kind: type[torch.optim.SGD]) -> Callable[[nn.Module], list[Optimizer]]:
    return lambda model: [kind(model.parameters(), lr=0.1)]


# Name: the case, and what the refusal must say.
REFUSED: dict[str, tuple[Case, str]] = {
    "collective inside": (Case(models.Talking), "communicates inside its own forward"),
    "LBFGS": (
        Case(optimizers=lambda m: [torch.optim.LBFGS(m.parameters())]),
        "LBFGS evaluates its closure several times",
    ),
    "SAM": (Case(optimizers=sgd(SAM)), "SAM evaluates its closure several times"),
    "an optimizer without hooks": (
        Case(optimizers=lambda m: [Wrapping(torch.optim.SGD(m.parameters(), lr=0.1))]),
        "Wrapping.step() runs no optimizer hooks, so no update would be seen",
    ),
    "closure twice": (Case(optimizers=sgd(Twice), step=loops.closure), "called its closure twice"),
    "half of the parameters": (
        Case(optimizers=lambda m: [torch.optim.SGD(m.up.parameters(), lr=0.1)]),  # type: ignore[union-attr]
        "are in no optimizer given to attach()",
    ),
    "ZeRO-1": (
        Case(optimizers=sharded),
        "ZeroRedundancyOptimizer shards its state over the ranks (ZeRO): each shard exists once",
    ),
    "step in a hook": (Case(prepare=_step_in_hook), "was called inside the backward (optimizer-in-backward)"),
    "fused into the backward": (Case(prepare=_fused_into_backward), "up.weight, up.bias: an optimizer is"),
    "no deterministic kernel": (
        Case(Putting),
        "The model cannot be audited: put_ does not have a deterministic",
    ),
    "no deterministic kernel, forced": (
        Case(Putting, schedule=_forced_without_audits()),
        "The model cannot train with kernels='forced': put_ does not have a deterministic",
    ),
    "retry without compute_loss": (
        Case(loss=None, options={"policy": "retry"}),
        "policy='retry' computes a step again, which needs the loss function",
    ),
    "anomaly mode": (
        Case(step=under_anomaly_mode),
        "Autograd's anomaly mode (detect_anomaly) ends the backward",
    ),
    "a batch from an iterator": (
        Case(step=from_an_iterator, loss=loss_of_next),
        "guard.compute_loss() got a list_iterator: a replay would take the next batch out of it",
    ),
    "join": (Case(step=uneven), "Inside ddp.join() a rank without batches answers DDP's collectives alone"),
    "scripted": (
        Case(lambda: models.scripted(models.Net())),
        "The model as a whole is scripted (torch.jit.script), and takes no hooks",
    ),
    "complex parameter": (Case(Complex), "phase: complex parameters are not checked"),
    "sparse gradient": (Case(Sparse), "table (Embedding): sparse gradients are not checked"),
}
