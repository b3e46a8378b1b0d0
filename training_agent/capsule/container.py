"""Plain values and tensors as one run of bytes, and back. Nothing in it is ever executed.

Comes in: None, booleans, numbers, strings, lists, tuples, dicts, dtypes, strided tensors. Goes out: a magic
line, a JSON header, the tensors' bytes. No pickle: a capsule may come from anybody. Used by `content`.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from .._tensor_bytes import ALIGNMENT, Layout, TensorBytes, rebuild, rebuildable
from ..errors import CapsuleError

MAGIC = b"SDC-CAPSULE-1\n"
MAX_HEADER_BYTES = 64 << 20
MAX_DIMENSIONS = 32
_LENGTH_BYTES = 8
_DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}
_CPU = torch.device("cpu")


def to_bytes(value: Any) -> bytes:
    """Write `value`; tensors of an accelerator are copied to the host.

    Raises:
        CapsuleError: something in it is no plain value and no strided tensor, such as a batch class.
    """
    tensors = TensorBytes(_CPU)
    tree = _tree(value, tensors, "value")
    layouts = [_plain_layout(layout) for layout in tensors.layouts]
    header = json.dumps({"tree": tree, "tensors": layouts}, separators=(",", ":"), allow_nan=False).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise CapsuleError(f"what is no tensor in it takes {len(header)} bytes, {MAX_HEADER_BYTES} are read")
    start = len(MAGIC) + _LENGTH_BYTES + len(header)
    padding = bytes(-start % ALIGNMENT)
    length = len(header).to_bytes(_LENGTH_BYTES, "little")
    return b"".join([MAGIC, length, header, padding, tensors.payload.numpy().tobytes()])


def from_bytes(data: bytes, device: torch.device) -> Any:
    """Read `to_bytes` back; tensors from an accelerator come up on `device`.

    Raises:
        CapsuleError: damaged, cut off, or not one of ours.
    """
    if not data.startswith(MAGIC):
        raise CapsuleError("it is no capsule of this version: the first line is not SDC-CAPSULE-1")
    begin = len(MAGIC) + _LENGTH_BYTES
    length = int.from_bytes(data[len(MAGIC) : begin], "little")
    if length > MAX_HEADER_BYTES or begin + length > len(data):
        raise CapsuleError(f"its header of {length} bytes is cut off or too large")
    start = begin + length + -(begin + length) % ALIGNMENT
    try:
        header = json.loads(data[begin : begin + length], parse_constant=_no_constant)
        layouts = [_layout(plain, len(data) - start) for plain in header["tensors"]]
        if sum(layout.nbytes for layout in layouts) > len(data) - start:
            raise ValueError("its tensors lie on each other: together they are larger than the file")
        payload = torch.frombuffer(bytearray(data[start:]) or bytearray(1), dtype=torch.uint8)
        tensors = [rebuild(layout, payload, device) for layout in layouts]
        return _value(header["tree"], tensors)
    except CapsuleError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, RecursionError, OverflowError) as e:
        raise CapsuleError(f"its header is damaged ({type(e).__name__}: {e})") from None


def _tree(value: Any, tensors: TensorBytes, path: str) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}  # exact, and JSON has no NaN
    if type(value) in (list, tuple):
        name = "list" if type(value) is list else "tuple"
        return {name: [_tree(v, tensors, f"{path}[{i}]") for i, v in enumerate(value)]}
    if type(value) is dict:
        return {
            "dict": [[_tree(k, tensors, path), _tree(v, tensors, f"{path}[{k!r}]")] for k, v in value.items()]
        }
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    plain = type(value) in (Tensor, torch.nn.Parameter)
    if plain and value.layout is torch.strided and not value.is_quantized:
        return {"tensor": tensors.add(value)}
    raise CapsuleError(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}; a capsule holds numbers, strings, "
        "strided tensors, and lists, tuples and dicts of them"
    )


def _value(tree: Any, tensors: list[Tensor]) -> Any:
    if tree is None or type(tree) in (bool, int, str):
        return tree
    ((kind, content),) = tree.items()
    if kind == "float":
        return float.fromhex(content)
    if kind in ("list", "tuple"):
        values = [_value(v, tensors) for v in content]
        return values if kind == "list" else tuple(values)
    if kind == "dict":
        return {_value(k, tensors): _value(v, tensors) for k, v in content}
    if kind == "dtype":
        return _DTYPES[content]
    if kind == "tensor" and type(content) is int and 0 <= content < len(tensors):
        return tensors[content]
    raise ValueError(f"unknown part {kind!r}")


def _plain_layout(layout: Layout) -> dict[str, Any]:
    plain = {f.name: getattr(layout, f.name) for f in fields(Layout)}
    return {**plain, "dtype": str(layout.dtype).removeprefix("torch.")}


def _layout(plain: dict[str, Any], available: int) -> Layout:
    """One tensor's description, after everything that could reach outside of the file was refused."""
    dtype = _DTYPES[plain["dtype"]]
    shape, stride = (tuple(_count(n) for n in plain[k]) for k in ("shape", "stride"))
    misalignment, offset, nbytes = (_count(plain[k]) for k in ("misalignment", "offset", "nbytes"))
    if len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS or not rebuildable(shape, stride):
        raise ValueError("a tensor's shape and strides do not fit")
    elements = math.prod(1 if s == 0 and n > 1 else n for n, s in zip(shape, stride, strict=True))
    if nbytes != elements * dtype.itemsize or offset + nbytes > available or misalignment >= ALIGNMENT:
        raise ValueError("a tensor does not lie inside the file")
    flags = plain["requires_grad"], plain["on_cpu"]
    if any(type(flag) is not bool for flag in flags):
        raise ValueError("a tensor's flags are none")
    return Layout(dtype, shape, stride, misalignment, *flags, offset, nbytes)


def _count(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 2**62:
        raise ValueError(f"{number!r} is no size")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
