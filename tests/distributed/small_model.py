"""The model, loss, data and fake nodes of the distributed tests."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from training_agent.contract import Job
from training_agent.settings import AgentSettings

GPUS = 2  # per fake node
LOSS_FACTOR = 1.0  # a fault in the loss function of one rank


class Block(nn.Module):
    """Norm, wide layer, dropout (so that RNG matters), narrow layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.up = nn.Linear(width, 2 * width)
        self.drop = nn.Dropout(0.2)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    """Two blocks between two tied-size layers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x)))


def compute_loss(model: nn.Module, batch: dict[str, Tensor], *, scale: float = 1.0) -> Tensor:
    """Cross entropy under bf16 autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch["x"])
    return F.cross_entropy(logits.float(), batch["y"]) * (scale * LOSS_FACTOR)


def batch_for(rank: int, step: int) -> dict[str, Tensor]:
    """Seeded data, other for each rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {
        "x": torch.randn(12, 8, generator=generator),
        "y": torch.randint(0, 4, (12,), generator=generator),
    }


def settings_for(rank: int) -> AgentSettings:
    """Fake nodes with GPUS ranks each."""
    node = rank // GPUS
    return AgentSettings(
        cluster="test",
        job=Job("job", "uid"),
        node=f"hyperpod-i-{node:017x}",
        gpu_uuids=tuple(f"GPU-{node}-{i}" for i in range(GPUS)),
    )


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over parameters and buffers."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def fingerprint_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over moments and counters."""
    digest = hashlib.sha256()
    for state in optimizer.state.values():
        for key in sorted(state):
            digest.update(state[key].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
