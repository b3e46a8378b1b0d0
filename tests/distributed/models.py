"""Models, loops and optimizers that people really have, each as one `Case` for four ranks.

Comes in: rank. Goes out: how to build the model and how one step runs. Next: `models_worker` trains each one
guarded, unguarded and with a fault.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from training_agent import Schedule
from training_agent.schedule import ScheduleWarning

Batch = dict[str, Any]


class Net(nn.Module):
    """Two layers and a head; `down` is where faults strike."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 12)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(12, 8)
        self.head = nn.Linear(8, 4)

    def body(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(F.gelu(self.up(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Branching(Net):
    """The data decide which layer is left out, so it differs by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        for i, branch in enumerate(self.branches):
            if i != int(100 * x[0, 0].abs()) % 4:
                hidden = hidden + branch(hidden)
        return self.head(hidden)


class Tied(Net):
    """Two names for one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(torch.tanh(self.body(self.first(x)))))


class Stateful(Net):
    """BatchNorm, and a moving average that the forward reads and replaces."""

    ema: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("ema", torch.zeros(8))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.body(x))
        self.ema = 0.9 * self.ema + 0.1 * hidden.detach().mean(0)
        self.seen += 1
        return self.head(hidden - self.ema)


class Checkpointed(Net):
    """The body is computed again in the backward."""

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = checkpoint(self.body, x, use_reentrant=False)
        return self.head(hidden)


class Reentrant(Net):
    """The same with the old kind of checkpointing."""

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = checkpoint(self.body, x.requires_grad_(), use_reentrant=True)
        return self.head(hidden)


class ReturnsLoss(Net):
    """As Hugging Face models do."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        return {"loss": F.cross_entropy(logits, y), "logits": logits}


class Noise(torch.autograd.Function):
    """Claims nothing and delivers another gradient each time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
        return gradient + 1e-6 * torch.randn(gradient.shape, generator=generator)


class NoisyBackward(Net):
    """A kernel that is not reproducible, in the backward."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(Noise.apply(self.body(x)))


class NoisyForward(Net):
    """The same in the forward."""

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
        return super().forward(x + 1e-6 * torch.randn(x.shape, generator=generator))


class Odd(Net):
    """Takes an empty tensor, a mask, a slice that begins anywhere."""

    def forward(self, x: Tensor, mask: Tensor, empty: Tensor, odd: Tensor) -> Tensor:  # type: ignore[override]
        hidden = self.body(x).masked_fill(mask[:, None], 0.5)
        return self.head(hidden + odd.float().mean() + empty.sum())


class Talking(Net):
    """Communicates inside its forward, as SyncBatchNorm does."""

    def forward(self, x: Tensor) -> Tensor:
        mean = self.body(x).detach().mean(0)
        dist.all_reduce(mean)
        return self.head(self.body(x) - mean)


def batch_for(rank: int, step: int, micro: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + micro)
    return {
        "x": torch.randn(6, 8, generator=generator),
        "y": torch.randint(0, 4, (6,), generator=generator),
    }


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def loss_of_odd(model: nn.Module, batch: Batch) -> Tensor:
    mask = torch.arange(len(batch["y"])) > 3
    odd = torch.arange(9, dtype=torch.uint8)[1:8]
    return F.cross_entropy(model(batch["x"], mask, torch.empty(0, 3), odd), batch["y"])


@dataclass(slots=True)
class Loop:
    """What a step of some case works on."""

    model: nn.Module  # as wrapped
    plain: nn.Module
    optimizers: list[Optimizer]
    loss: Callable[..., Tensor]
    rank: int
    guard: Any  # None in an unguarded run
    scaler: Any = None
    notes: dict[str, Any] = field(default_factory=dict)


def plain_step(loop: Loop, step: int) -> None:
    loop.optimizers[0].zero_grad()
    loop.loss(loop.model, batch_for(loop.rank, step)).backward()
    nn.utils.clip_grad_norm_(loop.plain.parameters(), 1.0)
    loop.optimizers[0].step()


def accumulate(loop: Loop, step: int) -> None:
    """Three micro-batches, the first two under no_sync."""
    loop.optimizers[0].zero_grad()
    for micro in range(3):
        with loop.model.no_sync() if micro < 2 else nullcontext():
            (loop.loss(loop.model, batch_for(loop.rank, step, micro)) / 3).backward()
    loop.optimizers[0].step()


def freeze_and_thaw(loop: Loop, step: int) -> None:
    for p in loop.plain.up.parameters():
        p.requires_grad_(not 3 <= step <= 4)
    plain_step(loop, step)


def replace_data(loop: Loop, step: int) -> None:
    if step == 3:
        for p in loop.plain.parameters():
            p.data = p.data.clone()
    plain_step(loop, step)


def several_forwards(loop: Loop, step: int) -> None:
    """Two forwards, one backward."""
    loop.optimizers[0].zero_grad()
    first = loop.loss(loop.model, batch_for(loop.rank, step))
    second = loop.loss(loop.model, batch_for(loop.rank, step, 1))
    (first + second).backward()
    loop.optimizers[0].step()


def evaluate_between(loop: Loop, step: int) -> None:
    plain_step(loop, step)
    loop.model.eval()
    with torch.no_grad():
        loop.loss(loop.model, batch_for(loop.rank, step, 7))
    loop.model.train()


def forgotten_no_grad(loop: Loop, step: int) -> None:
    """An evaluation that builds a graph which nobody uses."""
    loop.model.eval()
    loop.loss(loop.model, batch_for(loop.rank, step, 7))
    loop.model.train()
    plain_step(loop, step)


def two_optimizers(loop: Loop, step: int) -> None:
    for optimizer in loop.optimizers:
        optimizer.zero_grad()
    loop.loss(loop.model, batch_for(loop.rank, step)).backward()
    for optimizer in loop.optimizers:
        optimizer.step()


def closure(loop: Loop, step: int) -> None:
    """As Lightning does."""

    def run() -> Tensor:
        loop.optimizers[0].zero_grad()
        loss = loop.loss(loop.model, batch_for(loop.rank, step))
        loss.backward()
        return loss

    loop.optimizers[0].step(run)


def returned_loss(loop: Loop, step: int) -> None:
    loop.optimizers[0].zero_grad()
    batch = batch_for(loop.rank, step)
    loop.model(batch["x"], batch["y"])["loss"].backward()
    loop.optimizers[0].step()


def scaled(loop: Loop, step: int) -> None:
    """fp16 style: rank 2 overflows now and then, which the scaler answers by skipping the step."""
    loop.optimizers[0].zero_grad()
    batch = batch_for(loop.rank, step)
    if loop.rank == 2 and step in loop.notes.get("overflows", ()):
        batch["x"][0, 0] = float("inf")
    loop.scaler.scale(loop.loss(loop.model, batch)).backward()
    loop.scaler.step(loop.optimizers[0])
    loop.scaler.update()


def adamw(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-2)]


def fused(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)]


def split(model: nn.Module) -> list[Optimizer]:
    parameters = list(model.parameters())
    return [torch.optim.SGD(parameters[:3], lr=1e-2), torch.optim.AdamW(parameters[3:], lr=1e-2)]


@dataclass(frozen=True)
class Case:
    """One model with its loop."""

    build: Callable[[], nn.Module] = Net
    step: Callable[[Loop, int], None] = plain_step
    optimizers: Callable[[nn.Module], list[Optimizer]] = adamw
    ddp: dict[str, Any] = field(default_factory=dict)
    loss: Callable[..., Tensor] | None = loss_of  # None: the loop goes past guard.compute_loss
    prepare: Callable[[Loop], None] | None = None  # before attach
    schedule: Schedule = field(default_factory=lambda: Schedule(2, 2, None))
    options: dict[str, Any] = field(default_factory=dict)  # of attach
    compiled: str = ""  # "inside" or "outside" DDP
    steps: int = 7
    scaler: bool = False


def _count_calls(loop: Loop) -> None:
    loop.notes["calls"] = 0

    def hook(_module: nn.Module, _args: Any, _output: Tensor) -> None:
        loop.notes["calls"] += 1

    loop.plain.drop.register_forward_hook(hook)


def _user_hooks(loop: Loop) -> None:
    """A tensor hook that changes the gradient, and a post-accumulate hook that counts."""
    loop.notes["accumulated"] = 0

    def counts(_parameter: Tensor) -> None:
        loop.notes["accumulated"] += 1

    loop.plain.down.weight.register_hook(lambda gradient: gradient * 0.5)
    loop.plain.up.weight.register_post_accumulate_grad_hook(counts)


def _local_sgd(loop: Loop) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd

    state = local_sgd.PostLocalSGDState(None, None, start_localSGD_iter=100)
    loop.model.register_comm_hook(state, local_sgd.post_localSGD_hook)


def _note_returned(loop: Loop) -> None:
    loop.notes["returned"] = True  # for the warm-up of unguarded runs


def _schedule(**options: Any) -> Schedule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        return Schedule(2, 2, None, **options)


_DEFERRED = {"mode": "deferred"}

CASES: dict[str, Case] = {
    "plain": Case(),
    "deferred": Case(optimizers=fused, options=_DEFERRED),
    "deferred, not fused": Case(options=_DEFERRED),
    "deferred, fused SGD": Case(
        optimizers=lambda m: [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, fused=True)],
        options=_DEFERRED,
    ),
    "accumulation": Case(step=accumulate),
    "accumulation without compute_loss": Case(step=accumulate, loss=None),
    "unused parameters": Case(Branching, ddp={"find_unused_parameters": True}),
    "frozen and thawed": Case(step=freeze_and_thaw, ddp={"find_unused_parameters": True}),
    "tied weights": Case(Tied),
    "data replaced": Case(step=replace_data),
    "buffers": Case(Stateful, ddp={"gradient_as_bucket_view": True}),
    "buffers, deferred": Case(Stateful, optimizers=fused, options=_DEFERRED),
    "forward hook": Case(prepare=_count_calls),
    "users' hooks": Case(prepare=_user_hooks),
    "checkpointing": Case(Checkpointed),
    "compiled inside": Case(compiled="inside"),
    "closure": Case(step=closure),
    "closure, deferred": Case(step=closure, optimizers=fused, options=_DEFERRED),
    "evaluation between": Case(step=evaluate_between),
    "two optimizers": Case(step=two_optimizers, optimizers=split),
    "odd tensors": Case(Odd, loss=loss_of_odd),
    "returned loss": Case(ReturnsLoss, step=returned_loss, loss=None, prepare=_note_returned),
    "scaler": Case(step=scaled, scaler=True),
    "scaler, fused": Case(step=scaled, scaler=True, optimizers=fused),
    "scaler, fused, deferred": Case(step=scaled, scaler=True, optimizers=fused, options=_DEFERRED),
    "forward-only audits": Case(schedule=_schedule(deterministic=False)),
    "fixed partners": Case(schedule=_schedule(partner="fixed")),
}

# Trained without an alarm, not audited: skipped on all ranks and counted, or off by name.
UNAUDITED: dict[str, Case] = {
    "several forwards": Case(step=several_forwards),
    "reentrant checkpointing": Case(Reentrant),
    "forgotten no_grad": Case(step=forgotten_no_grad),
    "local SGD": Case(prepare=_local_sgd),
    "noisy forward": Case(NoisyForward),
}
NOISY = Case(NoisyBackward, schedule=Schedule(1, 10, None), steps=20)
