"""Before the first update: do equal inputs give equal bits here, and on a peer?

Comes in: the first micro-batch of this rank. Goes out: how deep audits can compare, or a `Sighting` when the
GPUs disagree. Never accuses a node for a kernel that is not reproducible. Next: the first step is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ._comm import Comm
from ._compilers import eagerly
from ._evidence import Depth, Evidence
from ._readable import readable_ones
from ._ring import COMPUTE_ERRORS
from ._sharding import Sharding
from .checks.sharded import local_part
from .determinism import deterministic
from .digest import digest
from .errors import ConfigurationError, in_short

Run = Callable[[Depth], Evidence]
_COLLECTIVES = ("c10d", "_c10d_functional")
_NAMES = 3  # that one sentence lists


@dataclass(frozen=True, slots=True)
class Preflight:
    """Equal on all ranks."""

    depth: Depth | None  # of audits; None: replays are off
    note: str | None  # what is not compared, and why
    evidence: Evidence | None  # of this rank's own micro-batch
    statistics: str | None = None  # why running statistics are to be left out first, if so


@dataclass(frozen=True, slots=True)
class _Answer:
    forward: bool  # reproducible
    backward: bool
    failure: str | None  # why nothing could be computed
    statistics: bool = True  # nothing else differs: they are reproducible


_SOUND = _Answer(forward=True, backward=True, failure=None)


def preflight(
    comm: Comm, parameters: int, run: Run, wanted: Depth, *, strict: bool, sharding: Sharding | None = None
) -> Preflight:
    """Compute this rank's micro-batch twice and agree on what audits can compare; a collective.

    Args:
        run: computes it once at a depth, and leaves everything as it was.
        wanted: the deepest comparison that the schedule asks for.
        strict: use deterministic kernels.
        sharding: under `fully_shard` every run is one on all ranks, and communicates.

    Raises:
        ConfigurationError: on all ranks, when the module itself communicates.
    """
    together = sharding is not None
    own_groups = frozenset() if sharding is None else sharding.groups
    mine, evidence = _try(run, parameters, wanted, strict, together)
    collectives = comm.complaints(next(iter(_collectives(run, own_groups)), ""))
    if collectives:
        raise ConfigurationError(
            f"The model communicates inside its own forward or backward ({collectives[0]}), as SyncBatchNorm "
            "does. A replay would wait for ranks that compute something else: take it out (BatchNorm without "
            "Sync), or switch audits off with Schedule(audit_every=None)."
        )
    if not comm.total([mine != _SOUND])[0]:
        return Preflight(wanted, None, evidence)
    answers: list[_Answer] = comm.gather(mine)
    failures = [f"rank {r}: {a.failure}" for r, a in zip(comm.ranks, answers, strict=True) if a.failure]
    if failures:
        return Preflight(
            None, f"replay audits are off, a micro-batch cannot be recomputed: {failures[0]}", None
        )
    if ranks := [r for r, a in zip(comm.ranks, answers, strict=True) if not a.statistics]:
        return Preflight(wanted, None, None, f"they are not reproducible on ranks {ranks[:8]}")
    unstable = not (mine.forward and mine.backward)
    operator = None
    if unstable or (together and not all(a.forward and a.backward for a in answers)):
        operator = first_unstable_operator(lambda: _once(run, wanted, strict))
    operators = sorted({name for name in comm.gather(operator) if name})
    named = f", first seen at {', '.join(operators[:_NAMES])}" if operators else ""
    if not all(a.forward for a in answers):
        ranks = [r for r, a in zip(comm.ranks, answers, strict=True) if not a.forward]
        note = f"replay audits are off: the forward is not reproducible on ranks {ranks[:8]}{named}"
        return Preflight(None, note, None)
    ranks = [r for r, a in zip(comm.ranks, answers, strict=True) if not a.backward]
    note = f"audits compare output and loss only: the backward is not reproducible on ranks {ranks[:8]}"
    shallow, evidence = _try(run, parameters, Depth.OUTPUT, strict, together)
    if comm.total([shallow.failure is not None])[0]:
        evidence = None
    return Preflight(Depth.OUTPUT, note + named, evidence)


def _once(run: Run, depth: Depth, strict: bool) -> Evidence:
    with deterministic(strict):
        return run(depth)


def _try(
    run: Run, parameters: int, depth: Depth, strict: bool, together: bool
) -> tuple[_Answer, Evidence | None]:
    try:
        first, second = _once(run, depth, strict), _once(run, depth, strict)
    except COMPUTE_ERRORS as e:
        if together:
            raise
        return _Answer(False, False, in_short(e)), None
    if first.agrees(second):
        return _SOUND, first
    if first.agrees_but_for_statistics(second):
        return _Answer(True, True, None, statistics=False), first
    return _Answer(first.forward_agrees(second, parameters), False, None), first


def first_unstable_operator(run: Callable[[], Any]) -> str | None:
    """Run twice under a dispatch mode and name the first operator whose output digests differ.

    A compiler that meets a dispatch mode gives a function up for the rest of the process: the steps of the
    training loop would no longer be compiled. So it is set to run eagerly here.
    """
    with eagerly(), _Journal(digests=True) as first:
        run()
    with eagerly(), _Journal(digests=True) as second:
        run()
    for mine, again in zip(first.lines, second.lines, strict=False):
        if mine != again:
            return str(mine[0])
    return None


def _collectives(run: Run, own_groups: frozenset[str]) -> tuple[str, ...]:
    """Communication operators that the micro-batch issues by itself, over other than `own_groups`."""
    try:
        with eagerly(), _Journal(digests=False) as journal:
            run(Depth.BITS)
    except COMPUTE_ERRORS:
        pass  # said already by the run before
    return tuple(name for name, groups in journal.collectives.items() if not groups or groups - own_groups)


class _Journal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operator that runs: its name, the autograd node that called it, digests of its outputs."""

    def __init__(self, *, digests: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[tuple[str, list[list[int]]]] = []
        self.collectives: dict[str, set[str]] = {}  # by operator: names of the groups
        self._digests = digests

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func)
        if name.startswith(_COLLECTIVES):
            self.collectives.setdefault(name, set()).update(_groups_in(args))
        node = torch._C._current_autograd_node()
        if node is not None:
            name += f" in {node.name()}"
        rows: list[list[int]] = []
        if self._digests and "empty" not in name:  # whatever lay in that memory
            tensors = readable_ones(local_part(t) for t in tree_leaves(out) if isinstance(t, torch.Tensor))
            with torch.utils._python_dispatch._disable_current_modes():
                rows = digest([t.detach() for t in tensors]).tolist() if tensors else []
        self.lines.append((name, rows))
        return out


def _groups_in(args: Any) -> set[str]:
    """Names of the process groups among an operator's arguments."""
    found = set()
    for value in tree_leaves(args):
        if isinstance(value, torch.ScriptObject):
            with suppress(RuntimeError):  # it stands for something else
                found.add(str(ProcessGroup.unbox(value).group_name))
    return found
