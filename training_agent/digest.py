"""Three 64-bit words per tensor from one read of its bytes. In: tensors. Out: int64 [n, 3] (S1, S2, H).

Next step: `checks.weights` and the guard's replay compare these words between ranks, bit by bit.

Specification, version 1 (all arithmetic modulo 2^64; int64 results are the same bits read as signed)
-----------------------------------------------------------------------------------------------------
The tensor's elements in row-major order are its bytes; the bytes are little-endian unsigned 32-bit words
w_0 .. w_(n-1), the last one filled up with zero bytes. L is the length in bytes.

S1 = sum of w_i                       S2 = sum of (i + 1) w_i
H  = mix(L ^ LENGTH) + sum over blocks b of BLOCK words of mix(NH_b ^ ((b + 1) GOLDEN))
NH_b = sum over pairs j of block b of ((w_2j + k_2j) mod 2^32) ((w_2j+1 + k_2j+1) mod 2^32)

j counts within the block; a pair exists when its first word does, a missing second word is 0. The key block
k_0 .. k_(BLOCK-1) is fixed: the upper halves of SplitMix64's first outputs from seed KEY_SEED.
mix is SplitMix64's finalizer, a bijection of 64-bit words.

A tensor of more than SPLIT_WORDS words is cut into pieces of SPLIT_WORDS; with (s1, s2, h) of piece p, each
word of the row is the sum over p of mix(word ^ ((p + 1) GOLDEN)).

What it guarantees (below the split, or inside one piece)
---------------------------------------------------------
Any change within one or two words is seen: with differences d, e of words p < q, S1 misses only if d = -e,
and then S2 changes by d (p - q), where 0 < |d| < 2^32 and 0 < |p - q| < 2^32: never 0 modulo 2^64.
Any other change escapes H with probability at most 2^-32 a block for random keys (NH: Black et al.,
UMAC, CRYPTO 1999); changes that S1 and S2 cancel, as lane faults can, are left to H.
Sums commute, so any order and any backend gives the same bits; DIGEST_VERSION travels in manifest and alarm.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

DIGEST_VERSION = 1
WORDS = 3  # per tensor
BLOCK = 4096  # words of one NH block, 16 KiB
SPLIT_WORDS = 2**32
KEY_SEED = 0x5DC0DE
LENGTH = 0x9FB21C651E98DF25
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
_LOW = 0xFFFFFFFF
_ALL = 0xFFFFFFFFFFFFFFFF
_TILE_BLOCKS = 16  # 64K words: the 64-bit copies of one tile stay in a core's L2 cache


def digest(tensors: Sequence[Tensor], *, split_words: int = SPLIT_WORDS) -> Tensor:
    """Digest each tensor; portable eager backend for every dtype and device.

    Args:
        tensors: any dtypes, shapes and strides, all on one device.
        split_words: see the specification; another value than SPLIT_WORDS gives other digests.

    Returns:
        int64 [len(tensors), 3] on the tensors' device, no host synchronisation.
    """
    import torch

    if not tensors:
        return torch.zeros(0, WORDS, dtype=torch.int64)
    with torch.no_grad():
        return torch.stack([_digest_bytes(_bytes_of(t), split_words) for t in tensors])


def hex_digest(table: Tensor) -> str:
    """16 hex digits over a digest table, for votes and log lines; copies the table to the host."""
    raw = bytes(_bytes_of(table.detach()).cpu().tolist())
    return hashlib.sha256(raw).hexdigest()[:16]


def reference_digest(data: bytes, *, split_words: int = SPLIT_WORDS) -> tuple[int, int, int]:
    """The specification word by word in plain Python: slow, the judge of every backend.

    Returns:
        S1, S2, H as unsigned 64-bit integers.
    """
    if len(data) <= 4 * split_words:
        return _reference_piece(data)
    row = [0] * WORDS
    for p, start in enumerate(range(0, len(data), 4 * split_words)):
        piece = _reference_piece(data[start : start + 4 * split_words])
        for column, word in enumerate(piece):
            row[column] += mix(word ^ ((p + 1) * GOLDEN & _ALL))
    return row[0] & _ALL, row[1] & _ALL, row[2] & _ALL


def _reference_piece(data: bytes) -> tuple[int, int, int]:
    padded = data + bytes(-len(data) % 4)
    words = [int.from_bytes(padded[i : i + 4], "little") for i in range(0, len(padded), 4)]
    keys = key_block()
    h = mix(len(data) ^ LENGTH)
    for b, start in enumerate(range(0, len(words), BLOCK)):
        block = words[start : start + BLOCK]
        block += [0] * (len(block) % 2)
        nh = sum(
            ((block[i] + keys[i]) & _LOW) * ((block[i + 1] + keys[i + 1]) & _LOW)
            for i in range(0, len(block), 2)
        )
        h += mix((nh & _ALL) ^ ((b + 1) * GOLDEN & _ALL))
    return sum(words) & _ALL, sum((i + 1) * w for i, w in enumerate(words)) & _ALL, h & _ALL


def mix(x: int) -> int:
    """SplitMix64's finalizer on an unsigned 64-bit integer: a bijection."""
    x = ((x ^ (x >> 30)) * MIX_1) & _ALL
    x = ((x ^ (x >> 27)) * MIX_2) & _ALL
    return x ^ (x >> 31)


