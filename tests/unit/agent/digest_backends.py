"""Every backend of the digest by name, and what the tests feed them: (tensors, split) -> table."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from training_agent import _digest_backends, _digest_compiled, _digest_portable
from training_agent.digest import BLOCK, SPLIT_WORDS, reference_digest

Backend = Callable[[Sequence[Tensor], int], Tensor]
# All of Triton is interpreted or none of it, for the whole process: test_digest_triton starts one of its own.
IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1"
REAL_WIDTHS: dict[str, int] = {}  # of the Triton launch, before `backend_of` widens it
NAMES = ["triton"] if IN_INTERPRETER else ["chosen", "portable", "plain", "AVX2", "AVX-512"]


def backend_of(name: str) -> Backend:
    """Skips the test, with the reason, when this machine cannot run it."""
    if name == "chosen":
        return _digest_backends.table
    if name == "portable":
        return _digest_portable.table
    if name == "triton":
        from training_agent import _digest_triton

        # Wide turns: the interpreter pays by the operation. The real widths have a test of their own.
        REAL_WIDTHS.setdefault("LANES", _digest_triton.LANES)
        REAL_WIDTHS.setdefault("UNROLL", _digest_triton.UNROLL)
        _digest_triton.LANES, _digest_triton.UNROLL = _digest_triton.PAIRS, 1
        return _digest_triton.table
    return compiled(_digest_compiled.WIDTHS.index(name))


def compiled(width: int) -> Backend:
    """The C code at one vector width."""
    if _digest_compiled.compiler() is None:
        pytest.skip("this machine has no C compiler")
    widest = _digest_compiled.library().training_agent_digest_width()  # a wrong answer is no reason to skip
    if width > widest:
        pytest.skip(f"this machine has no {_digest_compiled.WIDTHS[width]}")
    return lambda tensors, split: _digest_compiled.table(tensors, split, width=width)


def unsigned(table: Tensor) -> list[tuple[int, ...]]:
    """Rows as the specification writes them."""
    return [tuple(word % 2**64 for word in row) for row in table.tolist()]


def raw_bytes(tensor: Tensor) -> bytes:
    """Row-major bytes."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


def random_bytes(count: int, seed: int = 0) -> Tensor:
    """uint8 [count]."""
    if count == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(random.Random(seed).randbytes(count)), dtype=torch.uint8)


def of_dtype(dtype: torch.dtype, count: int) -> Tensor:
    """Arbitrary bits as a tensor, NaN payloads included."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    raw = random_bytes(count * torch.empty(0, dtype=dtype).element_size())
    return (raw % 2).view(torch.bool) if dtype is torch.bool else raw.view(dtype)


def check(backend: Backend, tensors: Sequence[Tensor], split_words: int = SPLIT_WORDS) -> None:
    """The backend's table is the reference's."""
    found = unsigned(backend(tensors, split_words))
    assert found == [reference_digest(raw_bytes(t), split_words=split_words) for t in tensors]


WORDS = 2 * BLOCK + 3


def words(seed: int) -> Tensor:
    """Two blocks and a tail, int32."""
    return random_bytes(4 * WORDS, seed).view(torch.int32).clone()
