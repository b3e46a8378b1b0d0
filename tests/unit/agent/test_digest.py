"""The portable digest against the specification, and what it must see."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from training_agent._evidence import Depth, Evidence
from training_agent.digest import BLOCK, DIGEST_VERSION, digest, key_block, reference_digest

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EIGHT_BIT_FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32]
OTHERS = [torch.bool, torch.complex64, torch.complex128, torch.complex32]
SIZES = [0, 1, 2, 3, 5, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]


def unsigned(table: Tensor) -> list[tuple[int, ...]]:
    return [tuple(word % 2**64 for word in row) for row in table.tolist()]


def raw_bytes(tensor: Tensor) -> bytes:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


def random_bytes(count: int, seed: int = 0) -> Tensor:
    if count == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(random.Random(seed).randbytes(count)), dtype=torch.uint8)


def of_dtype(dtype: torch.dtype, count: int) -> Tensor:
    """Arbitrary bits as a tensor, NaN payloads included."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    raw = random_bytes(count * torch.empty(0, dtype=dtype).element_size())
    return (raw % 2).view(torch.bool) if dtype is torch.bool else raw.view(dtype)


def check(tensors: Sequence[Tensor]) -> None:
    assert unsigned(digest(tensors)) == [reference_digest(raw_bytes(t)) for t in tensors]


def test_version_one_is_pinned() -> None:
    """Manifests and alarms carry the version: other words need another number."""
    assert DIGEST_VERSION == 1
    assert key_block()[:2] == (4256627204, 4078953250)
    assert reference_digest(b"") == (0, 0, 0x8D4482AB6DD6C67E)
    assert reference_digest(bytes(range(256)) * 129 + b"abc") == (
        0x1050707301E1,
        0x107C5E59B5D0FA1,
        0x8BD55F0DAAB2201,
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", FLOATS + EIGHT_BIT_FLOATS + INTEGERS + OTHERS, ids=str)
def test_portable_equals_reference_for_every_dtype_and_size(dtype: torch.dtype) -> None:
    check([of_dtype(dtype, size) for size in SIZES])


@pytest.mark.parametrize("tile", [1, 3])
def test_any_tile_size_gives_the_same_bits(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training_agent._digest_portable._TILE_BLOCKS", {"cpu": tile})
    check([random_bytes(4 * (size * BLOCK + 7), seed=size) for size in range(5)])


def test_layouts_that_are_not_plain_memory() -> None:
    x = of_dtype(torch.float32, 60).view(6, 10)
    odd = random_bytes(401)
    check(
        [
            x.t(),
            x[:, ::3],
            x[1:, 2:],
            x[0].expand(7, 10),
            x.view(1, 6, 1, 10).to(memory_format=torch.channels_last),
            odd[1:],
            odd[3:400],
            odd[1:201].view(torch.uint8),
            odd[2:202].view(torch.bfloat16),
            x[0, 0],
            torch.nn.Parameter(x.clone()),
        ]
    )
    z = of_dtype(torch.complex64, 9)
    assert unsigned(digest([z.conj()])) == [reference_digest(raw_bytes(z.conj().resolve_conj()))]
    negative = torch._neg_view(x)
    assert unsigned(digest([negative])) == [reference_digest(raw_bytes(negative.resolve_neg()))]
    assert unsigned(digest([z.conj().imag])) == [reference_digest(raw_bytes(z.conj().imag.resolve_neg()))]


def test_no_tensors() -> None:
    assert digest([]).shape == (0, 3)


def test_shape_is_not_part_of_it_but_length_is() -> None:
    x = torch.zeros(12)
    assert torch.equal(digest([x]), digest([x.view(3, 4)]))
    assert not torch.equal(digest([x]), digest([torch.zeros(13)]))
    zeros = unsigned(digest([torch.zeros(n, dtype=torch.uint8) for n in range(9)]))
    assert len(set(zeros)) == 9


def test_same_bits_inside_autograd_inference_and_deterministic_mode() -> None:
    x = torch.randn(BLOCK + 3, requires_grad=True)
    plain = digest([x])
    assert not plain.requires_grad
    with torch.inference_mode():
        assert torch.equal(digest([x]), plain)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(digest([x]), plain)
    finally:
        torch.use_deterministic_algorithms(False)


WORDS = 2 * BLOCK + 3
INDEX = st.integers(0, WORDS - 1)
BITS = st.integers(1, 2**32 - 1)


def words(seed: int) -> Tensor:
    return random_bytes(4 * WORDS, seed).view(torch.int32).clone()


def flip(x: Tensor, index: int, bits: int) -> None:
    x[index] ^= bits - 2**32 if bits >= 2**31 else bits


def sums(x: Tensor) -> tuple[int, ...]:
    return unsigned(digest([x]))[0][:2]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), INDEX, BITS, INDEX, st.integers(0, 2**32 - 1))
