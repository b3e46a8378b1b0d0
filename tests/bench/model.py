"""The model that is trained, Llama-style: rotary attention, gated feed-forward, untied head; batch, loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


@dataclass(frozen=True, slots=True)
class Size:
    """One decoder."""

    layers: int
    width: int
    inner: int  # of the feed-forward
    heads: int
    vocabulary: int
    sequence: int  # tokens of a row, at most


TINY = Size(1, 64, 128, 2, 64, 32)
SMALL = Size(8, 384, 1024, 6, 1024, 256)  # 15M parameters
MIDDLE = Size(12, 768, 2048, 12, 10_000, 1024)  # 100M
LARGE = Size(16, 2048, 5632, 16, 32_000, 2048)  # 953M: the published set-up


class Block(nn.Module):
    """Attention and a gated feed-forward, each behind a norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, self.heads = size.width, size.heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, size.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(size.inner, width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            _rotated(q, rotation), _rotated(k, rotation), v, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, w))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Tokens int64 [batch, time] to logits."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList([Block(size) for _ in range(size.layers)])
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        frequency = 10_000.0 ** -(torch.arange(0, self.head_width, 2, device=x.device) / self.head_width)
        angle = torch.outer(torch.arange(tokens.shape[1], device=x.device), frequency)
        for block in self.blocks:
            x = block(x, (angle.cos(), angle.sin()))
        return self.head(self.norm(x))


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (r.to(x.dtype) for r in rotation)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def compute_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Cross entropy of the next token."""
    logits = model(tokens)
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def batch_for(size: Size, tokens: int, rank: int, step: int) -> Tensor:
    """Seeded tokens of one rank and step, int64 [rows, at most `sequence`]."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    rows = max(1, tokens // size.sequence)
    return torch.randint(0, size.vocabulary, (rows, tokens // rows), generator=generator)
