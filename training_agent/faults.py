"""Seeded fault injection, for the demo, for tests, for drills on your own cluster.

Two ways in. `Injection(FaultSpec(...))` strikes any place in any shape on one rank, for one process's life::

    spec = FaultSpec(Where.FORWARD_OUTPUT, Element(1000.0), rank=13, step=23, seed=7)
    fault = Injection(spec, rank=rank, module=layer, step=lambda: guard.step + 1, phase=lambda: guard.phase)

`Injector(FaultPlan.parse(...))` is for faults with a name that live in a GPU: it binds to the rank's GPU UUID
at the first start, goes when the node goes, and strikes again if the job comes back to that GPU.
Out: wrong bits, through hooks on the user's own objects; numbers only, never a flag that a check could read.
The guard and the checks never import this module.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ._phase import Phase
from .errors import ConfigurationError
from .fault_plan import MEANING, Fault, FaultPlan, describe
from .fault_shapes import (
    Column,
    Compensate,
    Element,
    Flip,
    Lanes,
    Noise,
    Shape,
    Spot,
    StuckBit,
    Swap,
    Value,
    corrupted,
)
from .fault_sites import Injection
from .fault_spec import EVERYWHERE, REPLAYS, STEP_ONLY, FaultSpec, Persistence, Where

if TYPE_CHECKING:
    import torch

__all__ = [
    "Injection",
    "FaultSpec",
    "Where",
    "Persistence",
    "Shape",
    "Element",
    "Column",
    "Lanes",
    "Noise",
    "Flip",
    "StuckBit",
    "Value",
    "Swap",
    "Compensate",
    "Spot",
    "corrupted",
    "EVERYWHERE",
    "STEP_ONLY",
    "REPLAYS",
    "Phase",
    "Fault",
    "FaultPlan",
    "Injector",
    "StrikeRecord",
    "strike_records",
    "describe",
    "MEANING",
]

_GPU_FILE = "bad-gpu-"


@dataclass(frozen=True, slots=True)
class StrikeRecord:
    """What the disk says about one bad GPU."""

    rank: int  # that it had when the fault was bound to it
    gpu_uuid: str
    struck_step: int | None  # the first step that it spoiled; None: it has not struck


def strike_records(state_dir: Path) -> tuple[StrikeRecord, ...]:
    """Read which GPUs are bad and whether they have struck; empty before the first start."""
    records = []
    for file in sorted(state_dir.glob(f"{_GPU_FILE}?")):
        bound = json.loads(file.read_text())
        mark = _mark(state_dir, int(file.name.removeprefix(_GPU_FILE)))
        struck = int(mark.read_text()) if mark.exists() else None
        records.append(StrikeRecord(bound["rank"], bound["gpu_uuid"], struck))
    return tuple(records)


class Injector:
    """Puts one rank's share of a plan into effect; with one on every rank, each start binds alike.

    Args:
        plan: from `FaultPlan.parse`.
        module: a layer of the model that holds a `weight`, its output a floating tensor (or a tree with one).
        optimizer: whose update a weight flip follows; None: such faults are refused.
        gpu_uuid: of this rank.
        rank: this rank.
        state_dir: shared by all ranks and all attempts; holds the GPU that is bad and what has struck.
        phase: what the GPU is computing right now, such as ``lambda: guard.phase``; without a guard
            ``lambda: Phase.TRAINING``.

    Raises:
        ConfigurationError: the module or GPU cannot carry the fault.
    """

    def __init__(
        self,
        plan: FaultPlan,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        gpu_uuid: str | None,
        rank: int,
        state_dir: Path,
        phase: Callable[[], Phase],
    ) -> None:
        self.plan = plan
        self._phase = phase
        self._step = 0
        self._marked = False  # this process has made sure that the mark is there
        self._state_dir = state_dir
        self._injection: Injection | None = None
        self.index: int | None = None  # which of the plan's GPUs this is; None: a healthy one
        if plan.fault is Fault.NONE:
            return
        _refuse_layer(module, plan.fault)
        if gpu_uuid is None:
            raise ConfigurationError(
                f"rank {rank}: a fault lives in a GPU and this rank's GPU UUID is unknown; "
                "set NVIDIA_VISIBLE_DEVICES to the UUIDs of this node's GPUs"
            )
        self.index = _bind(plan, gpu_uuid, rank, state_dir)
        if self.index is None:
            return
        self._spec = plan.specs[self.index]
        self._injection = Injection(
            self._spec,
            rank=plan.ranks[self.index],  # whichever rank has come to the bad GPU
            step=lambda: self._step,
            phase=phase,
            module=module,
            optimizer=optimizer,
            index=self.index,
            gate=self._strikes,
        )

    def begin_step(self, step: int) -> None:
        """Tell the global step (1-based) that is about to be computed."""
        self._step = step

    def close(self) -> None:
        """Take all hooks off."""
        if self._injection is not None:
            self._injection.close()

    def _strikes(self) -> bool:
        """Whether the computation in progress is hit; the mark is on disk before the first strike."""
        assert self.index is not None
        if not self._spec.due(self._step, self._phase()):
            return False
        if self.plan.once:
            return _create(_mark(self._state_dir, self.index), str(self._step))
        if not self._marked:
            _create(_mark(self._state_dir, self.index), str(self._step))
            self._marked = True
        return True


def _refuse_layer(module: torch.nn.Module, fault: Fault) -> None:
    import torch

    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor):
        raise ConfigurationError(
            f"FAULT={fault.value}: {type(module).__name__} holds no weight; give the injector one layer"
        )
    if fault is Fault.WEIGHT_FLIP and weight.dtype != torch.float32:
        raise ConfigurationError(
            f"FAULT={fault.value}: flips a bit of a float32 weight, this one is {weight.dtype}"
        )


def _bind(plan: FaultPlan, gpu_uuid: str, rank: int, state_dir: Path) -> int | None:
    """Which of the plan's faults lives in this GPU; the first start writes down which GPU that is."""
    state_dir.mkdir(parents=True, exist_ok=True)
    for index, victim in enumerate(plan.ranks):
        file = state_dir / f"{_GPU_FILE}{index}"
        if rank == victim:
            _create(file, json.dumps({"rank": rank, "gpu_uuid": gpu_uuid}))
        if file.exists() and json.loads(file.read_text())["gpu_uuid"] == gpu_uuid:
            return index
    return None


def _mark(state_dir: Path, index: int) -> Path:
    return state_dir / f"struck-{index}"


def _create(file: Path, text: str) -> bool:
    """Write a file that must not be there yet and flush it to disk; False when it is there."""
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    with draft.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True
