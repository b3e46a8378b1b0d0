"""The digest in eager PyTorch, tile by tile. In: tensors. Out: int64 [n, 3], as `digest` specifies.

A tile's 64-bit copies stay in the cache, so memory is read once. S2 needs no product per word: with a
tile as [blocks, words of a block], its row and column sums weighted by position give the same number.
The last, incomplete blocks of all tensors are gathered and digested together: few operations for many small
tensors. int64 arithmetic wraps, which is what "modulo 2^64" asks for.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

import torch
from torch import Tensor

from .digest import BLOCK, GOLDEN, LENGTH, MIX_1, MIX_2, SPLIT_WORDS, WORDS, key_block, mix

_LOW = 0xFFFFFFFF
_ALL = 0xFFFFFFFFFFFFFFFF
_TILE_BLOCKS = {"cpu": 64}  # 256K words: cache
_TILE_BLOCKS_DEVICE = 1024  # 4M words: an accelerator pays for launches, not for temporaries of 32 MB


def table(tensors: Sequence[Tensor], split_words: int = SPLIT_WORDS) -> Tensor:
    """Digest each tensor into a row; at least one, all on one device."""
    limit = 4 * split_words
    raws = [bytes_of(t) for t in tensors]
    if all(raw.numel() <= limit for raw in raws):
        return _pieces(raws)
    cut = [
        (row, raw[i : i + limit])
        for row, raw in enumerate(raws)
        for i in range(0, max(raw.numel(), 1), limit)
    ]
    return joined(_pieces([piece for _, piece in cut]), [row for row, _ in cut])


def bytes_of(tensor: Tensor) -> Tensor:
    """Row-major bytes of a tensor as uint8 [bytes]; a view where the layout allows it."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    t = tensor.detach().resolve_conj().resolve_neg()
    if t.is_complex():
        t = torch.view_as_real(t)
    flat = t.contiguous().reshape(-1)
    if flat.numel() == 1:  # torch calls one element contiguous whatever its stride, and cannot view that
        flat = flat.as_strided((1,), (1,))
    return flat.view(torch.uint8)


def joined(table: Tensor, rows: Sequence[int]) -> Tensor:
    """Rows of tensors from rows of their pieces; `rows` says, ascending, whose each piece is."""
    pieces, numbers = Counter(rows), [n + 1 for _, same in groupby(rows) for n, _ in enumerate(same)]
    counted = [[row, n, pieces[row]] for row, n in zip(rows, numbers, strict=True)]
    facts = torch.tensor(counted, device=table.device)
    index, number, count = facts.unbind(1)
    salted = _mixed(table ^ number.unsqueeze(1) * signed(GOLDEN))
    out = torch.zeros(len(pieces), WORDS, dtype=torch.int64, device=table.device)
    return out.index_add_(0, index, torch.where(count.unsqueeze(1) == 1, table, salted))


def _pieces(raws: Sequence[Tensor]) -> Tensor:
    device = raws[0].device
    out = torch.tensor([[0, 0, signed(mix(raw.numel() ^ LENGTH))] for raw in raws], device=device)
    tails: list[_Tail] = []
    step = _TILE_BLOCKS.get(device.type, _TILE_BLOCKS_DEVICE)
    largest = max(raw.numel() for raw in raws) // (4 * BLOCK)
    scratch = _Scratch(min(step, largest), device)
    for row, raw in enumerate(raws):
        words = _words_of(raw)
        full = words.numel() // BLOCK
        for first in range(0, full, step):
            last = min(first + step, full)
            out[row] += _tile(words[first * BLOCK : last * BLOCK].view(-1, BLOCK), first, scratch)
        if words.numel() % BLOCK:
            tails.append((row, full, words[full * BLOCK :]))
    for start in range(0, len(tails), step):
        _add_tails(out, tails[start : start + step])
    return out


_Tail = tuple[int, int, Tensor]  # row of the result, index of the incomplete block, its words


def _words_of(raw: Tensor) -> Tensor:
    """Bytes as int32 words, the tail zero-padded; a copy when the storage is not aligned to words."""
    if raw.numel() % 4:
        raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 4))
    elif raw.storage_offset() % 4:
        raw = raw.clone()
    return raw.view(torch.int32)


