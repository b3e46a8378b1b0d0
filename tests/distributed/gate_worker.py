"""One of two ranks: steps that deferred mode or a GradScaler does not apply, and runs that must end alike.

Usage: gate_worker.py OUT_DIR, with RANK and friends set.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from tests.bench.counting import counted
from tests.distributed.models import Net, batch_for, loss_of
from tests.distributed.models_worker import run_all
from tests.distributed.small_model import fingerprint, settings_for
from training_agent import Schedule, _evidence, attach
from training_agent.errors import SdcAlarm
from training_agent.schedule import ScheduleWarning

STEPS = 7
INF = float("inf")


@dataclass(frozen=True)
class Plan:
    """One run; `mode` None is without a guard."""

    mode: str | None = "deferred"
    policy: str = "stop"
    several: bool = False  # optimizers: one for the head, the last one to step, and one for the rest
    momenta: bool = False  # fused SGD, not AdamW
    fused: bool = True
    audit_every: int | None = None
    nan_at: int = 0  # in the batch of rank 1
    scale: float = 8.0  # of the GradScaler
    scaled: str = ""  # "all" optimizers are a GradScaler's, or there is one that has none of them: "idle"
    overflow_at: int = 0
    overflows: tuple[str, ...] = ()  # layers whose gradients overflow on both ranks
    default_device: str = "cpu"  # of tensors that say nothing


class Job:
    """One model in training."""

    def __init__(self, plan: Plan, rank: int) -> None:
        torch.manual_seed(5)
        self.plan, self.rank, self.now = plan, rank, 0
        self.batches = [batch_for(rank, step) for step in range(STEPS + 1)]
        if rank == 1 and plan.nan_at:
            self.batches[plan.nan_at]["x"][0, 0] = torch.nan
        self.net = Net()
        self.ddp = DistributedDataParallel(self.net)
        self.optimizers = _optimizers(plan, self.net)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=plan.scale, enabled=bool(plan.scaled))
        for name in plan.overflows:
            bias: Any = self.net.get_submodule(name).bias
            bias.register_hook(lambda g: g * INF if self.now == plan.overflow_at else g)
        self.loss: Callable[..., Tensor] = loss_of
        self.guard: Any = None

    def attach(self) -> None:
        """Guard it."""
        plan = self.plan
        self.guard = attach(
            self.ddp,
            self.optimizers if plan.several else self.optimizers[0],
            compute_loss=loss_of,
            schedule=Schedule(plan.audit_every, 5, None),
            settings=settings_for(self.rank),
            mode=plan.mode or "",
            policy=plan.policy,
        )
        self.loss = self.guard.compute_loss

    def step(self) -> None:
        """One training step."""
        self.now += 1
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.loss(self.ddp, self.batches[self.now])
        scaled = self.plan.scaled == "all"
        (self.scaler.scale(loss) if scaled else loss).backward()
        _fill_free_memory(self.net, float("nan"))
        for optimizer in self.optimizers:
            _ = self.scaler.step(optimizer) if scaled else optimizer.step()
        if scaled:
            self.scaler.update()


def train(plan: Plan, rank: int) -> dict[str, Any]:
    """Train, and say how it ended."""
    job, out = Job(plan, rank), dict[str, Any](alarm=0)
    _evidence._WIDENED.clear()  # as in a process of its own
    torch.set_default_device(plan.default_device)
    if plan.mode is not None:
        job.attach()
    try:
        for _ in range(STEPS - 1):
            job.step()
        counts = counted(job.step)
        out["last step"] = {"host syncs": sum(counts.syncs.values()), "late": counts.late_reads}
        if job.guard is not None:
            job.guard.close()
    except SdcAlarm as e:
        out["alarm"] = e.alarm.step
    if job.guard is not None:
        out["steps"], out["notes"] = job.guard.step, job.guard.manifest()["notes"]
        job.guard.abandon()
    torch.set_default_device(None)
    out["state"] = [fingerprint(job.net), *(_moments(o) for o in job.optimizers)]
    return out


def _optimizers(plan: Plan, net: Net) -> list[Optimizer]:
    head = list(net.head.parameters())
    rest = [p for p in net.parameters() if all(p is not q for q in head)]

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        if plan.momenta:
            return SGD(parameters, lr=1e-2, momentum=0.9, fused=plan.fused)
        return AdamW(parameters, lr=1e-2, fused=plan.fused)

    return [make(rest), make(head)] if plan.several else [make(rest + head)]


def _fill_free_memory(net: nn.Module, value: float) -> None:
    """What an optimizer makes without writing to it is not zero by chance."""
    _ = [torch.full_like(p, value) for p in net.parameters() for _ in range(8)]


def _moments(optimizer: Optimizer) -> str:
    digest = hashlib.sha256()
    for state in optimizer.state.values():
        for key in sorted(state):
            if isinstance(state[key], Tensor):
                digest.update(state[key].numpy().tobytes())
    return digest.hexdigest()[:16]


SKIPPED = {
    "between audits": Plan(policy="skip", nan_at=4),
    "on an audited step": Plan(policy="skip", nan_at=4, audit_every=4),
    "of two optimizers": Plan(policy="skip", nan_at=4, several=True),
    "first one, with momenta": Plan(policy="skip", nan_at=1, momenta=True),
}
OVERFLOWS = {
    f"{'fused' if fused else 'not fused'}, {' and '.join(layers)}": Plan(
        several=True, fused=fused, scaled="all", overflow_at=4, overflows=layers
    )
    for fused in (True, False)
    for layers in (("up",), ("head",), ("up", "head"))
}


def scenarios(rank: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """All runs by name."""
    plans: dict[str, Plan] = {}
    for name, plan in SKIPPED.items():
        plans |= {f"{name}: {mode}": replace(plan, mode=mode) for mode in ("immediate", "deferred")}
    for name, plan in OVERFLOWS.items():
        plans |= {f"{name}: {mode}": replace(plan, mode=mode) for mode in (None, "immediate", "deferred")}
    plans["first overflow, with momenta"] = Plan(momenta=True, scaled="all", overflow_at=1, overflows=("up",))
    for mode in (None, "immediate", "deferred"):
        plans[f"a grown scale: {mode}"] = Plan(mode, scaled="all", scale=2.0**70)
    plans["a grown scale, and a NaN"] = Plan("immediate", scaled="all", scale=2.0**70, fused=False, nan_at=4)
    plans["an idle scaler"] = Plan("immediate", several=True, nan_at=4, scaled="idle")
    for name, where in (("default device", "meta"), ("default device: None", "cpu")):
        plans[name] = Plan(audit_every=2, default_device=where)
    plans["two optimizers"] = Plan(several=True)
    plans["two optimizers: None"] = Plan(None, several=True)
    return {name: lambda plan=plan: train(plan, rank) for name, plan in plans.items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore", ScheduleWarning)
    torch.set_num_threads(1)
    run_all(Path(sys.argv[1]), scenarios)
