"""Counts what a block of code makes the host wait for, sends, and reads. Works on CPU tensors as on a GPU's.

A host synchronisation is a value that leaves a tensor for Python, or decides how large another one is.
Torch tags the operators that do it (`item`, `equal`, `nonzero`, `unique`); an index waits where it is a mask.
Copies between host and device wait unless they are told not to and the host's memory is pinned. `tolist`,
`numpy` and the like read memory directly, which only a function mode sees. Reading a tensor that was made
before the block is a late read: its device has had time, so the host does not wait for the block's own work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

_WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_MASKS = (torch.bool, torch.uint8)
_DIRECT: dict[Any, str] = {
    torch.Tensor.tolist: "tolist",
    torch.Tensor.numpy: "numpy",
    torch.Tensor.__array__: "numpy",
    torch.Tensor.cpu: "cpu",
    torch.Tensor.__repr__: "repr",
}


@dataclass
class Counts:
    """What happened, by name."""

    syncs: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)
    late_reads: int = 0
    sent_bytes: int = 0  # in collectives, per rank
    norm_bytes: int = 0  # read by norms: what check 1 costs

    def less(self, other: Counts) -> Counts:
        """What is here and not there."""
        return Counts(
            _minus(self.syncs, other.syncs),
            _minus(self.collectives, other.collectives),
            self.late_reads - other.late_reads,
            self.sent_bytes - other.sent_bytes,
            self.norm_bytes - other.norm_bytes,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "host_syncs": sum(self.syncs.values()),
            "by_name": {**self.syncs, **self.collectives},
            "late_reads": self.late_reads,
            "collectives": sum(self.collectives.values()),
            "sent_bytes": self.sent_bytes,
            "norm_bytes": self.norm_bytes,
        }


def counted(action: Callable[[], Any]) -> Counts:
    """Run `action` and count."""
    counts = Counts()
    made: WeakIdKeyDictionary = WeakIdKeyDictionary()
    with _Functions(counts, made), _Dispatched(counts, made):
        action()
    return counts


class _Dispatched(TorchDispatchMode):
    def __init__(self, counts: Counts, made: WeakIdKeyDictionary) -> None:
        super().__init__()
        self.counts, self.made = counts, made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        tensors = list(_tensors((args, kwargs)))
        if _waits(func, args) or crosses(name, args, kwargs or {}):
            self.counts.syncs[name] += 1
        if name.startswith("c10d::"):
            self.counts.collectives[name] += 1
            self.counts.sent_bytes += sum(t.numel() * t.element_size() for t in tensors)
        if "norm" in name and "layer_norm" not in name:
            self.counts.norm_bytes += sum(t.numel() * t.element_size() for t in tensors)
        result = func(*args, **(kwargs or {}))
        for made in _tensors(result):
            self.made[made] = True
        return result


class _Functions(TorchFunctionMode):
    def __init__(self, counts: Counts, made: WeakIdKeyDictionary) -> None:
        super().__init__()
        self.counts, self.made = counts, made

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _DIRECT and args[0] in self.made:
            self.counts.syncs[_DIRECT[func]] += 1
        elif func in _DIRECT:
            self.counts.late_reads += 1
        return func(*args, **(kwargs or {}))


def _waits(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the host must know values to go on."""
    if func._schema.name.startswith("aten::index"):  # tagged, but only a mask's size follows from its values
        return any(t.dtype in _MASKS for t in _tensors(args[1]))
    return not _WAITING.isdisjoint(func.tags)


def crosses(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is a copy between host and device that the host waits for."""
    if name == "aten::_to_copy":
        source, target = args[0].device, kwargs.get("device") or args[0].device
        host, patient = args[0], not kwargs.get("non_blocking")
    elif name == "aten::copy_":
        source, target = args[1].device, args[0].device
        host, patient = args[0] if target.type == "cpu" else args[1], not any(args[2:])
    else:
        return False
    if (torch.device(target).type == "cpu") == (source.type == "cpu"):
        return False
    return patient or host.device.type != "cpu" or not host.is_pinned()


def _tensors(value: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf


def _minus(a: Counter[str], b: Counter[str]) -> Counter[str]:
    return Counter({k: a[k] - b[k] for k in a.keys() | b.keys() if a[k] != b[k]})
