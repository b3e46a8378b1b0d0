"""The digest as one CUDA launch over all tensors, one read. In: CUDA tensors. Out: int64 [n, 3], there.

A table of chunks (address, bytes, first block, row) is all the kernel knows; a program digests one chunk of
ROWS blocks. Chunks that are complete and aligned to 16 bytes take the hot path: no masks, 16-byte loads. The
others, ends of tensors and odd addresses, go byte by byte; a warp's bytes share cache lines, so memory is
read once there too. Nothing waits for the device. Under TRITON_INTERPRET=1 the same code runs on CPU tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import _digest_portable as portable
from .digest import BLOCK, KNOWN_ANSWER, KNOWN_INPUT, LENGTH, SPLIT_WORDS, WORDS, key_block, mix

ROWS = 4  # blocks of one program, 64 KiB
LANES = 128  # word pairs of a block that are loaded together
PAIRS = BLOCK // 2
UNROLL = 2  # loads in flight per thread against registers
WARPS = 4
_CHUNK = 4 * BLOCK * ROWS  # bytes
_COLUMNS = 4  # of the chunk table
_TABLES = 8  # kept: parameters stay where they are from check to check


@triton.jit
def digest_kernel(
    table, keys, out, ROWS: tl.constexpr, LANES: tl.constexpr, PAIRS: tl.constexpr, UNROLL: tl.constexpr
):  # pragma: no cover - runs in Triton
    entry = table + tl.program_id(0).to(tl.int64) * 4
    at = tl.load(entry)
    left = tl.load(entry + 1)
    first = tl.load(entry + 2)
    home = out + tl.load(entry + 3) * 3
    block = tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    s1 = tl.zeros([ROWS, LANES], tl.uint64)
    s2 = tl.zeros([ROWS, LANES], tl.uint64)
    nh = tl.zeros([ROWS, LANES], tl.uint64)
    if (left >= ROWS * PAIRS * 8) & (at % 16 == 0):
        start = tl.multiple_of(at.to(tl.pointer_type(tl.uint64), bitcast=True), 16)
        for outer in range(PAIRS // LANES // UNROLL):
            for inner in tl.static_range(UNROLL):
                column = (outer * UNROLL + inner) * LANES + lane
                pair = tl.load(start + (block * PAIRS + column))
                key = tl.load(keys + column)
                low, high = pair.to(tl.uint32), (pair >> 32).to(tl.uint32)
                key_low, key_high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
                place = (column * 2 + 1).to(tl.uint32)
                s1 += low
                s1 += high
                s2 += low.to(tl.uint64) * place.to(tl.uint64)
                s2 += high.to(tl.uint64) * (place + 1).to(tl.uint64)
                nh += (low + key_low).to(tl.uint64) * (high + key_high).to(tl.uint64)
    else:
        raw = at.to(tl.pointer_type(tl.uint8), bitcast=True)
        for t in range(PAIRS // LANES):
            column = t * LANES + lane
            offset = (block * PAIRS + column).to(tl.int64) * 8
            low = tl.zeros([ROWS, LANES], tl.uint32)
            high = tl.zeros([ROWS, LANES], tl.uint32)
            for i in tl.static_range(4):
                byte = tl.load(raw + offset + i, mask=offset + i < left, other=0)
                low |= byte.to(tl.uint32) << (8 * i)
                byte = tl.load(raw + offset + (4 + i), mask=offset + (4 + i) < left, other=0)
                high |= byte.to(tl.uint32) << (8 * i)
            key = tl.load(keys + column)
            key_low, key_high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
            place = (column * 2 + 1).to(tl.uint32)
            s1 += low
            s1 += high
            s2 += low.to(tl.uint64) * place.to(tl.uint64)
            s2 += high.to(tl.uint64) * (place + 1).to(tl.uint64)
            product = (low + key_low).to(tl.uint64) * (high + key_high).to(tl.uint64)
            nh += tl.where(offset < left, product, 0)  # a pair exists when its first word does
    index = (tl.arange(0, ROWS).to(tl.int64) + first).to(tl.uint64)
    there = tl.arange(0, ROWS).to(tl.int64) * (PAIRS * 8) < left
    sums = tl.sum(s1, 1)
    h = tl.sum(nh, 1) ^ ((index + 1) * 0x9E3779B97F4A7C15)  # `digest.mix`; a kernel sees no Python globals
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * 0x94D049BB133111EB
    h = tl.where(there, h ^ (h >> 31), 0)
    places = tl.sum(s2, 1) + sums * (index * (PAIRS * 2))
    tl.atomic_add(home, tl.sum(sums, 0).to(tl.int64, bitcast=True), sem="relaxed")
    tl.atomic_add(home + 1, tl.sum(places, 0).to(tl.int64, bitcast=True), sem="relaxed")
    tl.atomic_add(home + 2, tl.sum(h, 0).to(tl.int64, bitcast=True), sem="relaxed")


def table(tensors: Sequence[Tensor], split_words: int = SPLIT_WORDS) -> Tensor:
    """Digest each tensor into a row; all on one device. Only non-contiguous tensors are copied."""
    raws = [portable.bytes_of(t) for t in tensors]
    work = _work_for(tuple((r.data_ptr(), r.numel()) for r in raws), 4 * split_words, raws[0].device)
    out = work.initial.clone()
    if len(work.chunks):
        with torch.cuda.device(out.device) if out.is_cuda else nullcontext():
            digest_kernel[(len(work.chunks),)](
                work.chunks,
                _keys(out.device),
                out,
                ROWS=ROWS,
                LANES=LANES,
                PAIRS=PAIRS,
                UNROLL=UNROLL,
                num_warps=WARPS,
            )
    return out if work.pieces is None else portable.joined(out, work.pieces)


def check(device: torch.device) -> None:
    """Compile, run, and compare with a known answer and, on the hot path, with the portable code.

    Raises:
        RuntimeError: another answer. Whatever Triton raises: it cannot be compiled for this device.
    """
    known = torch.frombuffer(bytearray(KNOWN_INPUT), dtype=torch.uint8).to(device)
    longer = known.repeat(5)
    found = table([known, longer, longer[1:]])
    right = torch.cat([portable.table([known]), portable.table([longer, longer[1:]])])
    words = tuple(word % 2**64 for word in found[0].tolist())
    if words != KNOWN_ANSWER or not torch.equal(found, right):
        raise RuntimeError(f"the Triton kernel computes a wrong digest on {device}")


class _Work:
    """What one launch needs, on the device: the chunk table, the rows before any chunk, and what to join."""

    def __init__(self, places: tuple[tuple[int, int], ...], limit: int, device: torch.device) -> None:
        pieces = [
            (row, at + start, min(limit, nbytes - start))
            for row, (at, nbytes) in enumerate(places)
            for start in range(0, max(nbytes, 1), limit)
        ]
        split = len(pieces) > len(places)
        self.pieces = [row for row, _, _ in pieces] if split else None
        facts = torch.tensor([[at, nbytes] for _, at, nbytes in pieces], device="cpu")
        counts = (facts[:, 1] + _CHUNK - 1) // _CHUNK
        owner = torch.repeat_interleave(torch.arange(len(pieces), device="cpu"), counts)
        number = torch.arange(len(owner), device="cpu") - (counts.cumsum(0) - counts)[owner]
        start = number * _CHUNK
        columns = [facts[owner, 0] + start, facts[owner, 1] - start, number * ROWS, owner]
        self.chunks = _to(torch.stack(columns, dim=1), device)
        lengths = [portable.signed(mix(nbytes ^ LENGTH)) for _, _, nbytes in pieces]
        self.initial = _to(torch.tensor([[0, 0, h] for h in lengths], device="cpu"), device)


_works: OrderedDict[Any, _Work] = OrderedDict()


def _work_for(places: tuple[tuple[int, int], ...], limit: int, device: torch.device) -> _Work:
    key = (places, limit, device)
    if key not in _works:
        _works[key] = _Work(places, limit, device)
    _works.move_to_end(key)
    while len(_works) > _TABLES:
        _works.popitem(last=False)
    return _works[key]


@lru_cache(maxsize=8)
def _keys(device: torch.device) -> Tensor:
    """Key pairs as uint64 [PAIRS], the first word of a pair in the low half."""
    words = torch.tensor(key_block(), dtype=torch.int64, device="cpu").to(torch.int32)
    return _to(words.view(torch.uint64), device)


def _to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device from pinned memory, so that the host does not wait."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


assert WORDS == 3 and _COLUMNS == 4, "the kernel has both written out"
