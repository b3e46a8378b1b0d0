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
    """What goes over the wire: a pickled skeleton and the tensors' bytes (1-D uint8)."""

    header: bytes
    payload: Tensor

    @classmethod
    def of(cls, body: Tensor, payload_bytes: int) -> Parcel:
        """From one run of bytes, payload first: it keeps its alignment."""
        return cls(bytes(body[payload_bytes:].cpu().numpy().tobytes()), body[:payload_bytes])

    def header_tensor(self, device: torch.device) -> Tensor:
        """The header as uint8."""
        return torch.frombuffer(bytearray(self.header), dtype=torch.uint8).to(device)


def pack(value: Any, device: torch.device) -> Parcel:
    """Turn `value` into a parcel whose payload lies on `device`.

    Raises:
        Exception: something in `value` cannot be pickled.
    """
    pickler = _Pickler(device)
    pickler.dump(value)
    header = pickle.dumps((pickler.stream.getvalue(), pickler.tensors.layouts))
    return Parcel(header, pickler.tensors.payload)


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
