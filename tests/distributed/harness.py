"""The loop of the distributed tests: one process per rank, one `Plan` per scenario.

Comes in: RANK, WORLD_SIZE and friends from the launcher. Goes out: what each scenario ended with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.recording import RecordingReporter
from tests.distributed.small_model import (
    GPUS,
    Model,
    batch_for,
    compute_loss,
    fingerprint,
    fingerprint_optimizer,
    settings_for,
)
from training_agent import CheckpointStore, Schedule, attach
from training_agent.contract import encode
from training_agent.errors import CheckpointError, SdcAlarm
from training_agent.fault_plan import FaultPlan
from training_agent.faults import FaultSpec, Injection, Injector
from training_agent.guard import Guard

STEPS = 31


@dataclass
class Run:
    """What one scenario left behind on one rank."""

    alarm: str | None = None  # JSON
    message: str = ""
    step: int = 0  # last one applied
    weights: str = ""
    moments: str = ""
    before: list[str] = field(default_factory=list)  # weights, moments, RNG before the last update was tried
    after: list[str] = field(default_factory=list)  # the same after an alarm
    gradients_dropped: bool = True
    latched: bool = True
    manifest: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


OnStep = Callable[[nn.Module, int, int], None]  # model, rank, step
Fault = Callable[[nn.Module, Guard | None, int, Callable[[], int]], None]


@dataclass(frozen=True)
class Plan:
    """How one scenario departs from the plain loop."""

    fault: Fault | None = None
    steps: int = STEPS
    guarded: bool = True
    with_loss: bool = True
    data: Callable[[int, int], dict[str, Tensor]] = batch_for
    before_step: OnStep | None = None
    after_backward: Callable[[nn.Module, dict[str, Tensor]], None] | None = None
    after_update: OnStep | None = None
    forwards: int = 1  # per update
    schedule: Schedule = field(default_factory=lambda: Schedule(10, 10, None))
    injected: FaultPlan | None = None  # by the product's injector
    spec: FaultSpec | None = None  # one fault of the product, in the second block's narrow layer
    resume: dict[str, Any] | None = None
    store: bool = False  # save at checkpoint steps
    checkpoint_at: int | None = None
    naming: str = "full"


class TrainingJob:
    """One model per process, put back to its start for every scenario."""

    def __init__(self, rank: int, shared: Path, *, comm_hook: Any = None, **ddp_options: Any) -> None:
        torch.manual_seed(7)
        self.rank = rank
        self.shared = shared
        self.runs = 0
        self.model = Model()
        self.start = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.ddp = DistributedDataParallel(self.model, **ddp_options)
        if comm_hook is not None:
            self.ddp.register_comm_hook(None, comm_hook)

    def run(self, plan: Plan) -> Run:
        """Train as planned from the start, to the last step or to the alarm."""
        self._reset()
        optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=1e-2)
        self.runs += 1
        self.store = CheckpointStore(self.shared / f"checkpoints-{self.runs}", dist.get_world_size())
        self.reporter = RecordingReporter()
        guard = self._attach(plan, optimizer) if plan.guarded else None
        first = 1
        if plan.resume is not None:
            self.model.load_state_dict(plan.resume["model"])
            optimizer.load_state_dict(plan.resume["optimizer"])
            torch.set_rng_state(plan.resume["rng"])
            first = plan.resume["step"] + 1
        out = Run()
        step = [first]
        if plan.fault is not None:
            plan.fault(self.model, guard, self.rank, lambda: step[0])
        injector = None if plan.injected is None else self._injector(plan.injected, guard, optimizer)
        injection = None if plan.spec is None else self._injection(plan.spec, optimizer, lambda: step[0])
        try:
            if guard is None:
                warm_up_like_the_guard(self.ddp, plan.data(self.rank, first))
            elif plan.resume is not None:
                guard.after_load(plan.resume["sdc"])
            for step[0] in range(first, plan.steps + 1):
                if injector is not None:
                    injector.begin_step(step[0])
                self._step(plan, guard, optimizer, step[0], out)
        except (SdcAlarm, CheckpointError) as e:
            self._note_alarm(e, optimizer, guard, out)
        if guard is not None:
            self._note_guard(guard, out)
            guard.close()
        if injector is not None:
            injector.close()
        if injection is not None:
            out.notes["strikes"] = injection.strikes
            injection.close()
        out.weights, out.moments = fingerprint(self.model), fingerprint_optimizer(optimizer)
        return out

    def _reset(self) -> None:
        self.model.load_state_dict(self.start)
        self.model.train()
        for child in self.model.modules():
            child._forward_hooks.clear()
        for p in self.model.parameters():
            p.grad = None
            if p._backward_hooks:
                p._backward_hooks.clear()
        torch.manual_seed(100 + self.rank)

    def _attach(self, plan: Plan, optimizer: torch.optim.Optimizer) -> Guard:
        loss = compute_loss if plan.with_loss else None
        settings = settings_for(self.rank)
        self.guard = attach(
            self.ddp,
            optimizer,
            compute_loss=loss,
            schedule=plan.schedule,
            settings=settings,
            reporter=self.reporter,
            checkpoints=self.store if plan.store else None,
            naming=plan.naming,
        )
        return self.guard

    def _injector(self, plan: FaultPlan, guard: Guard | None, optimizer: torch.optim.Optimizer) -> Injector:
        gpu = settings_for(self.rank).gpu_uuids[self.rank % GPUS]
        state = self.shared / f"faults-{self.runs}"
        down = self.model.blocks[1].down
        return Injector(plan, down, optimizer, gpu, self.rank, state, lambda: guard.phase)

    def _injection(
        self, spec: FaultSpec, optimizer: torch.optim.Optimizer, step: Callable[[], int]
    ) -> Injection:
        layer = self.model.blocks[1].down
        return Injection(spec, rank=self.rank, step=step, module=layer, optimizer=optimizer)

    def _step(
        self, plan: Plan, guard: Guard | None, optimizer: torch.optim.Optimizer, step: int, out: Run
    ) -> None:
        if plan.before_step is not None:
            plan.before_step(self.model, self.rank, step)
        loss_of = guard.compute_loss if guard is not None and plan.with_loss else compute_loss
        optimizer.zero_grad(set_to_none=True)
        for _ in range(plan.forwards):
            batch = plan.data(self.rank, step)
            loss_of(self.ddp, batch, scale=1.0).backward()
            if plan.after_backward is not None:
                plan.after_backward(self.model, batch)
        if guard is not None and not self._sees_reduced(guard):
            out.notes["missed reduced gradients"] = step
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        out.before = self._state(optimizer)
        optimizer.step()
        if plan.after_update is not None:
            plan.after_update(self.model, self.rank, step)
        out.step = step
        if guard is not None and plan.store and plan.schedule.checkpoint_due(step):
            guard.before_save()
            if self.rank == 0:
                self.store.save(step, {"model": self.model.state_dict()}, guard.manifest())
            dist.barrier()
        if guard is not None and step == plan.checkpoint_at:
            guard.before_save()
            out.notes["checkpoint"] = {
                "model": {k: v.clone() for k, v in self.model.state_dict().items()},
                "optimizer": _copied(optimizer.state_dict()),
                "rng": torch.get_rng_state(),
                "step": step,
                "sdc": guard.manifest(),
            }

    def _sees_reduced(self, guard: Guard) -> bool:
        """Whether the ranks' shares make up the reduced gradients, not local ones, in every kind of DDP."""
        norms = guard._norms
        reduced = torch.stack([torch.linalg.vector_norm(p.grad) for p in self.model.parameters()])
        seen = torch.zeros(()) if norms._reduced is None else norms._reduced.square().sum()
        dist.all_reduce(seen)
        seen *= norms.share.ranks / dist.get_world_size()
        return torch.allclose(seen, reduced.square().sum(), equal_nan=True)

    def _state(self, optimizer: torch.optim.Optimizer) -> list[str]:
        rng = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:16]
        return [fingerprint(self.model), fingerprint_optimizer(optimizer), rng]

    def _note_alarm(
        self,
        error: SdcAlarm | CheckpointError,
        optimizer: torch.optim.Optimizer,
        guard: Guard | None,
        out: Run,
    ) -> None:
        out.message = str(error)
        out.after = self._state(optimizer)
        if isinstance(error, SdcAlarm):
            out.alarm = encode(error.alarm)
            out.gradients_dropped = all(p.grad is None for p in self.model.parameters())
            out.latched = _raises_again(optimizer, guard)

    def _note_guard(self, guard: Guard, out: Run) -> None:
        out.manifest = guard.manifest()
        out.notes["reported"] = self.reporter.noted()
        out.notes["checkpoints"] = [c.step for c in self.store.list() if c.complete and not c.doubtful]
        out.notes["deterministic left on"] = torch.are_deterministic_algorithms_enabled()
        out.notes["leaf hooks left"] = sum(len(p._backward_hooks or ()) for p in self.model.parameters())


def warm_up_like_the_guard(ddp: DistributedDataParallel, batch: dict[str, Tensor]) -> None:
    """The discarded pass of every start, for runs without a guard."""
    buffers = [b.clone() for b in ddp.buffers()]
    rng = torch.get_rng_state()
    for _ in range(2 if ddp.static_graph else 1):
        compute_loss(ddp, batch).backward()
        for p in ddp.parameters():
            p.grad = None
    torch.set_rng_state(rng)
    with torch.no_grad():
        for buffer, saved in zip(ddp.buffers(), buffers, strict=True):
            buffer.copy_(saved)


def _copied(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {k: _copied(v) for k, v in state.items()}
    return [_copied(v) for v in state] if isinstance(state, list) else state


def _raises_again(optimizer: torch.optim.Optimizer, guard: Guard | None) -> bool:
    assert guard is not None
    for attempt in (optimizer.step, guard.before_save):
        try:
            attempt()
        except SdcAlarm:
            continue
        return False
    return True
