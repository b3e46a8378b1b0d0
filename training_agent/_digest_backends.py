"""Which code digests which tensors. In: tensors of any devices. Out: their rows, by the best backend of each.

A backend that cannot be had on this machine, or fails, gives way to the portable one; one log line says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from . import _digest_portable
from ._accelerator import own_errors
from ._readable import kind_of, readable
from .digest import WORDS
from .log_line import log_line

Backend = Callable[[Sequence[Tensor], int], Tensor]  # tensors of one device and the split, in words
_chosen: dict[str, Backend] = {}  # by device type


def table(tensors: Sequence[Tensor], split_words: int) -> Tensor:
    """Digest each tensor into a row on the first one's device.

    Raises:
        TypeError: one is sparse, nested, on the meta device, or its storage was given back.
    """
    if not tensors:
        return torch.zeros(0, WORDS, dtype=torch.int64, device="cpu")
    for number, tensor in enumerate(tensors):
        if not readable(tensor):  # a backend would read address 0, or fail and give way for good
            raise TypeError(f"tensor {number} of {len(tensors)} has no bytes to digest: {kind_of(tensor)}")
    home = tensors[0].device
    devices = dict.fromkeys(t.device for t in tensors)
    if len(devices) == 1:
        return _one_device(tensors, split_words)
    out = torch.zeros(len(tensors), WORDS, dtype=torch.int64, device=home)
    for device in devices:
        rows = [i for i, t in enumerate(tensors) if t.device == device]
        out[rows] = _one_device([tensors[i] for i in rows], split_words).to(home)
    return out


def name_of(device: str) -> str:
    """Module that digests tensors of a device type: "portable", "compiled" or "triton"."""
    return _backend(torch.device(device)).__module__.rsplit("_", 1)[1]


def _one_device(tensors: Sequence[Tensor], split_words: int) -> Tensor:
    device = tensors[0].device
    backend = _backend(device)
    try:
        return backend(tensors, split_words)
    except own_errors():  # would meet the portable code as well
        raise
    except Exception as e:  # Triton and drivers raise classes of their own
        if backend is _digest_portable.table:
            raise
        return _fall_back(device.type, f"{type(e).__name__}: {e}")(tensors, split_words)


def _backend(device: torch.device) -> Backend:
    kind = device.type
    if kind not in _chosen:
        _chosen[kind] = _digest_portable.table
        try:
            if kind == "cpu":
                from . import _digest_compiled

                _digest_compiled.library()
                _chosen[kind] = _digest_compiled.table
            elif kind == "cuda":
                from . import _digest_triton

                _digest_triton.check(device)  # another GPU would get a context of 500 MB
                _chosen[kind] = _digest_triton.table
        except Exception as e:  # noqa: BLE001  # a compiler's errors are of any class
            _fall_back(kind, f"{type(e).__name__}: {e}")
    return _chosen[kind]


def _fall_back(kind: str, reason: str) -> Backend:
    slower = "about ten times slower" if kind == "cpu" else "several reads instead of one"
    log_line(
        "warning",
        message=f"the portable digest is used for {kind} tensors ({slower}; the same digests): {reason}"[
            :500
        ],
    )
    _chosen[kind] = _digest_portable.table
    return _chosen[kind]
