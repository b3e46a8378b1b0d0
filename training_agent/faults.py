"""Seeded fault injection, for the demo, for tests, for drills on your own cluster.

In: a plan (`FaultPlan.parse`). Out: wrong bits at that place, through hooks on the user's own objects.
The guard and the checks never import this module. A fault lives in a GPU: it binds to its rank's GPU UUID at
the first start, goes when the node goes, and strikes again if the job comes back to that GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._phase import Phase
from .errors import ConfigurationError
from .fault_plan import MEANING, PHASES, Fault, FaultPlan, describe, scatter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Fault", "FaultPlan", "Injector", "Phase", "StrikeRecord", "strike_records", "describe", "MEANING"]

FACTOR = 1000
FLIPPED_BIT = 22  # the highest bit of a float32 mantissa
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
        optimizer: whose update a weight flip follows.
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
        optimizer: torch.optim.Optimizer,
        gpu_uuid: str | None,
        rank: int,
        state_dir: Path,
        phase: Callable[[], Phase],
    ) -> None:
        self.plan = plan
        self._module = module
        self._phase = phase
        self._step = 0
        self._marked = False  # this process has made sure that the mark is there
        self._state_dir = state_dir
        self._handles: list[Any] = []
        self.index: int | None = None  # which of the plan's GPUs this is; None: a healthy one
        if plan.fault is Fault.NONE:
            return
        weight = _weight_of(module, plan.fault)
        if gpu_uuid is None:
            raise ConfigurationError(
                f"rank {rank}: a fault lives in a GPU and this rank's GPU UUID is unknown; "
                "set NVIDIA_VISIBLE_DEVICES to the UUIDs of this node's GPUs"
            )
        self.index = _bind(plan, gpu_uuid, rank, state_dir)
        if self.index is None:
            return
        if plan.fault is Fault.WEIGHT_FLIP:
            handle = optimizer.register_step_post_hook(self._after_update)
            # first of all post-hooks: a weight check of this very step must see the flip
            optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
            self._handles.append(handle)
        elif plan.fault is Fault.WEIGHT_GRAD:
            self._handles.append(weight.register_hook(self._on_weight_grad))  # type: ignore[no-untyped-call]
        else:
            self._handles.append(module.register_forward_hook(self._on_forward))

    def begin_step(self, step: int) -> None:
        """Tell the global step (1-based) that is about to be computed."""
        self._step = step

    def close(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _strikes(self) -> bool:
        """Whether the computation in progress is hit; the mark is on disk before the first strike."""
        assert self.index is not None
        if self.plan.once:
            due = self._step == self.plan.step and self._phase() is Phase.TRAINING
            return due and _create(_mark(self._state_dir, self.index), str(self._step))
        if self._step < self.plan.step or self._phase() not in PHASES[self.plan.fault]:
            return False
        if not self._marked:
            _create(_mark(self._state_dir, self.index), str(self._step))
            self._marked = True
        return True

    def _on_forward(self, module: Any, args: Any, output: Any) -> Any:
        if not self._strikes():
            return None
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, tree = tree_flatten(output)
        position = next(i for i, leaf in enumerate(leaves) if _is_floating(leaf))
        leaves[position] = self._spoil(leaves[position])
        return tree_unflatten(leaves, tree)

    def _on_weight_grad(self, grad: Tensor) -> Tensor | None:
        return self._spoil(grad) if self._strikes() else None

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._strikes():
            return
        import torch

        with torch.no_grad():
            weight: Tensor = self._module.weight  # type: ignore[assignment]
            flat = weight.detach().view(-1).view(torch.int32)
            flat[self._element(weight)] ^= 1 << FLIPPED_BIT

    def _spoil(self, tensor: Tensor) -> Tensor:
        """Add a detached delta to one element, so that the gradient path stays as it was."""
        import torch

        with torch.no_grad():
            delta = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
            at = self._element(tensor)
            value = tensor.detach().reshape(-1)[at]
            wrong = value * (FACTOR - 1)
            if self.plan.fault is Fault.NAN_ONCE:
                wrong = torch.full_like(value, float("nan"))
            delta.view(-1)[at] = wrong
        return tensor + delta

    def _element(self, tensor: Tensor) -> int:
        """Flat index of the largest magnitude in a row chosen by seed and GPU: never about zero."""
        rows = (
            tensor.detach().reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.detach().reshape(1, 1)
        )
        index = self.index or 0
        # the first half: a loss that drops the last positions still sees it; two GPUs get two rows
        choices = max(1, rows.shape[0] // 2)
        row = (scatter(self.plan.seed) + index * max(1, choices // 2)) % choices
        if not rows[row].any():  # nothing there to multiply
            return int(rows.abs().float().argmax())
        return row * rows.shape[1] + int(rows[row].abs().float().argmax())


def _weight_of(module: torch.nn.Module, fault: Fault) -> Tensor:
    import torch

    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor):
        raise ConfigurationError(
            f"FAULT={fault.value}: {type(module).__name__} holds no weight; give the injector one layer"
        )
    if fault is Fault.WEIGHT_FLIP and (weight.dtype != torch.float32 or not weight.is_contiguous()):
        raise ConfigurationError(
            f"FAULT={fault.value}: flips a bit of a contiguous float32 weight, this one is {weight.dtype}"
        )
    return weight


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


def _is_floating(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
