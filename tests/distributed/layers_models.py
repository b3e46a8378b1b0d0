"""Models for the tests of layer audits: what divides well, and what a block's replay cannot know of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.distributed.models import scripted

WIDTH, WORDS, TOKENS = 8, 11, 5


class Layer(nn.Module):
    """Mixes tokens and features, with dropout; `down` is where faults strike."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))
        self.drop = nn.Dropout(0.1)

    @property
    def down(self) -> nn.Module:
        return self.feed_forward[2]

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.drop(self.feed_forward(x))


class Decoder(nn.Module):
    """Tokens to logits: embedding, two layers, norm, head; `through` is how a layer is called."""

    def __init__(self, layer: Callable[[], nn.Module] = Layer) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(layer() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def through(self, layer: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = layer(x)
        return out

    def top(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(x))
        return out

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = self.through(layer, x)
        return self.top(x)


class Checkpointed(Decoder):
    """Each layer is computed again in the backward."""

    def through(self, layer: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(layer, x, use_reentrant=False)
        return out


class CheckpointedTogether(Decoder):
    """Both layers are computed again before the backward of either begins."""

    def forward(self, tokens: Tensor) -> Tensor:
        def both(x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

        return self.top(checkpoint(both, self.embedding(tokens), use_reentrant=False))


class Bottleneck(nn.Module):
    """Convolutions with BatchNorm and a ReLU in place, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.down(x.transpose(1, 2))).transpose(1, 2)
        out = out + x
        return self.relu(out)


class Tied(Decoder):
    """The head holds the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight


class TiedByUse(Decoder):
    """The head is a call with the embedding's weight: no module shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Identity()  # type: ignore[assignment]

    def top(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight)


class TiedByData(Decoder):
    """Some batches lead to another use of a layer's weight, so that not all ranks have it."""

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = super().forward(tokens)
        if int(tokens.sum()) % 2:
            out = out + 1e-3 * self.layers[1].down.weight.sum()  # type: ignore[union-attr, operator]
        return out


class Router(Layer):
    """Keeps an inner value, as a mixture of experts keeps its balance loss."""

    kept: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.kept = (self.norm(x) ** 2).mean()
        return y


class Routed(Decoder):
    """The loss takes what a layer kept."""

    def __init__(self) -> None:
        super().__init__(Router)

    def top(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(x))
        return out + self.layers[0].kept  # type: ignore[operator]


class Notes:
    """An object that each layer writes to."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []


class Writing(Layer):
    """Takes such an object."""

    def forward(self, x: Tensor, notes: Notes | None = None) -> Tensor:
        if notes is not None:
            notes.seen.append(x.detach())
        return super().forward(x)


class Noted(Decoder):
    """Hands one on, as decoders do with a key-value cache."""

    def __init__(self) -> None:
        super().__init__(Writing)

    def forward(self, tokens: Tensor) -> Tensor:
        x, notes = self.embedding(tokens), Notes()
        for layer in self.layers:
            x = layer(x, notes)
        return self.top(x)


class Twice(Decoder):
    """Its layers share nothing and each is called twice."""

    def through(self, layer: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = layer(layer(x))
        return out


class Copying(Layer):
    """Keeps nothing of its input for the backward."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.0)


class WrittenTo(Decoder):
    """The residual stream is one tensor that is added to in place."""

    def __init__(self) -> None:
        super().__init__(Copying)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + 0.0
        for layer in self.layers:
            x += layer(x)
        return self.top(x)


class Scaled(Layer):
    """Multiplies by something that its model leaves in it, or beside it."""

    factor = 1.0
    beside: ClassVar[dict[str, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor * self.beside.get("factor", 1.0)


class Left(Decoder):
    """Leaves it in an attribute; what it is follows from the data, so that ranks differ."""

    def __init__(self) -> None:
        super().__init__(Scaled)

    def leave(self, factor: float) -> None:
        for layer in self.layers:
            layer.factor = factor  # type: ignore[assignment]

    def forward(self, tokens: Tensor) -> Tensor:
        self.leave(1.0 + int(tokens.sum()) % 2)
        return super().forward(tokens)


class LeftBeside(Left):
    """Leaves it as a tensor where no module is."""

    def leave(self, factor: float) -> None:
        Scaled.beside = {"factor": torch.tensor(factor)}


class HookedByData(Decoder):
    """The gradient that leaves a layer is halved where it has a certain sign."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.register_full_backward_hook(self._halved)  # type: ignore[arg-type]

    @staticmethod
    def _halved(_module: nn.Module, entering: tuple[Tensor | None, ...], _left: Any) -> Any:
        return tuple(g if g is None or float(g.sum()) > 0 else g / 2 for g in entering)


class Telling(Layer):
    """Writes down whether it runs deterministic kernels, forward and backward."""

    told: ClassVar[list[tuple[str, int, str]]] = []  # when, which layer, in what
    now: ClassVar[Callable[[], str]] = staticmethod(lambda: "")
    number = 0
    passes = False

    def forward(self, x: Tensor) -> Tensor:
        if self.passes:
            return x
        self.tell("forward")
        inner = super().forward(x)
        inner.register_hook(lambda _gradient: self.tell("backward"))  # type: ignore[no-untyped-call]
        return inner * 1.0

    def tell(self, what: str) -> None:
        if torch.are_deterministic_algorithms_enabled():
            self.told.append((self.now(), self.number, what))


class Told(Decoder):
    """Two such layers."""

    def __init__(self) -> None:
        super().__init__(Telling)
        for i, layer in enumerate(self.layers):
            layer.number = i  # type: ignore[assignment]


class ToldPassing(Told):
    """The first layer fails and is tried again; the second one returns what it was given."""

    def forward(self, tokens: Tensor) -> Tensor:
        x: Any = self.embedding(tokens)
        with suppress(TypeError):
            self.layers[0](None)
        x = self.layers[0](x)
        self.layers[1].passes = True  # type: ignore[assignment]
        unused = sum(p.sum() for p in self.layers[1].parameters())
        return self.top(self.layers[1](x)) + 0.0 * unused


class Penalized(Layer):
    """Takes a gradient of its own in its forward."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y + 1e-3 * slope


class Skipping(Decoder):
    """The stream is read by later layers as well: three uses, in and out of the first layer."""

    def forward(self, tokens: Tensor) -> Tensor:
        first = self.embedding(tokens)
        x = first
        for layer in self.layers:
            x = layer(x) + first
        return self.top(x)


class ScriptedLayers(Decoder):
    """Two layers that a compiler of torch's older kind has."""

    def __init__(self) -> None:
        super().__init__(lambda: scripted(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())))


@dataclass(frozen=True)
class Kind:
    """A model and how it is trained."""

    model: Callable[[], nn.Module] = Decoder
    bf16: bool = False
    accumulate: int = 1
    with_loss: bool = True
    schedule: dict[str, Any] = field(default_factory=dict)
    attach: dict[str, Any] = field(default_factory=dict)
    fused: bool = False
    steps: int = 11
    compiled: bool = False
    scaler: float = 0.0  # where it begins


SKIPPING = Kind(Skipping, steps=6)
HEALTHY = {
    "dropout": Kind(),
    "bf16": Kind(bf16=True),
    "accumulation": Kind(accumulate=2, steps=10),
    "checkpointing": Kind(Checkpointed, bf16=True),
    "checkpointing over two": Kind(CheckpointedTogether),
    "all of it": Kind(Checkpointed, bf16=True, accumulate=2, steps=10),
    "BatchNorm": Kind(lambda: Decoder(Bottleneck)),
    "tied": Kind(Tied),
    "a gradient inside": Kind(lambda: Decoder(Penalized)),
    "without compute_loss": Kind(with_loss=False),
    "forward only": Kind(schedule={"kernels": "default"}),
    "deferred": Kind(fused=True, attach={"mode": "deferred"}),
    "whole audits between": Kind(schedule={"audit_every": 3}, steps=8),
    "budget": Kind(schedule={"layer_every": None, "layer_budget": 0.9}, steps=24),
}

# What a block's replay cannot know of: which blocks are off, how many audits were skipped, and why.
UNFIT = {
    "tied by use": (Kind(TiedByUse, steps=8), ["embedding"], 1, "is used outside of it as well"),
    "another use on some ranks": (Kind(TiedByData, steps=8), ["layers.1"], 1, "is used outside of it"),
    "an inner value in the loss": (Kind(Routed, steps=8), ["layers.0"], 1, "is used outside of it as well"),
    "an object among the arguments": (Kind(Noted, steps=8), [], 4, "takes a Notes, which its forward may"),
    "called twice": (Kind(Twice, steps=8), [], 4, "was called 2 times in its micro-batch"),
    "written to": (Kind(WrittenTo, steps=8), [], 4, "was changed in place after its forward began"),
    "left in an attribute": (Kind(Left, steps=8), [], 2, ""),
    "left beside, accumulation": (Kind(LeftBeside, steps=8, accumulate=2), [], 4, ""),
    "backward hooks": (Kind(HookedByData, steps=8), [], 4, ""),
    "scripted": (Kind(ScriptedLayers, steps=8), ["layers.0, block layers.1"], 0, "takes no hooks"),
    "compiled": (Kind(compiled=True, steps=4), None, 0, "torch.compile has compiled code of this job"),
}
SCALED = Kind(scaler=2.0**18, steps=8)
TELLING = Kind(Told, steps=5)
PASSING = Kind(ToldPassing, steps=5)