@lru_cache(maxsize=1)
def key_block() -> tuple[int, ...]:
    """The fixed NH key: BLOCK unsigned 32-bit words."""
    return tuple(mix((KEY_SEED + (i + 1) * GOLDEN) & _ALL) >> 32 for i in range(BLOCK))


def _signed(x: int) -> int:
    """The same 64 bits read as int64."""
    return x - 2**64 if x >= 2**63 else x


def _bytes_of(tensor: Tensor) -> Tensor:
    """Row-major bytes of a tensor as uint8 [L]; a view where the layout allows it."""
    import torch

    t = tensor.detach().resolve_conj().resolve_neg()
    if t.is_complex():
        t = torch.view_as_real(t)
    return t.contiguous().reshape(-1).view(torch.uint8)


def _digest_bytes(raw: Tensor, split_words: int) -> Tensor:
    """Row [3] of one tensor's bytes."""
    import torch

    limit = 4 * split_words
    if raw.numel() <= limit:
        return _digest_piece(raw)
    pieces = torch.stack([_digest_piece(raw[i : i + limit]) for i in range(0, raw.numel(), limit)])
    index = torch.arange(1, len(pieces) + 1, device=raw.device).unsqueeze(1)
    return _mix_tensor(pieces ^ index * _signed(GOLDEN)).sum(0)


def _digest_piece(raw: Tensor) -> Tensor:
    import torch

    words = _words_of(raw)
    n = words.numel()
    seed = _signed(mix(raw.numel() ^ LENGTH))
    if n == 0:
        return torch.tensor([0, 0, seed], device=raw.device)
    blocks = n // BLOCK
    sums = _Sums(raw.device)
    for first in range(0, blocks, _TILE_BLOCKS):
        last = min(first + _TILE_BLOCKS, blocks)
        sums.add(words[first * BLOCK : last * BLOCK].view(last - first, BLOCK), first)
    if n % BLOCK:
        tail = torch.nn.functional.pad(words[blocks * BLOCK :], (0, n % 2)).unsqueeze(0)
        sums.add(tail, blocks)
    return sums.row(seed)


def _words_of(raw: Tensor) -> Tensor:
    """Bytes as int32 words, the tail zero-padded."""
    import torch

    if raw.numel() % 4:
        raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 4))
    elif raw.storage_offset() % 4:
        raw = raw.clone()
    return raw.view(torch.int32)


class _Sums:
    """Running sums of one piece, fed with int32 tiles of whole blocks [blocks, words of a block]."""

    def __init__(self, device: object) -> None:
        import torch

        self.device = torch.device(str(device))
        self.rows: list[Tensor] = []
        self.keys = _key_tensor(self.device)

    def add(self, tile: Tensor, first_block: int) -> None:
        """Add blocks `first_block` and following. Sums of 2^16 words of 32 bits stay below 2^48."""
        import torch

        blocks, width = tile.shape
        wide = tile.to(torch.int64).bitwise_and_(_LOW)
        per_block = wide.sum(1)
        start = torch.arange(first_block, first_block + blocks, device=self.device) * BLOCK
        position = torch.arange(1, width + 1, device=self.device)
        s2 = (per_block * start).sum() + (wide.sum(0) * position).sum()
        pairs = (tile + self.keys[:width]).view(torch.int64)
        high = (pairs >> 32).bitwise_and_(_LOW)
        low = pairs.bitwise_and_(_LOW)
        nh = low.mul_(high).sum(1)
        salt = (start // BLOCK + 1) * _signed(GOLDEN)
        self.rows.append(torch.stack([per_block.sum(), s2, _mix_tensor(nh ^ salt).sum()]))

    def row(self, seed: int) -> Tensor:
        """S1, S2, H."""
        import torch

        total = torch.stack(self.rows).sum(0)
        total[2] += seed
        return total


@lru_cache(maxsize=16)
def _key_tensor(device: object) -> Tensor:
    import torch

    assert sys.byteorder == "little", "the digest reads memory as little-endian words"
    keys = torch.tensor(key_block(), dtype=torch.int64).to(torch.int32)
    return keys.to(str(device))


def _mix_tensor(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 30) & (_ALL >> 30))) * _signed(MIX_1)
    x = (x ^ ((x >> 27) & (_ALL >> 27))) * _signed(MIX_2)
    return x ^ ((x >> 31) & (_ALL >> 31))
