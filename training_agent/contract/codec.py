"""JSON in and out for the wire format, standard library only, strict where a forged event could hide.

`encode` writes what `decode` reads. `decode` ignores unknown fields (schema 1.x), refuses wrong types, NaN,
duplicate keys, and depth or size beyond limits, always with `ContractError` and the path of the fault.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from enum import Enum
from typing import Any, TypeVar

from .alarm import Alarm
from .names import MAX_DETAIL_BYTES, SCHEMA_VERSION

T = TypeVar("T")
MAX_DEPTH = 12


class ContractError(ValueError):
    """A message that is not in the wire format; the text names the field and what was expected."""


class UnknownMajorError(ContractError):
    """The schema's major version is not ours: a human must look, nothing is guessed."""


def to_plain(value: Any) -> Any:
    """Turn a contract dataclass into dicts, lists and scalars that JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return value


def encode(value: Any) -> str:
    """Canonical JSON of a contract dataclass: sorted keys, no white space, ASCII, no NaN."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def decode(kind: type[T], text: str | bytes, *, max_bytes: int | None = MAX_DETAIL_BYTES) -> T:
    """Parse JSON text into `kind`.

    Raises:
        ContractError: with the path of the first fault.
        UnknownMajorError: schema_version has another major than ours.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if max_bytes is not None and len(raw) > max_bytes:
        raise ContractError(f"message of {len(raw)} bytes: at most {max_bytes} are accepted")
    try:
        plain = json.loads(raw, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise ContractError("message is nested too deeply") from None
    except UnicodeDecodeError:
        raise ContractError("message is not UTF-8") from None
    except json.JSONDecodeError as e:
        raise ContractError(f"message is not JSON: {e}") from None
    return from_plain(kind, plain)


def from_plain(kind: type[T], plain: Any) -> T:
    """Build `kind` from parsed JSON; see `decode` for the errors."""
    if _depth(plain) > MAX_DEPTH:
        raise ContractError(f"message is nested deeper than {MAX_DEPTH} levels")
    if isinstance(plain, dict) and "schema_version" in plain:
        major = str(plain["schema_version"]).split(".")[0]
        if major != SCHEMA_VERSION.split(".")[0]:
            raise UnknownMajorError(f"schema_version {plain['schema_version']!r}: this reader knows 1.x")
    result: T = _build(kind, plain, kind.__name__)
    return result


def delivery_key(alarm: Alarm) -> str:
    """Key that drops duplicates of an alarm: 32 hex digits over cluster, job, check, step, suspects, group.

    It is the same for every rank, every re-send and every restart, and never used as the gate. Where a job
    has one guard over all ranks, as before 1.1, it is the key that it always was.
    """
    suspects = ",".join(map(str, alarm.named_ranks))
    parts = [alarm.cluster, alarm.job.uid, alarm.check.value, str(alarm.step), suspects]
    text = "\x1f".join([*parts, alarm.group] if alarm.group else parts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def occurrence_key(key: str, attempt: int) -> str:
    """What quarantine rows and entries carry: this alarm (`delivery_key`) in this attempt of the job.

    A released job may alarm again at the same step with the same suspects: the release of the earlier
    occurrence must not set the later one free.
    """
    return f"{key}#{attempt}"


def trail_name(alarm: Alarm) -> str:
    """Of the trail of an alarm, in the folder of the repro capsules: one for each group that alarms."""
    group = f"-{hashlib.sha256(alarm.group.encode()).hexdigest()[:8]}" if alarm.group else ""
    return f"trail-step-{alarm.step}-attempt-{alarm.job.attempt}{group}.json"


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ContractError("message has duplicate keys")
    return out


def _no_constant(name: str) -> Any:
    raise ContractError(f"message holds {name}, which is not JSON")


def _depth(plain: Any, level: int = 0) -> int:
    if level > MAX_DEPTH:
        return level
    children = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    return max((_depth(c, level + 1) for c in children), default=level)


def _build(kind: Any, plain: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, plain, path)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        options = [a for a in typing.get_args(kind) if a is not type(None)]
        return None if plain is None else _build(options[0], plain, path)
    if origin is tuple:
        return _build_tuple(typing.get_args(kind), plain, path)
    if origin is dict:
        value_kind = typing.get_args(kind)[1]
        if not isinstance(plain, dict):
            raise ContractError(f"{path}: expected an object")
        return {k: _build(value_kind, v, f"{path}.{k}") for k, v in plain.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(plain)
        except ValueError:
            known = ", ".join(str(m.value) for m in kind)
            raise ContractError(f"{path}: {plain!r} is none of {known}") from None
    return _scalar(kind, plain, path)


def _build_dataclass(kind: Any, plain: Any, path: str) -> Any:
    if not isinstance(plain, dict):
        raise ContractError(f"{path}: expected an object")
    hints = typing.get_type_hints(kind)
    values = {}
    for f in dataclasses.fields(kind):
        if f.name in plain:
            values[f.name] = _build(hints[f.name], plain[f.name], f"{path}.{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ContractError(f"{path}.{f.name}: missing")
    return kind(**values)


def _build_tuple(args: tuple[Any, ...], plain: Any, path: str) -> Any:
    if not isinstance(plain, list):
        raise ContractError(f"{path}: expected an array")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_build(args[0], v, f"{path}[{i}]") for i, v in enumerate(plain))
    if len(args) != len(plain):
        raise ContractError(f"{path}: expected {len(args)} elements")
    return tuple(_build(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(zip(args, plain, strict=True)))


def _scalar(kind: Any, plain: Any, path: str) -> Any:
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        plain = float(plain)
    if type(plain) is not kind:
        raise ContractError(f"{path}: expected {kind.__name__}, got {type(plain).__name__}")
    if kind is float and not math.isfinite(plain):
        raise ContractError(f"{path}: not finite")
    if kind is int and not -(2**63) <= plain < 2**63:
        raise ContractError(f"{path}: out of the 64-bit range")
    return plain
