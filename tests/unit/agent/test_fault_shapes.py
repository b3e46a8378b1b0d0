"""What each shape does to a tensor: exactly that, at a place fixed by the seed, in every dtype."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from training_agent.errors import ConfigurationError
from training_agent.faults import (
    Column,
    Compensate,
    Element,
    Flip,
    Lanes,
    Noise,
    Shape,
    Spot,
    StuckBit,
    Swap,
    Value,
    corrupted,
)

WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def sample(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(5)).to(dtype)


def changed(shape: Shape, tensor: Tensor, seed: int = 0, index: int = 0) -> list[int]:
    wrong = corrupted(tensor, shape, Spot(seed, index))
    assert wrong is not None
    assert (wrong.dtype, wrong.shape) == (tensor.dtype, tensor.shape)
    words = WORDS[tensor.dtype]
    return (wrong.view(words) ^ tensor.view(words)).flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        (Element(1000.0), 1),
        (Column(1.1), 6),
        (Noise(0.1), 48),
        (Flip((3,)), 1),
        (Flip((0, 7)), 1),
        (Lanes(8, 2), 8),
        (Value(float("inf")), 1),
        (Value(float("nan")), 1),
        (Swap(), 2),
        (Compensate(), 2),
    ],
)
def test_shape_touches_exactly_its_elements(shape: Shape, count: int) -> None:
    for seed in range(5):
        assert len(changed(shape, sample(), seed)) == count


@pytest.mark.parametrize("dtype", list(WORDS))
def test_any_bit_of_any_width_can_be_flipped(dtype: torch.dtype) -> None:
    for bit in range(8 * sample(dtype).element_size()):
        for seed in range(4):
            wrong = corrupted(sample(dtype), Flip((bit,)), Spot(seed))
            assert wrong is not None
            difference = wrong.view(WORDS[dtype]) ^ sample(dtype).view(WORDS[dtype])
            width = 8 * difference.element_size()
            assert [int(d) % 2**width for d in difference.flatten() if d] == [1 << bit]


def test_a_bit_that_the_type_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="bits 0 to 15"):
        corrupted(sample(torch.bfloat16), Flip((16,)), Spot())


def test_stuck_bit_has_no_effect_where_it_has_that_value() -> None:
    wrong = corrupted(sample(), StuckBit(22, on=True), Spot(3))
    assert wrong is not None
    again = corrupted(wrong, StuckBit(22, on=True), Spot(3))
    off = corrupted(wrong, StuckBit(22, on=False), Spot(3))
    assert again is not None and off is not None
    assert torch.equal(again, wrong) and not torch.equal(off, wrong)


def test_lanes_are_adjacent_and_share_the_bit() -> None:
    first, *rest = changed(Lanes(4, 5), sample(), seed=9)
    assert rest == [first + 1, first + 2, first + 3] and first % 4 == 0


def test_column_is_one_column() -> None:
    assert len({i % 8 for i in changed(Column(1.1), sample())}) == 1


def test_compensation_and_swap_keep_the_plain_sum_of_the_words() -> None:
    for shape in (Compensate(), Swap()):
        wrong = corrupted(sample(), shape, Spot(1))
        assert wrong is not None
        assert (
            wrong.view(torch.int32).to(torch.int64).sum() == sample().view(torch.int32).to(torch.int64).sum()
        )


def test_only_operands_above_the_magnitude_go_wrong() -> None:
    high = float(sample().abs().max())
    assert corrupted(sample(), Noise(), Spot(), above=high) is None
    wrong = corrupted(sample(), Noise(), Spot(), above=high * 0.5)
    assert wrong is not None
    moved = wrong != sample()
    assert 0 < moved.sum() < 24 and bool((sample()[moved].abs() > high * 0.5).all())


def test_the_same_seed_gives_the_same_bits_and_two_gpus_give_others() -> None:
    for shape in (Element(), Noise(), Flip((3,)), Lanes(4, 3), Column()):
        assert torch.equal(*(corrupted(sample(), shape, Spot(2)) for _ in range(2)))
        assert changed(shape, sample(), 2, 0) != changed(shape, sample(), 2, 1) or shape == Noise()
    assert not torch.equal(*(corrupted(sample(), Noise(), Spot(2, i)) for i in range(2)))


def test_scalars_can_be_struck() -> None:
    assert corrupted(torch.tensor(2.0), Element(1.7), Spot()) == pytest.approx(3.4)
