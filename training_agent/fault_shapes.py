"""What a fault does to a tensor: one element, a column, lanes, noise, bits, a value. Pure.

Comes in: a tensor and a `Spot`. Goes out: which elements are touched and what they become. Numbers only: no
shape raises a flag that a check could look for. Next step: `fault_sites` puts it in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .digest import GOLDEN, mix
from .errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MASK = 0xFFFFFFFFFFFFFFFF


def scatter(seed: int) -> int:
    """A number that neighbouring seeds do not share (SplitMix64)."""
    return mix((seed * GOLDEN) & _MASK)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where in a tensor a defect sits: fixed by a seed and by which of several GPUs it is."""

    seed: int = 0
    index: int = 0

    def large(self, tensor: Tensor) -> int:
        """Flat index of the largest magnitude in a row chosen by seed and GPU: never about zero.

        The first half of the rows: a loss that drops the last positions still sees it; two GPUs get two rows.
        """
        values = tensor.detach()
        rows = values.reshape(-1, tensor.shape[-1]) if tensor.dim() else values.reshape(1, 1)
        choices = max(1, rows.shape[0] // 2)
        row = (scatter(self.seed) + self.index * max(1, choices // 2)) % choices
        if not rows[row].any():  # nothing there to multiply
            return int(rows.abs().float().argmax())
        return row * rows.shape[1] + int(rows[row].abs().float().argmax())

    def anywhere(self, choices: int) -> int:
        """One of `choices` places, whatever stands there; two GPUs get two where there are two."""
        return (scatter(self.seed) + self.index) % choices


class Shape(Protocol):
    """One way to be wrong."""

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """Flat indices, int64, of the elements that go wrong."""

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """What the touched elements become; same dtype and length."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element times `factor`."""

    factor: float = 1000.0

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """A large element."""
        return _indices(tensor, [spot.large(tensor)])

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """Scaled."""
        return values * self.factor


@dataclass(frozen=True, slots=True)
class Column:
    """One column (last dimension) times `factor`: an output channel."""

    factor: float = 1.1

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """Every row's element in one column."""
        import torch

        width = tensor.shape[-1] if tensor.dim() else 1
        first = spot.anywhere(width)
        return torch.arange(first, tensor.numel(), width, device=tensor.device)

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """Scaled."""
        return values * self.factor


@dataclass(frozen=True, slots=True)
class Noise:
    """Every element times (1 + fraction * z), z normal and the same at every strike."""

    fraction: float = 0.1

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """All."""
        import torch

        return torch.arange(tensor.numel(), device=tensor.device)

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """Noisy."""
        import torch

        generator = torch.Generator().manual_seed((spot.seed * 31 + spot.index) & 0x7FFFFFFF)
        z = torch.randn(values.shape, generator=generator, device="cpu").to(values.device)
        return (values.float() * (1 + self.fraction * z)).to(values.dtype)


@dataclass(frozen=True, slots=True)
class Value:
    """One element becomes `value`: NaN, Inf, 1e25."""

    value: float

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """A large element."""
        return _indices(tensor, [spot.large(tensor)])

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """That value."""
        import torch

        return torch.full_like(values, self.value)


@dataclass(frozen=True, slots=True)
class Flip:
    """Bits of one element toggled; bit 0 is the lowest of its pattern."""

    bits: tuple[int, ...]

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """Any element."""
        return _indices(tensor, [spot.anywhere(tensor.numel())])

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """Toggled."""
        return _on_bits(values, lambda words: words ^ _pattern(self.bits, words))


@dataclass(frozen=True, slots=True)
class StuckBit:
    """One bit of one element always 1 (`on`) or always 0; without effect where it has that value already."""

    bit: int
    on: bool = True

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """Any element."""
        return _indices(tensor, [spot.anywhere(tensor.numel())])

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """Forced."""
        return _on_bits(
            values,
            lambda words: (
                words | _pattern((self.bit,), words) if self.on else words & ~_pattern((self.bit,), words)
            ),
        )


@dataclass(frozen=True, slots=True)
class Lanes:
    """The same bit toggled in `count` adjacent elements: a defective vector lane group."""

    count: int
    bit: int

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """Adjacent elements, aligned to their number where they fit."""
        import torch

        count = min(self.count, tensor.numel())
        first = count * spot.anywhere(tensor.numel() // count)
        return torch.arange(first, first + count, device=tensor.device)

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """Toggled."""
        return _on_bits(values, lambda words: words ^ _pattern((self.bit,), words))


@dataclass(frozen=True, slots=True)
class Swap:
    """Two elements change places: every plain sum and every XOR stays."""

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """An element and the one half a tensor further."""
        return _two(tensor, spot)

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """The other way round."""
        return values.flip(0)


@dataclass(frozen=True, slots=True)
class Compensate:
    """`amount` added to one element's bit pattern and taken from another's: the plain sum stays."""

    amount: int = 4096

    def touches(self, tensor: Tensor, spot: Spot) -> Tensor:
        """An element and the one half a tensor further."""
        return _two(tensor, spot)

    def change(self, values: Tensor, spot: Spot) -> Tensor:
        """Up and down."""

        def shifted(words: Tensor) -> Tensor:
            return words + words.new_tensor([self.amount, -self.amount][: len(words)])

        return _on_bits(values, shifted)


def corrupted(tensor: Tensor, shape: Shape, spot: Spot, above: float | None = None) -> Tensor | None:
    """A copy of `tensor` that is wrong; None when no element goes wrong.

    Args:
        tensor: floating, any shape, not empty.
        above: only elements of larger magnitude go wrong: a lane that fails under certain operands.
    """
    wrong: Tensor = tensor.detach().reshape(-1).clone()
    indices = shape.touches(tensor, spot)
    if above is not None:
        indices = indices[wrong[indices].abs().float() > above]
    if not len(indices):
        return None
    wrong[indices] = shape.change(wrong[indices], spot)
    return wrong.reshape(tensor.shape)


def _indices(tensor: Tensor, indices: list[int]) -> Tensor:
    import torch

    return torch.tensor(indices, device=tensor.device)


def _two(tensor: Tensor, spot: Spot) -> Tensor:
    first = spot.anywhere(tensor.numel())
    return _indices(tensor, [first, (first + max(1, tensor.numel() // 2)) % tensor.numel()])


def _pattern(bits: tuple[int, ...], words: Tensor) -> int:
    width = 8 * words.element_size()
    pattern = 0
    for bit in bits:
        if not 0 <= bit < width:
            raise ConfigurationError(f"bit {bit}: this tensor's elements have bits 0 to {width - 1}")
        pattern ^= 1 << bit
    return pattern - (1 << width) if pattern >> (width - 1) else pattern  # words are signed


def _on_bits(values: Tensor, change: _Change) -> Tensor:
    return change(values.view(_words(values))).view(values.dtype)


def _words(values: Tensor) -> torch.dtype:
    import torch

    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]


class _Change(Protocol):
    def __call__(self, words: Tensor) -> Tensor: ...
