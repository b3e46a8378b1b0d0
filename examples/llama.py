"""A small Llama-style decoder, its synthetic data and its loss: what the demo trains.

RMSNorm, rotary positions, grouped SwiGLU feed-forward, untied embeddings. Next step: `examples.train`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch users know
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes; the defaults make 0.4 million parameters, a few milliseconds a step on one CPU core."""

    vocabulary: int = 256
    width: int = 96
    layers: int = 3
    heads: int = 4
    feed_forward: int = 256
    context: int = 48  # tokens of one sequence that the model reads


class Attention(nn.Module):
    """Causal self-attention with rotary positions; (batch, tokens, width) in and out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(_rotate(q, rotation), _rotate(k, rotation), v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class FeedForward(nn.Module):
    """SwiGLU; `down` is the projection that the demo's faults strike."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.feed_forward, bias=False)
        self.up = nn.Linear(config.width, config.feed_forward, bias=False)
        self.down = nn.Linear(config.feed_forward, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.width)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Llama(nn.Module):
    """Token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""

    rotation: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.register_buffer("rotation", _rotary_angles(config.context, config.width // config.heads))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.rotation[: tokens.shape[1]])
        out: Tensor = self.head(self.norm(x))
        return out


def micro_batch(config: ModelConfig, seed: int, step: int, rank: int, sequences: int = 2) -> Tensor:
    """Return the token ids (sequences, context + 1) of one rank at one step: the first half, then its copy.

    A pure function of its arguments, so that a resumed run sees the same data.
    """
    mixed = ((seed * 1_000_003 + step) * 65_537 + rank) % 2**63  # any whole number is a seed
    generator = torch.Generator().manual_seed(mixed)
    half = (config.context + 2) // 2
    # squared uniform numbers crowd small ids, as words crowd small ranks in text
    ids = (torch.rand(sequences, half, generator=generator) ** 2 * config.vocabulary).long()
    return torch.cat([ids, ids], dim=1)[:, : config.context + 1]


def compute_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Next-token cross-entropy under bf16 autocast; `model` is the DDP wrapper, or its replay."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def _rotary_angles(tokens: int, head_width: int) -> Tensor:
    frequencies = 10_000.0 ** (-torch.arange(0, head_width, 2) / head_width)
    angles = torch.outer(torch.arange(tokens), frequencies)
    return torch.stack([angles.cos(), angles.sin()]).transpose(0, 1)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate pairs of (batch, heads, tokens, head width) by the angles (tokens, 2, head width / 2)."""
    cos, sin = rotation[:, 0].to(x.dtype), rotation[:, 1].to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
