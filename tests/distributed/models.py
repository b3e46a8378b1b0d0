"""Models that people really have, and data. Next: `loops` has the steps, `cases` puts both together."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

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


class Scaled(Net):
    """Its setting is one of the class until somebody sets it."""

    scale = 1.0

    def body(self, x: Tensor) -> Tensor:
        return super().body(x) * self.scale


class Repeated(Net):
    """One layer under two names, as encoder and decoder hold one embedding: with weights and statistics."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.again = nn.ModuleList([layer, layer])

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        for layer in self.again:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def scripted(layer: nn.Module) -> nn.Module:
    """The layer as torch's older compiler makes it, which models still have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return torch.jit.script(layer)


class PartlyScripted(Net):
    """Two of its layers are scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(scripted(nn.Sequential(nn.Linear(8, 8), nn.Tanh())) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.body(x)))


class Remembering(Net):
    """Writes a memory of 33 MiB that is no buffer, each rank what it saw itself."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.zeros(33 << 18)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.memory[0]
        self.memory[0] += x.detach().mean()
        return super().forward(x)


class Routed(Net):
    """One product stays float32 under autocast, as routers do; so does its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        with torch.autocast("cpu", enabled=False):
            weights = torch.softmax(self.route(hidden.float()), dim=-1)
        return self.head(hidden * weights)


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


class Positions(Net):
    """Makes its table when it first needs it."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.arange(8.0).sin(), persistent=False)
        out: Tensor = super().forward(x + self.table)
        return out


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


class Cache:
    """Keys and values that later forwards would read; torch cannot take it apart."""

    def __init__(self, *kept: Tensor) -> None:
        self.kept = kept


class ReturnsCache(Net):
    """As Hugging Face's decoders do: what the loss inside came from lies in an object beside it."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:  # type: ignore[override]
        logits = super().forward(x)
        read, unread = logits.split([logits.shape[1] - 1, 1], dim=1)
        loss = F.cross_entropy(read, y.clamp(max=read.shape[1] - 1))
        return {"loss": loss, "logits": read * 2, "cache": Cache(read, unread)}


class ReturnsMore(Net):
    """Beside loss and logits what has no bytes of its own, or no norm."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        seen = logits.detach()
        return {
            "eight bits": seen.to(torch.float8_e4m3fn),
            "sparse": seen.relu().to_sparse(),
            "compressed": seen.relu().to_sparse_csr(),
            "ragged": torch.nested.nested_tensor([seen[0], seen[1, :2]], layout=torch.jagged),
            "no memory": seen.to("meta"),
            "loss": F.cross_entropy(logits, y),
            "logits": logits,
        }


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


def ragged_batch(rank: int, step: int) -> Batch:
    """Rank 1 has as many rows as the others up to step 3, then fewer; rank 2 has fewer in every step."""
    rows = 4 if rank == 2 or (rank == 1 and step > 3) else 6
    return {name: values[:rows] for name, values in batch_for(rank, step).items()}


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def loss_of_odd(model: nn.Module, batch: Batch) -> Tensor:
    mask = torch.arange(len(batch["y"])) > 3
    odd = torch.arange(9, dtype=torch.uint8)[1:8]
    return F.cross_entropy(model(batch["x"], mask, torch.empty(0, 3), odd), batch["y"])