class _Scratch:
    """Memory for one tile, used again for the next: fresh memory would be read through the cache."""

    def __init__(self, blocks: int, device: torch.device) -> None:
        self.wide = torch.empty(blocks, BLOCK, dtype=torch.int64, device=device)
        self.keyed = torch.empty(blocks, BLOCK, dtype=torch.int32, device=device)
        self.high = torch.empty(blocks, BLOCK // 2, dtype=torch.int64, device=device)


def _tile(tile: Tensor, first: int, scratch: _Scratch) -> Tensor:
    """Share [3] of complete blocks [blocks, BLOCK], `first` the index of the first; sums stay below 2^54."""
    constants = _constants(tile.device)
    wide = scratch.wide[: len(tile)].copy_(tile).bitwise_and_(_LOW)
    per_block = wide.sum(1)
    index = torch.arange(first, first + len(tile), device=tile.device)
    s2 = (per_block * index).sum() * BLOCK + (wide.sum(0) * constants.positions).sum()
    keyed, high = scratch.keyed[: len(tile)], scratch.high[: len(tile)]
    pairs = torch.add(tile, constants.keys, out=keyed).view(torch.int64)
    torch.bitwise_right_shift(pairs, 32, out=high).bitwise_and_(_LOW)
    nh = pairs.bitwise_and_(_LOW).mul_(high).sum(1)
    h = _mixed(nh ^ (index + 1) * signed(GOLDEN)).sum()
    return torch.stack([per_block.sum(), s2, h])


def _add_tails(out: Tensor, tails: Sequence[_Tail]) -> None:
    """Add incomplete blocks, zero-padded to whole ones; the padding's pairs are masked out of NH."""
    device = out.device
    constants = _constants(device)
    padded = torch.zeros(len(tails), BLOCK, dtype=torch.int32, device=device)
    for i, (_, _, words) in enumerate(tails):
        padded[i, : words.numel()] = words
    facts = torch.tensor([[row, block, words.numel()] for row, block, words in tails], device=device)
    rows, index, lengths = facts.unbind(1)
    wide = padded.to(torch.int64).bitwise_and_(_LOW)
    s1 = wide.sum(1)
    s2 = (wide * constants.positions).sum(1) + s1 * index * BLOCK
    there = constants.positions[::2] <= lengths.unsqueeze(1)
    nh = (_products(padded) * there).sum(1)
    h = _mixed(nh ^ (index + 1) * signed(GOLDEN))
    out.index_add_(0, rows, torch.stack([s1, s2, h], dim=1))


def _products(blocks: Tensor) -> Tensor:
    """NH's products [blocks, pairs] of int32 [blocks, BLOCK]."""
    pairs = (blocks + _constants(blocks.device).keys).view(torch.int64)  # the 32-bit adds wrap, too
    high = (pairs >> 32).bitwise_and_(_LOW)
    return pairs.bitwise_and_(_LOW).mul_(high)


class _Constants:
    """Keys int32 [BLOCK] and positions int64 [BLOCK], 1-based, on one device."""

    def __init__(self, device: torch.device) -> None:
        assert sys.byteorder == "little", "the digest reads memory as little-endian words"
        self.keys = torch.tensor(key_block(), dtype=torch.int64, device="cpu").to(torch.int32).to(device)
        self.positions = torch.arange(1, BLOCK + 1, device=device)


@lru_cache(maxsize=32)
def _constants(device: torch.device) -> _Constants:
    return _Constants(device)


def signed(x: int) -> int:
    """The same 64 bits read as int64."""
    return x - 2**64 if x >= 2**63 else x


def _mixed(x: Tensor) -> Tensor:
    """`digest.mix` on int64; the mask makes the arithmetic shift a logical one."""
    x = (x ^ ((x >> 30) & (_ALL >> 30))) * signed(MIX_1)
    x = (x ^ ((x >> 27) & (_ALL >> 27))) * signed(MIX_2)
    return x ^ ((x >> 31) & (_ALL >> 31))
