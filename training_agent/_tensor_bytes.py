"""Tensors as one flat run of bytes with a description of each, and back, layout in memory included.

Comes in: tensors. Goes out: a `Layout` each and their bytes; `rebuild` makes the tensor again, with storage
of its own. Next: `_packing` sends them to a peer, `capsule.container` writes them into a file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes; BLAS picks kernels by alignment, so a replay must find its inputs aligned alike


@dataclass(frozen=True, slots=True)
class Layout:
    """How one tensor lay in memory; strides matter for bits, so they are rebuilt exactly."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    misalignment: int  # bytes past a 64-byte boundary
    requires_grad: bool
    on_cpu: bool
    offset: int  # into the payload, bytes
    nbytes: int


class TensorBytes:
    """Collects tensors; `layouts` and `payload` are what `rebuild` needs. One tensor is kept once."""

    def __init__(self, device: torch.device) -> None:
        self.layouts: list[Layout] = []
        self._pieces: list[Tensor] = []
        self._device = device
        self._seen: dict[int, int] = {}
        self._kept: list[Tensor] = []  # keeps ids valid while collecting
        self._length = 0

    def add(self, tensor: Tensor) -> int:
        """The number under which `tensor` (strided, not quantized) is found again."""
        if id(tensor) not in self._seen:
            self._seen[id(tensor)] = len(self.layouts)
            self._kept.append(tensor)
            self._append(tensor)
        return self._seen[id(tensor)]

    @property
    def nbytes(self) -> int:
        """Of the payload."""
        return self._length

    @property
    def payload(self) -> Tensor:
        """All bytes, 1-D uint8 on the device."""
        room = torch.empty(self._length, dtype=torch.uint8, device=self._device)
        self.write(room)
        return room

    def write(self, room: Tensor) -> None:
        """All bytes into `room`, 1-D uint8 of exactly `nbytes`, on the device."""
        if self._pieces:
            torch.cat(self._pieces, out=room)

    def _append(self, tensor: Tensor) -> None:
        plain = tensor.detach().resolve_conj().resolve_neg()
        shape, stride = tuple(plain.shape), tuple(plain.stride())
        if not rebuildable(shape, stride):
            plain = plain.contiguous()
            stride = tuple(plain.stride())
        dense = _without_expansion(plain).contiguous()
        raw = dense.reshape(-1).view(torch.uint8).to(self._device)
        misaligned = plain.data_ptr() % ALIGNMENT if plain.numel() else 0
        self.layouts.append(
            Layout(
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
        padding = -raw.numel() % ALIGNMENT
        self._pieces += [raw, raw.new_zeros(padding)]
        self._length += raw.numel() + padding


def rebuild(layout: Layout, payload: Tensor, device: torch.device) -> Tensor:
    """The tensor again; one from an accelerator comes up on `device`."""
    home = torch.device("cpu") if layout.on_cpu else device
    raw = payload[layout.offset : layout.offset + layout.nbytes].to(home)
    span = 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.stride, strict=True))
    if 0 in layout.shape:
        empty = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=home)
        return empty.requires_grad_(layout.requires_grad)
    itemsize = layout.dtype.itemsize
    room = torch.empty(span * itemsize + 2 * ALIGNMENT, dtype=torch.uint8, device=home)
    start = (layout.misalignment - room.data_ptr()) % ALIGNMENT
    # A start that is no multiple of the item size cannot be viewed; such an original is not aligned anywhere.
    start -= start % itemsize
    elements = room[start : start + span * itemsize].view(layout.dtype)
    target = elements.as_strided(layout.shape, layout.stride)
    narrow = _without_expansion(target)
    narrow.copy_(raw.view(layout.dtype).reshape(narrow.shape))
    return target.requires_grad_(layout.requires_grad)


def rebuildable(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether no two elements overlap (expansion aside) and the gaps are not huge."""
    dims = sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1 and s != 0)
    reach, elements = 1, 1
    for step, length in dims:
        if step < reach:
            return False
        reach = step * (length - 1) + reach
        elements *= length
    return reach <= 4 * elements


def _without_expansion(tensor: Tensor) -> Tensor:
    """Drop the repeats of expanded dimensions (stride 0): they share one element."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
