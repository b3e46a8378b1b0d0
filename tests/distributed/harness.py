"""A small training job for the distributed tests: model, data, loop, faults as hooks. One process per rank.

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
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

from training_agent import CheckpointStore, Schedule, attach
from training_agent.contract import Alarm, Job, NodeRegistration, encode, to_plain
from training_agent.errors import CheckpointError, SdcAlarm
from training_agent.fault_plan import FaultPlan
from training_agent.faults import Injector
from training_agent.guard import Guard
from training_agent.report import StepChecks
from training_agent.settings import AgentSettings

GPUS = 2  # per fake node
STEPS = 31


class Block(nn.Module):
    """Norm, wide layer, dropout (so that RNG matters), narrow layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.up = nn.Linear(width, 2 * width)
        self.drop = nn.Dropout(0.2)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    """Two blocks between two tied-size layers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x)))


def compute_loss(model: nn.Module, batch: dict[str, Tensor], *, scale: float = 1.0) -> Tensor:
    """Cross entropy under bf16 autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch["x"])
    return F.cross_entropy(logits.float(), batch["y"]) * (scale * LOSS_FACTOR)


def batch_for(rank: int, step: int) -> dict[str, Tensor]:
    """Seeded data, other for each rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {
        "x": torch.randn(12, 8, generator=generator),
        "y": torch.randint(0, 4, (12,), generator=generator),
    }


def settings_for(rank: int) -> AgentSettings:
    """Fake nodes with GPUS ranks each."""
    node = rank // GPUS
    return AgentSettings(
        cluster="test",
        job=Job("job", "uid"),
        node=f"hyperpod-i-{node:017x}",
        gpu_uuids=tuple(f"GPU-{node}-{i}" for i in range(GPUS)),
    )


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


LOSS_FACTOR = 1.0  # a fault in the loss function of one rank
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
    resume: dict[str, Any] | None = None
    store: bool = False  # save at checkpoint steps
    checkpoint_at: int | None = None


class RecordingReporter:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.registrations: list[NodeRegistration | None] = []
        self.steps: list[tuple[int, StepChecks]] = []
        self.alarms: list[Alarm] = []
        self.closed = False

    def started(self, registration: NodeRegistration | None) -> None:
        self.registrations.append(registration)

    def progress(self, step: int, checks: StepChecks) -> None:
        self.steps.append((step, checks))

    def alarm(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)

    def close(self) -> None:
        self.closed = True

    def noted(self) -> dict[str, Any]:
        """For the tests, JSON-able."""
        return {
            "registrations": [None if r is None else to_plain(r) for r in self.registrations],
            "steps": [step for step, _ in self.steps],
            "audited": [step for step, checks in self.steps if checks.audited],
            "weight-checked": [step for step, checks in self.steps if checks.weight_checked],
            "alarms": [encode(a) for a in self.alarms],
        }


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
        return attach(
            self.ddp,
            optimizer,
            compute_loss=loss,
            schedule=plan.schedule,
            settings=settings,
            reporter=self.reporter,
            checkpoints=self.store if plan.store else None,
        )

    def _injector(self, plan: FaultPlan, guard: Guard | None, optimizer: torch.optim.Optimizer) -> Injector:
        gpu = settings_for(self.rank).gpu_uuids[self.rank % GPUS]
        state = self.shared / f"faults-{self.runs}"
        down = self.model.blocks[1].down
        return Injector(plan, down, optimizer, gpu, self.rank, state, lambda: guard.phase)

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
        """Whether check 1 read the reduced gradients and not the local ones, in every kind of DDP."""
        reduced = torch.stack([torch.linalg.vector_norm(p.grad) for p in self.model.parameters()])
        seen = guard._norms._reduced
        return seen is not None and torch.allclose(seen, reduced, equal_nan=True)

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


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over parameters and buffers."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def fingerprint_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over moments and counters."""
    digest = hashlib.sha256()
    for state in optimizer.state.values():
        for key in sorted(state):
            digest.update(state[key].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


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
