"""Three 64-bit words per tensor from one read of its bytes. In: tensors. Out: int64 [n, 3] (S1, S2, H).

`docs/digest.md` is the specification, with what it guarantees; `reference_digest` is its plain form. Next
step: `checks.weights` and the guard's replay compare these words between ranks, bit by bit.
"""

from __future__ import annotations

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
KNOWN_INPUT = (
    bytes(range(256)) * 129 + b"abc"
)  # two blocks and a tail: each backend must digest it right first
KNOWN_ANSWER = (0x1050707301E1, 0x107C5E59B5D0FA1, 0x8BD55F0DAAB2201)
_LOW = 0xFFFFFFFF
_ALL = 0xFFFFFFFFFFFFFFFF


def digest(tensors: Sequence[Tensor], *, split_words: int = SPLIT_WORDS) -> Tensor:
    """Digest each tensor with the fastest backend of its device; every dtype, layout and device.

    Args:
        tensors: any dtypes and shapes; a non-contiguous one is copied for the read. Of a quantized one its
            integers are read.
        split_words: see the specification; another value than SPLIT_WORDS gives other digests.

    Returns:
        int64 [len(tensors), 3] on the first tensor's device, without waiting for that device.

    Raises:
        TypeError: one has no bytes of its own here (sparse, nested, on the meta device).
    """
    from ._digest_backends import table

    return table(tensors, split_words)


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
