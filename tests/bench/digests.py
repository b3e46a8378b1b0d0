"""How fast the digest is: ratios to one read of the same bytes, one thread, by size and dtype.

One read is the fastest whole-array reduction that PyTorch has here, over the same bytes as float32 or int64.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from tests.published.fingerprint import fingerprint
from training_agent import _digest_backends, _digest_compiled, _digest_portable

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MEGABYTES = (16, 134, 537)
Action = Callable[[], Any]


def measure(megabytes: tuple[int, ...] = MEGABYTES, turns: int = 5) -> list[dict[str, Any]]:
    """One object per size and dtype; each ratio is a median over paired turns."""
    torch.set_num_threads(1)
    _digest_backends.name_of("cpu")  # compiles
    return [_one(mb, name, turns) for mb in megabytes for name in DTYPES]


def _one(megabytes: int, name: str, turns: int) -> dict[str, Any]:
    raw = torch.randn(megabytes * 250_000)  # not zeros: pages never written share one in the cache
    x, target = raw.view(DTYPES[name]), torch.empty_like(raw)
    columns: dict[str, Action] = {
        "portable": lambda: _digest_portable.table([x]),
        "memcpy": lambda: target.copy_(raw),
        "published": lambda: fingerprint([x]),
    }
    if compiled():
        columns["compiled"] = lambda: _digest_compiled.table([x])
    if hasattr(torch, "hash_tensor"):
        columns["hash_tensor"] = lambda: torch.hash_tensor(x)
    reads = _fastest_read(raw)
    ratios: dict[str, list[float]] = {column: [] for column in columns}
    seconds: list[float] = []
    for _ in range(turns):
        for column, action in columns.items():
            read = _seconds(reads)
            seconds.append(read)
            ratios[column].append(_seconds(action) / read)
    return {
        "megabytes": megabytes,
        "dtype": name,
        "one_read_gb_per_s": round(megabytes / 1000 / median(seconds), 1),
        **{f"{column}_to_read": round(median(found), 2) for column, found in ratios.items()},
    }


def compiled() -> bool:
    """Whether the C backend is what CPU tensors get."""
    return _digest_backends.name_of("cpu") == "compiled"


def _fastest_read(raw: Tensor) -> Action:
    ways: list[Action] = [raw.sum, raw.view(torch.int32).amax]
    return min(ways, key=lambda way: min(_seconds(way) for _ in range(3)))


def _seconds(action: Action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
