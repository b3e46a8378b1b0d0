"""What a program keeps beside parameters and buffers (counters, rates, states, generators), as values.

Comes in: tables of names and values, as `_surroundings` finds them. Goes out: copies that can be compared,
shipped and put in, and marks by which everything comes back as it was. Next: `_surroundings`.

A replay calls the user's code once more, so what that code counts, carries along or draws must be the step's
in the replay, and afterwards what it was.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from ._generators import GeneratorState, put_into, state_of

KeptValues = Mapping[tuple[str, str], Any]  # by the table's place and the name in it
ABSENT: Any = object()


class Gone(Enum):
    """Stands, among values that travel, for a name that its rank has not."""

    GONE = "gone"


_PLAIN = (bool, int, float, complex, str, bytes, Enum, torch.dtype, type(None))
_LISTS = (list, tuple, set, frozenset, deque)
_DEPTH = 3  # of containers
_MEMBERS = 512  # of a container: longer ones are data, and no state of a computation
_LONGEST = 1 << 17  # members of one that holds plain values alone, as histories do
_LARGE = 1 << 25  # bytes; a larger tensor is known by its identity only


def copied(value: Any, depth: int = _DEPTH) -> Any:
    """A copy of what can be copied and shipped; ABSENT for the rest."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone() if _carried(value) else ABSENT
    if _is_array(value):
        return value.copy()
    if (state := state_of(value)) is not None:
        return state if depth == _DEPTH else ABSENT  # its object is needed, to put the state into
    if depth and _history(value):
        return _again(value)
    if depth == 0 or not _small(value):
        return ABSENT
    if isinstance(value, dict):
        pairs = {key: copied(v, depth - 1) for key, v in value.items() if isinstance(key, (str, int))}
        whole = type(value) is dict and len(pairs) == len(value)
        return pairs if whole and all(v is not ABSENT for v in pairs.values()) else ABSENT
    members = [copied(v, depth - 1) for v in value]
    if any(m is ABSENT for m in members):
        return ABSENT
    return deque(members, value.maxlen) if isinstance(value, deque) else type(value)(members)


def large_in(value: Any, name: str) -> dict[str, Tensor]:
    """State that is too large to be carried: the value, or what lies in a container; names begin so."""
    if isinstance(value, Tensor):
        return {name: value} if _state(value) and not _carried(value) else {}
    if not _small(value):
        return {}
    members = value.items() if isinstance(value, dict) else enumerate(value)
    inside = [large_in(v, f"{name}[{key!r}]") for key, v in members if isinstance(v, Tensor)]
    return {title: tensor for found in inside for title, tensor in found.items()}


def thawed(value: Any, current: Any) -> Any:
    """What stands for a copied value in its table; a generator stays the object that it is."""
    if isinstance(value, GeneratorState):
        put_into(current, value)
        return current
    return copied(value)


def print_of(value: Any) -> str:
    """Equal for equal values, on every rank."""
    return hashlib.sha256(_text(value).encode()).hexdigest()[:16]


class Mark:
    """One value as it is now; `restore` makes its contents what they were and gives it back."""

    __slots__ = ("_restore", "_state", "value")

    def __init__(self, value: Any, depth: int = _DEPTH) -> None:
        self.value = value
        self._restore: Callable[[], None] | None = None
        self._state: GeneratorState | None = None
        if isinstance(value, _PLAIN):
            return
        if isinstance(value, Tensor):
            if _carried(value):
                self._restore = _tensor_back(value, value.detach().clone())
        elif _is_array(value):
            self._restore = _array_back(value, value.copy())
        elif (state := state_of(value)) is not None:
            self._state, self._restore = state, lambda: put_into(value, state)
        elif depth and _history(value):
            self._restore = _history_back(value, _again(value))
        elif depth and _small(value) and not isinstance(value, frozenset):
            self._restore = _members_back(value, depth)

    def drawn(self) -> bool:
        """Whether it is a generator that has been drawn from since."""
        return self._state is not None and print_of(state_of(self.value)) != print_of(self._state)

    def restore(self) -> Any:
        if self._restore is not None:
            self._restore()
        return self.value


