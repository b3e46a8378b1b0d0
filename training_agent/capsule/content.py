"""What a capsule says: the micro-batch, what was expected and observed for it, and on what.

Comes in: facts and a `Capture` (from `record`), or the bytes of a file. Goes out: the bytes, or a `Capsule`.
Next: `recompute`.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._capture import Capture, Contexts, Unit
from .._evidence import Depth, Evidence
from ..contract import ContractError, Job, Place, Vote, from_plain, to_plain
from ..digest import digest
from ..errors import CapsuleError
from .container import from_bytes, to_bytes


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything but tensors; JSON-able."""

    cluster: str
    job: Job
    step: int
    check: str
    time: str  # UTC, ISO 8601 with Z
    micro_batch_of: int  # the rank that it belongs to
    written_by: Place  # that rank's seat
    named: tuple[Place, ...]  # whom the alarm accuses
    expected: str | None  # the result of the majority, a short digest as in the alarm; None without one
    votes: tuple[Vote, ...]  # who computed what
    compared: str  # a value of `Depth`
    compiled: bool  # made by a compiler's graph, which no other process has
    parameters: tuple[str, ...]  # behind the first rows of the evidence
    read: tuple[bool, ...]  # whose gradient counts at depth "finiteness"
    tensors: int
    nbytes: int
    versions: dict[str, str]
    environment: dict[str, str]  # switches and devices that change bits
    weights: dict[str, str]  # digest of each parameter before the update of `step`
    device: str  # "cpu" or "cuda"
    deterministic: bool = True  # kernels of the job's replays
    statistics: int = 0  # rows at the end of the table that stand for running statistics


@dataclass(frozen=True, slots=True)
class Capsule:
    """One file."""

    facts: Facts
    capture: Capture
    original: Evidence  # what the rank itself computed in the step
    state: dict[str, Tensor] | None  # the weights, where they fitted
    sha256: str  # of the file

    def observed_by(self, result: str) -> tuple[int, ...]:
        """Ranks that got this result when the alarm was raised."""
        return tuple(v.rank for v in self.facts.votes if v.result == result)


def weight_digests(parameters: dict[str, Tensor]) -> dict[str, str]:
    """48 hex digits for each parameter; one read."""
    if not parameters:
        return {}
    table = digest([p.detach() for p in parameters.values()]).tolist()
    return {
        name: "".join(f"{word & (1 << 64) - 1:016x}" for word in row)
        for name, row in zip(parameters, table, strict=True)
    }


def dump(facts: Facts, capture: Capture, original: Evidence, state: dict[str, Tensor] | None) -> bytes:
    """The file's bytes.

    Raises:
        CapsuleError: the batch holds something that a capsule cannot.
    """
    kept = {
        "unit": capture.unit.value,
        "args": capture.args,
        "kwargs": capture.kwargs,
        "contexts": asdict(capture.contexts),
        "cpu_rng": capture.cpu_rng,
        "device_rng": capture.device_rng,
        "training": list(capture.training),
        "trained": sorted(capture.trained),
        "buffers": capture.buffers,
        "seeds": capture.seeds,
        "block": capture.block,
        "inputs": list(capture.inputs),
        "backward": None if capture.backward is None else asdict(capture.backward),
    }
    return to_bytes({"facts": to_plain(facts), "capture": kept, "table": original.table, "state": state})


def load(path: Path, device: torch.device) -> Capsule:
    """Read a capsule; runs no code of whoever wrote it.

    Raises:
        OSError: it cannot be read.
        CapsuleError: it is none, or damaged.
    """
    data = path.read_bytes()
    try:
        return _parsed(data, device)
    except CapsuleError as e:
        raise CapsuleError(f"{path} cannot be used: {e}") from None
    except (ContractError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise CapsuleError(f"{path} cannot be used: {type(e).__name__}: {e}") from None


def _parsed(data: bytes, device: torch.device) -> Capsule:
    content: dict[str, Any] = from_bytes(data, device)
    facts = from_plain(Facts, content["facts"])
    kept = content["capture"]
    capture = Capture(
        Unit(kept["unit"]),
        tuple(kept["args"]),
        dict(kept["kwargs"]),
        _contexts(kept["contexts"]),
        kept["cpu_rng"],
        kept["device_rng"],
        tuple(kept["training"]),
        frozenset(kept["trained"]),
        dict(kept["buffers"]),
        list(kept["seeds"]),
        kept.get("block", ""),
        tuple(kept.get("inputs", ())),
        _contexts(kept["backward"]) if kept.get("backward") else None,
    )
    table = content["table"]
    if table.dtype is not torch.int64 or table.dim() != 2 or len(table) <= len(facts.parameters):
        raise CapsuleError("its table of digests has another shape than its parameters")
    kind = Depth(facts.compared)
    original = Evidence(kind, table.cpu(), facts.tensors, facts.nbytes, facts.statistics)
    return Capsule(facts, capture, original, content["state"], hashlib.sha256(data).hexdigest())


def _contexts(plain: dict[str, Any]) -> Contexts:
    return Contexts(**{**plain, "autocast": tuple(tuple(a) for a in plain["autocast"])})
