"""The gate in front of the update: a few counters over all ranks, and in deferred mode a latch on the device.

Comes in: this rank's flags, still on the device. Goes out: `Tally`, equal on all ranks, now or one step
later. Next: `_update` judges it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from ._comm import Comm
from .checks.sharded import is_sharded

_FLAGS = 4  # counters in front of loss and norm; the fourth is there when something follows or it is on
_FIXED = 1 << 20  # loss and norm travel as fixed-point numbers, so that their sum has one order
_LARGEST = 1 << 20  # and are cut off here: 16,384 ranks of them fit into an int64


@dataclass(frozen=True, slots=True)
class Tally:
    """How many ranks raised each flag in one step."""

    nonfinite: int  # local gradient
    reduced: int  # reduced gradient
    overflow: int  # a GradScaler skips the step
    checksum: int = 0  # of the reduction
    loss: float = 0.0  # mean of the ranks' absolute losses; 0: not measured
    norm: float = 0.0  # mean of their norms of the reduced gradient, which is one and the same

    @property
    def suspicious(self) -> bool:
        """Whether check 1 has something to say."""
        return bool(self.nonfinite or self.reduced or self.checksum)


class Count:
    """The counters of one step, summed over the ranks; reading them waits for the device."""

    def __init__(self, counts: Tensor, ranks: int) -> None:
        self.device_counts = counts
        self._ranks = ranks
        self._host, self._ready = counts, None
        if counts.device.type == "cuda":
            self._host = torch.empty(counts.shape, dtype=counts.dtype, device="cpu", pin_memory=True)
            self._host.copy_(counts, non_blocking=True)
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record(torch.cuda.current_stream(counts.device))

    def read(self) -> Tally:
        """The numbers; on an accelerator at most one step's wait."""
        if self._ready is not None:
            self._ready.synchronize()
        counts = [int(c) for c in self._host.tolist()]
        means = (size / _FIXED / self._ranks for size in counts[_FLAGS:])
        return Tally(*counts[:_FLAGS], *means)


class Gate:
    """Keeps updates from being applied, without asking the host.

    Fused optimizers skip weights, moments and counter where `optimizer.found_inf` is exactly 1. GradScaler
    owns that attribute: what it found is kept. After a flagged step the gate stays shut until `open`,
    because the next step is computed before the host has read the flags.
    """

    def __init__(self, optimizers: tuple[Optimizer, ...], comm: Comm, device: torch.device) -> None:
        self._comm = comm
        self._device = device
        self._shut = torch.zeros((), dtype=torch.float32, device=device)
        self._none = torch.zeros((), dtype=torch.int64, device=device)
        self._lent: set[int] = set()  # optimizers that carry an attribute of ours
        self._with_momenta = tuple(o for o in optimizers if isinstance(o, SGD))
        # It is one plain tensor for all parameters, which optimizers refuse beside shards.
        self.on_device = all(
            group.get("fused") and not any(map(is_sharded, group["params"]))
            for o in optimizers
            for group in o.param_groups
        )

    def count(
        self,
        local: Tensor,
        reduced: Tensor,
        optimizer: Optimizer,
        checksum: Tensor | None = None,
        sizes: Sequence[Tensor] = (),
    ) -> Count:
        """Sum this step's flags (int64 scalars) over all ranks: one all-reduce, no wait for the device.

        Args:
            checksum: the flag of the reduction's checksum, where that is on.
            sizes: the loss and the norm of the reduced gradient, or neither.
        """
        found = getattr(optimizer, "found_inf", None)
        overflow = self._none if found is None else (found.reshape(-1)[0] > 0).to(torch.int64)
        flags = [local, reduced, overflow]
        if checksum is not None or sizes:
            flags.append(self._none if checksum is None else checksum)
        flags += [_fixed(size) for size in sizes]
        return Count(self._comm.sum_tensor(torch.stack(flags)), self._comm.world)

    def hold(self, count: Count, optimizer: Optimizer) -> None:
        """Shut the gate for this update and all later ones if this step is suspicious."""
        counts = count.device_counts.to(self._device)
        bad = (counts[0] + counts[1] + counts[3:_FLAGS].sum() > 0) & (counts[2] == 0)
        self._shut = torch.maximum(self._shut, bad.to(torch.float32))
        found = getattr(optimizer, "found_inf", None)
        shut = self._shut
        if found is not None:  # in its own tensor: the scaler reads what it found
            shut = torch.maximum(shut, (found.reshape(-1)[0] > 0).to(torch.float32).to(self._device))
        else:
            self._lent.add(id(optimizer))
        target: Any = optimizer
        target.found_inf = shut if found is None else shut.reshape(found.shape)

    def release(self, optimizer: Optimizer) -> None:
        """After the update: take the attribute away, unless it is a GradScaler's."""
        if id(optimizer) in self._lent:
            self._lent.discard(id(optimizer))
            del optimizer.found_inf  # type: ignore[attr-defined]

    @property
    def keeps_state(self) -> bool:
        """Whether an update that the gate stops leaves the optimizers' state as it was.

        Fused SGD makes its momenta in its first update, out of whatever lies in memory where that is stopped.
        """
        groups = ((o, group) for o in self._with_momenta for group in o.param_groups)
        return not any(_makes_momenta(o, group) for o, group in groups)

    def open(self) -> None:
        """The host has read the flags: updates are applied again."""
        self._shut = torch.zeros_like(self._shut)


def _makes_momenta(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether the next update makes the group's momenta, which torch does for all of them at once."""
    if not group.get("momentum"):
        return False
    made = (optimizer.state.get(p, {}).get("momentum_buffer") is not None for p in group["params"])
    return not any(made) and any(p.grad is not None for p in group["params"])


def ranks_that(comm: Comm, raised: int, own: Tensor) -> tuple[int, ...]:
    """Which ranks raised a flag: `raised` of them, this one if `own` is 1. A collective unless none did."""
    flags = comm.gather(int(own)) if raised else [0] * comm.world
    return tuple(rank for rank, flag in zip(comm.ranks, flags, strict=True) if flag)


def _fixed(size: Tensor) -> Tensor:
    """The absolute value as int64; 0 for NaN, which the flags tell."""
    clean = torch.nan_to_num(size.detach().double().abs(), nan=0.0, posinf=_LARGEST).clamp(max=_LARGEST)
    return (clean * _FIXED).to(torch.int64).reshape(())
