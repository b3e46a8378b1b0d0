"""Any Python value with tensors inside, as one header and one flat run of bytes, and back.

Comes in: what a rank captured for the replay of its micro-batch. Goes out: a `Parcel` that `_comm` sends.
Tensors travel as bytes, never pickled; what holds them (dicts, dataclasses, a batch class of the user) is.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes; BLAS picks kernels by alignment, so a replay must find its inputs aligned alike


@dataclass(frozen=True, slots=True)
class Parcel:
    """What goes over the wire: a pickled skeleton and the tensors' bytes (1-D uint8)."""

    header: bytes
    payload: Tensor


@dataclass(frozen=True, slots=True)
class _Layout:
    """How one tensor lay in memory; strides matter for bits, so they are rebuilt exactly."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    misalignment: int  # bytes past a 64-byte boundary
    requires_grad: bool
    on_cpu: bool
    offset: int  # into the payload, bytes
    nbytes: int


def pack(value: Any, device: torch.device) -> Parcel:
    """Turn `value` into a parcel whose payload lies on `device`.

    Raises:
        TypeError, pickle.PicklingError, AttributeError: something in `value` cannot be pickled.
    """
    pickler = _Pickler(device)
    pickler.dump(value)
    header = pickle.dumps((pickler.stream.getvalue(), pickler.layouts))
    pieces = pickler.pieces or [torch.empty(0, dtype=torch.uint8, device=device)]
    return Parcel(header, torch.cat(pieces))


def unpack(parcel: Parcel, device: torch.device) -> Any:
    """Rebuild the value; tensors from an accelerator come up on `device`, each with storage of its own."""
    # The sender is a rank of this very job, in the same process group; it could run any code anyway.
    skeleton, layouts = pickle.loads(parcel.header)  # noqa: S301
    tensors = [_rebuild(layout, parcel.payload, device) for layout in layouts]
    return _Unpickler(io.BytesIO(skeleton), tensors).load()


class _Pickler(pickle.Pickler):
    def __init__(self, device: torch.device) -> None:
        self.stream = io.BytesIO()
        super().__init__(self.stream)
        self.layouts: list[_Layout] = []
        self.pieces: list[Tensor] = []
        self._device = device
        self._seen: dict[int, int] = {}
        self._kept: list[Tensor] = []  # keeps ids valid while pickling
        self._length = 0

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Tensor) or obj.layout is not torch.strided or obj.is_quantized:
            return None  # pickled by torch itself
        if id(obj) not in self._seen:
            self._seen[id(obj)] = len(self.layouts)
            self._kept.append(obj)
            self._add(obj)
        return self._seen[id(obj)]

    def _add(self, tensor: Tensor) -> None:
        plain = tensor.detach().resolve_conj().resolve_neg()
        shape, stride = tuple(plain.shape), tuple(plain.stride())
        if not _rebuildable(shape, stride):
            plain = plain.contiguous()
            stride = tuple(plain.stride())
        dense = _without_expansion(plain).contiguous()
        raw = dense.reshape(-1).view(torch.uint8).to(self._device)
        misaligned = plain.data_ptr() % _ALIGNMENT if plain.numel() else 0
        self.layouts.append(
            _Layout(
                plain.dtype,
                shape,
                stride,
                misaligned,
                tensor.requires_grad,
                tensor.device.type == "cpu",
                self._length,
                raw.numel(),
            )
        )
        padding = -raw.numel() % _ALIGNMENT
        self.pieces += [raw, raw.new_zeros(padding)]
        self._length += raw.numel() + padding


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Tensor:
        tensor: Tensor = self._tensors[pid]
        return tensor


def _rebuild(layout: _Layout, payload: Tensor, device: torch.device) -> Tensor:
    home = torch.device("cpu") if layout.on_cpu else device
    raw = payload[layout.offset : layout.offset + layout.nbytes].to(home)
    span = 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.stride, strict=True))
    if 0 in layout.shape:
        empty = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=home)
        return empty.requires_grad_(layout.requires_grad)
    itemsize = layout.dtype.itemsize
    room = torch.empty(span * itemsize + 2 * _ALIGNMENT, dtype=torch.uint8, device=home)
    start = (layout.misalignment - room.data_ptr()) % _ALIGNMENT
    # A start that is no multiple of the item size cannot be viewed; such an original is not aligned anywhere.
    start -= start % itemsize
    elements = room[start : start + span * itemsize].view(layout.dtype)
    target = elements.as_strided(layout.shape, layout.stride)
    narrow = _without_expansion(target)
    narrow.copy_(raw.view(layout.dtype).reshape(narrow.shape))
    return target.requires_grad_(layout.requires_grad)


def _without_expansion(tensor: Tensor) -> Tensor:
    """Drop the repeats of expanded dimensions (stride 0): they share one element."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _rebuildable(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether no two elements overlap (expansion aside) and the gaps are not huge."""
    dims = sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1 and s != 0)
    reach, elements = 1, 1
    for step, length in dims:
        if step < reach:
            return False
        reach = step * (length - 1) + reach
        elements *= length
    return reach <= 4 * elements
