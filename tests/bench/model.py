"""The model that is trained: a decoder of chosen size, its batches and its loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


@dataclass(frozen=True, slots=True)
class Size:
    """One decoder; `width` is a multiple of 64, the width of a head."""

    layers: int
    width: int
    vocabulary: int


SMALL = Size(8, 384, 2048)  # 15M parameters
TINY = Size(1, 64, 64)
MIDDLE = Size(12, 768, 16384)  # 98M
LARGE = Size(17, 2048, 47104)  # 953M


class Block(nn.Module):
    """Attention and a wide layer, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """Tokens int64 [batch, time] to logits; embedding and head are tied."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.Sequential(*[Block(size.width) for _ in range(size.layers)])
        self.norm = nn.LayerNorm(size.width)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.norm(self.blocks(self.embed(tokens))), self.embed.weight)


def compute_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Cross entropy of the next token."""
    logits = model(tokens)
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def batch_for(size: Size, tokens: int, rank: int, step: int) -> Tensor:
    """Seeded tokens of one rank and step; rows of at most 256."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    rows = max(1, tokens // 256)
    return torch.randint(0, size.vocabulary, (rows, tokens // rows), generator=generator)
