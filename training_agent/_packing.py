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

from ._tensor_bytes import TensorBytes, rebuild

PACK_ERRORS = (Exception,)  # a user's class may raise anything when it is pickled, and when it is rebuilt


@dataclass(frozen=True, slots=True)
class Parcel:
    """What goes over the wire, 1-D uint8: the tensors' bytes, first for their alignment, then a skeleton."""

    body: Tensor
    payload_bytes: int

    @property
    def payload(self) -> Tensor:
        """The tensors' bytes, without a copy."""
        return self.body[: self.payload_bytes]

    @property
    def header(self) -> bytes:
        """The pickled skeleton."""
        return bytes(self.body[self.payload_bytes :].cpu().numpy().tobytes())


@dataclass(frozen=True, slots=True)
class Load:
    """A value taken apart: its bytes have one place yet to go to, so that they are copied once."""

    header: bytes
    tensors: TensorBytes

    @property
    def nbytes(self) -> int:
        """What it needs."""
        return self.tensors.nbytes + len(self.header)

    def into(self, room: Tensor) -> Parcel:
        """Write it to the front of `room`, 1-D uint8 of `nbytes` or more."""
        parcel = Parcel(room[: self.nbytes], self.tensors.nbytes)
        self.tensors.write(parcel.payload)
        parcel.body[parcel.payload_bytes :] = torch.frombuffer(bytearray(self.header), dtype=torch.uint8)
        return parcel


def take_apart(value: Any, device: torch.device) -> Load:
    """Find the tensors in `value`, for a parcel that lies on `device`.

    Raises:
        Exception: something in `value` cannot be pickled.
    """
    pickler = _Pickler(device)
    pickler.dump(value)
    return Load(pickle.dumps((pickler.stream.getvalue(), pickler.tensors.layouts)), pickler.tensors)


def pack(value: Any, device: torch.device) -> Parcel:
    """Turn `value` into a parcel on `device`; see `take_apart` for errors."""
    load = take_apart(value, device)
    return load.into(torch.empty(load.nbytes, dtype=torch.uint8, device=device))


def unpack(parcel: Parcel, device: torch.device) -> Any:
    """Rebuild the value; tensors from an accelerator come up on `device`, each with storage of its own.

    Raises:
        Exception: something in it cannot be rebuilt here.
    """
    # The sender is a rank of this very job, in the same process group; it could run any code anyway.
    skeleton, layouts = pickle.loads(parcel.header)  # noqa: S301
    tensors = [rebuild(layout, parcel.payload, device) for layout in layouts]
    return _Unpickler(io.BytesIO(skeleton), tensors).load()


class _Pickler(pickle.Pickler):
    def __init__(self, device: torch.device) -> None:
        self.stream = io.BytesIO()
        super().__init__(self.stream)
        self.tensors = TensorBytes(device)

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Tensor) or obj.layout is not torch.strided or obj.is_quantized:
            return None  # pickled by torch itself
        return self.tensors.add(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Tensor:
        tensor: Tensor = self._tensors[pid]
        return tensor
