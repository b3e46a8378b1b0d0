"""What a computation is made of, as one digest: its operations and what comes in, not what comes out.

In: a computation that runs inside of the mode. Out: 64 hex digits. Used by `recompute`: where two GPUs ran
the same operations on the same values from outside, other bits are the GPU's and not those of another model.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..digest import digest

_KNOWN = (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format, type(None))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operator with its numbers, and its tensors' types, shapes and strides.

    Of tensors that no operation made (weights, inputs, constants of the model) it notes the values too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = hashlib.sha256()
        self._made: set[StorageWeakRef] = set()  # weak: memory goes back, and yet no other gets its name

    @property
    def digest(self) -> str:
        """Of all operations so far."""
        return self._seen.hexdigest()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it, then run it."""
        given = [self._plain(v) for v in tree_leaves((args, kwargs or {}))]
        self._seen.update(repr((str(func), given)).encode())
        found = func(*args, **(kwargs or {}))
        for result in tree_leaves(found):
            if isinstance(result, Tensor) and result.layout is torch.strided:
                self._made.add(_storage(result))
        return found

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return str(value.dtype), tuple(value.shape), value.device.type, self._values(value)
        if isinstance(value, torch.device):
            return value.type  # the trusted GPU may have another number
        return repr(value) if isinstance(value, _KNOWN) else type(value).__name__

    def _values(self, tensor: Tensor) -> Any:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return str(tensor.layout)
        if _storage(tensor) in self._made:
            return tensor.stride()
        return tensor.stride(), digest([tensor.detach()]).tolist()


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