def _tensor_back(tensor: Tensor, before: Tensor) -> Callable[[], None]:
    def back() -> None:
        if tensor.shape != before.shape or tensor.dtype != before.dtype:
            tensor.data = before
        elif not same_bits(tensor.detach(), before):
            with torch.no_grad():
                tensor.copy_(before)

    return back


def _array_back(array: Any, before: Any) -> Callable[[], None]:
    def back() -> None:
        if array.shape == before.shape and array.tobytes() != before.tobytes():
            array[...] = before

    return back


def _history_back(value: Any, before: Any) -> Callable[[], None]:
    def back() -> None:
        pairs = (value.items(), before.items()) if isinstance(value, dict) else (value, before)
        if not isinstance(value, (tuple, frozenset)) and not (
            len(value) == len(before) and all(map(_same, *pairs))
        ):
            value.clear()
            (value.extend if isinstance(value, (list, deque)) else value.update)(before)

    return back


def _same(one: Any, other: Any) -> bool:
    """The same object, or the same key with the same object."""
    return one is other or (isinstance(one, tuple) and one[0] == other[0] and one[1] is other[1])


def _members_back(value: Any, depth: int) -> Callable[[], None]:
    if isinstance(value, dict):
        entries = {key: Mark(v, depth - 1) for key, v in value.items()}

        def refill() -> None:
            now = {key: mark.restore() for key, mark in entries.items()}
            if len(now) != len(value) or any(value.get(key, ABSENT) is not v for key, v in now.items()):
                value.clear()
                value.update(now)

        return refill
    members = [Mark(v, depth - 1) for v in value]

    def again() -> None:
        now = [mark.restore() for mark in members]
        if isinstance(value, tuple) or (len(now) == len(value) and all(map(_is, now, value))):
            return
        value.clear()
        (value.update if isinstance(value, set) else value.extend)(now)

    return again


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Of the same shape; types that torch does not compare, and zeros of another sign, are told apart too."""
    if any(t.layout is not torch.strided or t.is_quantized for t in (one, other)) or one.dtype != other.dtype:
        return False
    raw = (t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(*raw)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _is_array(value: Any) -> bool:
    """Whether it is an array of numpy's with numbers in it."""
    numpys = type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
    return numpys and not value.dtype.hasobject and value.nbytes <= _LARGE and value.flags.writeable


def _small(value: Any) -> bool:
    return _holds_members(value) and len(value) <= _MEMBERS


def _history(value: Any) -> bool:
    """Whether it is a long container of plain values alone: what it holds need not be looked into."""
    if not _holds_members(value) or not _MEMBERS < len(value) <= _LONGEST:
        return False
    keyed = isinstance(value, dict)
    if keyed and not (type(value) is dict and all(isinstance(key, (str, int)) for key in value)):
        return False
    return all(isinstance(v, _PLAIN) for v in (value.values() if keyed else value))


def _again(value: Any) -> Any:
    return deque(value, value.maxlen) if isinstance(value, deque) else type(value)(value)


def _holds_members(value: Any) -> bool:
    return type(value) in _LISTS or (isinstance(value, dict) and type(value).__module__ in _DICTS)


_DICTS = ("builtins", "collections")


def _carried(tensor: Tensor) -> bool:
    """Whether it is state that a program carries along: no weight, no part of a graph."""
    return _state(tensor) and tensor.numel() * tensor.element_size() <= _LARGE


def _state(tensor: Tensor) -> bool:
    plain = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_quantized
    return plain and tensor.grad_fn is None and not tensor.is_meta and not tensor.is_inference()


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        raw = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(raw.cpu().numpy().tobytes()).hexdigest()}"
    if isinstance(value, GeneratorState):
        plain = isinstance(value.state, tuple)  # hundreds of numbers
        return f"{value.kind} {repr(value.state) if plain else _text(value.state)}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_text(v)}' for key, v in value.items())}}}"
    if isinstance(value, (set, frozenset)):
        return f"{sorted(map(_text, value))}"
    if isinstance(value, (list, tuple, deque)):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    return value.tobytes().hex() if hasattr(value, "tobytes") else repr(value)