def test_any_change_of_one_or_two_words_is_seen_by_the_two_sums_alone(
    seed: int, first: int, bits: int, second: int, more: int
) -> None:
    x = words(seed)
    before = sums(x)
    flip(x, first, bits)
    if second != first and more:
        flip(x, second, more)
    assert sums(x) != before


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), INDEX, INDEX)
def test_swap_is_seen(seed: int, first: int, second: int) -> None:
    x = words(seed)
    if x[first] == x[second]:
        return
    before = sums(x)
    x[[first, second]] = x[[second, first]]
    assert sums(x)[0] == before[0], "the plain sum is blind to it"
    assert sums(x) != before


def test_compensation_on_two_bit_patterns_is_seen() -> None:
    x = words(1)
    before = sums(x)
    x[17] += 4096
    x[4711] -= 4096
    assert sums(x)[0] == before[0]
    assert sums(x) != before


@pytest.mark.parametrize("k", [4, 8, 16, 32])
def test_lane_pattern_that_cancels_in_both_sums_is_seen_by_the_hash(k: int) -> None:
    """The same bit toggled in k adjacent words, up and down so that both linear sums cancel."""
    ups = [1, -1, -1, 1] * (k // 4)  # sum 0, and position-weighted sum 0
    x = words(2)
    before = unsigned(digest([x]))[0]
    for start in (0, 64, BLOCK - 2, BLOCK, 2 * BLOCK - k):
        y = x.clone()
        lane = slice(start, start + k)
        y[lane] = (y[lane] & ~(1 << 9)) | torch.tensor([512 if u < 0 else 0 for u in ups], dtype=torch.int32)
        z = y.clone()
        z[lane] ^= 512
        a, b = unsigned(digest([y]))[0], unsigned(digest([z]))[0]
        assert a[:2] == b[:2], "the linear sums cancel"
        assert a[2] != b[2]
    assert unsigned(digest([x]))[0] == before


def test_random_lane_toggles_are_all_seen() -> None:
    rng = random.Random(3)
    x = words(3)
    before = digest([x])
    for _ in range(300):
        y = x.clone()
        start, stride, bit = rng.randrange(WORDS - 256), rng.choice([1, 2, 8]), rng.randrange(31)
        y[start : start + 32 * stride : stride] ^= 1 << bit
        assert not torch.equal(digest([y]), before)


def test_blocks_that_change_places_are_seen_by_the_hash() -> None:
    x = words(4)
    y = torch.cat([x[BLOCK : 2 * BLOCK], x[:BLOCK], x[2 * BLOCK :]])
    assert unsigned(digest([x]))[0][2] != unsigned(digest([y]))[0][2]


@pytest.mark.parametrize("limit", [8, BLOCK, BLOCK + 1, 5 * BLOCK])
def test_split_tensors_equal_the_reference(limit: int) -> None:
    tensors = [random_bytes(size, seed=size) for size in (0, 3, 32, 33, 4 * BLOCK, 16 * BLOCK + 9)]
    found = unsigned(digest(tensors, split_words=limit))
    assert found == [reference_digest(raw_bytes(t), split_words=limit) for t in tensors]


def test_split_keeps_every_one_and_two_word_change_visible() -> None:
    x = random_bytes(4 * 64, seed=5).view(torch.int32).clone()
    before = digest([x], split_words=16)
    for first in range(64):
        for second in range(first + 1, 64):
            y = x.clone()
            y[first] += 7
            y[second] -= 7  # same offset in two pieces: sums of sums would cancel
            assert not torch.equal(digest([y], split_words=16)[:, :2], before[:, :2])


def test_small_tensors_share_their_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of biases must not cost hundreds of passes."""
    import training_agent._digest_portable as portable

    calls: list[int] = []
    original: Any = portable._add_tails
    monkeypatch.setattr(
        portable, "_add_tails", lambda out, tails: (calls.append(len(tails)), original(out, tails))
    )
    check([random_bytes(40 + n, seed=n) for n in range(100)])
    assert len(calls) == 2 and sum(calls) == 100


def short(table: torch.Tensor) -> str:
    return Evidence(Depth.BITS, table, len(table), 8).short()


def test_the_short_form_of_evidence_is_hex_and_tells_tables_apart() -> None:
    a, b = digest([torch.zeros(3)]), digest([torch.ones(3)])
    assert len(short(a)) == 16 and int(short(a), 16) >= 0
    assert short(a) == short(a.clone())
    assert short(a) != short(b)
    assert short(torch.cat([a, b])) != short(torch.cat([b, a]))


def test_one_element_with_a_stride_is_digested_like_any_other() -> None:
    one = torch.arange(3)[::3]
    assert torch.equal(digest([one]), digest([one.clone()]))
    assert torch.equal(
        digest([torch.arange(6).reshape(2, 3)[:1, :1].t()]), digest([torch.zeros(1, 1).long()])
    )
