"""What the digest must see, whichever backend computes it."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.agent.digest_backends import NAMES, WORDS, Backend, backend_of, random_bytes, unsigned, words
from training_agent.digest import BLOCK, SPLIT_WORDS

INDEX = st.integers(0, WORDS - 1)
BITS = st.integers(1, 2**32 - 1)
Rows = list[tuple[int, ...]]


def flip(x: Tensor, index: int, bits: int) -> None:
    x[index] ^= bits - 2**32 if bits >= 2**31 else bits


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def backend(name: str) -> Backend:
    return backend_of(name)


@pytest.fixture
def trials(name: str) -> int:
    """An interpreter is a thousand times slower; that it is bit-equal to the others is tested elsewhere."""
    return 8 if name == "triton" else 150


def rows(backend: Backend, *tensors: Tensor) -> Rows:
    return unsigned(backend(tensors, SPLIT_WORDS))


def test_any_change_of_one_or_two_words_is_seen_by_the_two_sums_alone(backend: Backend, trials: int) -> None:
    @settings(max_examples=trials, database=None)
    @given(st.integers(0, 2**32), INDEX, BITS, INDEX, st.integers(0, 2**32 - 1))
    def holds(seed: int, first: int, bits: int, second: int, more: int) -> None:
        x = words(seed)
        y = x.clone()
        flip(y, first, bits)
        if second != first and more:
            flip(y, second, more)
        before, after = rows(backend, x, y)
        assert before[:2] != after[:2]

    holds()


def test_swap_is_seen(backend: Backend, trials: int) -> None:
    @settings(max_examples=trials, database=None)
    @given(st.integers(0, 2**32), INDEX, INDEX)
    def holds(seed: int, first: int, second: int) -> None:
        x = words(seed)
        if x[first] == x[second]:
            return
        y = x.clone()
        y[[first, second]] = x[[second, first]]
        before, after = rows(backend, x, y)
        assert before[0] == after[0], "the plain sum is blind to it"
        assert before[:2] != after[:2]

    holds()


def test_compensation_on_two_bit_patterns_is_seen(backend: Backend) -> None:
    x = words(1)
    y = x.clone()
    y[17] += 4096
    y[4711] -= 4096
    before, after = rows(backend, x, y)
    assert before[0] == after[0]
    assert before[:2] != after[:2]


@pytest.mark.parametrize("k", [4, 8, 16, 32])
def test_lane_pattern_that_cancels_in_both_sums_is_seen_by_the_hash(backend: Backend, k: int) -> None:
    """The same bit toggled in k adjacent words, up and down so that both linear sums cancel."""
    ups = [1, -1, -1, 1] * (k // 4)  # sum 0, and position-weighted sum 0
    x = words(2)
    pairs = []
    for start in (0, 64, BLOCK - 2, BLOCK, 2 * BLOCK - k):
        y = x.clone()
        lane = slice(start, start + k)
        y[lane] = (y[lane] & ~(1 << 9)) | torch.tensor([512 if u < 0 else 0 for u in ups], dtype=torch.int32)
        z = y.clone()
        z[lane] ^= 512
        pairs += [y, z]
    found = rows(backend, *pairs)
    for a, b in zip(found[::2], found[1::2], strict=True):
        assert a[:2] == b[:2], "the linear sums cancel"
        assert a[2] != b[2]


def test_random_lane_toggles_are_all_seen(backend: Backend, trials: int) -> None:
    rng = random.Random(3)
    x = words(3)
    before = rows(backend, x)[0]
    for _ in range(2 * trials):
        y = x.clone()
        start, stride, bit = rng.randrange(WORDS - 256), rng.choice([1, 2, 8]), rng.randrange(31)
        y[start : start + 32 * stride : stride] ^= 1 << bit
        assert rows(backend, y)[0] != before


def test_blocks_that_change_places_are_seen_by_the_hash(backend: Backend) -> None:
    x = words(4)
    before, after = rows(backend, x, torch.cat([x[BLOCK : 2 * BLOCK], x[:BLOCK], x[2 * BLOCK :]]))
    assert before[2] != after[2]


def test_split_keeps_every_one_and_two_word_change_visible(backend: Backend, name: str) -> None:
    x = random_bytes(4 * 64, seed=5).view(torch.int32).clone()
    changed = []
    for first in range(64):
        for second in range(first + 1, 64):
            y = x.clone()
            y[first] += 7
            y[second] -= 7  # same offset in two pieces: sums of sums would cancel
            changed.append(y)
    before = unsigned(backend([x], 16))[0][:2]
    some = changed[:: 100 if name == "triton" else 1]
    assert all(row[:2] != before for row in unsigned(backend(some, 16)))
