"""A small training job for the distributed tests: model, data, loop, faults as hooks. One process per rank.

Comes in: RANK, WORLD_SIZE and friends from the launcher. Goes out: what each scenario ended with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

from training_agent import Schedule, attach
from training_agent._phase import Phase
from training_agent.contract import Alarm, Job, encode
from training_agent.errors import SdcAlarm
from training_agent.guard import Guard
from training_agent.settings import AgentSettings

GPUS = 2  # per fake node
STEPS = 33


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
    return F.cross_entropy(logits.float(), batch["y"]) * scale


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
    alarm_error: str = ""
    step: int = 0
    weights: str = ""
    moments: str = ""
    weights_before: str = ""  # before the step that alarmed
    rng_intact: bool = True
    gradients_dropped: bool = True
    latched: bool = True
    manifest: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


Fault = Callable[[nn.Module, Guard | None, int, Callable[[], int]], None]


class Job_:
    """One model per process, put back to its start for every scenario."""

    def __init__(self, rank: int, **ddp_options: Any) -> None:
        torch.manual_seed(7)
        self.rank = rank
        self.model = Model()
        self.start = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.ddp = DistributedDataParallel(self.model, **ddp_options)

    def run(
        self,
        fault: Fault | None = None,
        *,
        steps: int = STEPS,
        guarded: bool = True,
        with_loss: bool = True,
        data: Callable[[int, int], dict[str, Tensor]] = batch_for,
        after_backward: Callable[[nn.Module, int], None] | None = None,
        after_update: Callable[[nn.Module, int], None] | None = None,
        schedule: Schedule | None = None,
        clip: float | None = 1.0,
        resume: dict[str, Any] | None = None,
        checkpoint_at: int | None = None,
    ) -> Run:
        self.model.load_state_dict(self.start)
        for child in self.model.modules():
            child._forward_hooks.clear()
        for p in self.model.parameters():
            p.grad = None
            if p._backward_hooks:
                p._backward_hooks.clear()
        torch.manual_seed(100 + self.rank)
        optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=1e-2)
        out = Run()
        schedule = schedule or Schedule(audit_every=10, check_every=10, ckpt_every=None)
        guard = None
        if guarded:
            guard = attach(
                self.ddp,
                optimizer,
                compute_loss=compute_loss if with_loss else None,
                schedule=schedule,
                settings=settings_for(self.rank),
                reporter=None,
            )
        first = 1
        if resume is not None:
            self.model.load_state_dict(resume["model"])
            optimizer.load_state_dict(resume["optimizer"])
            torch.set_rng_state(resume["rng"])
            first = resume["step"] + 1
            if guard is not None:
                guard.after_load(resume["sdc"])
        elif not guarded:
            warm_up_like_the_guard(self.ddp, data(self.rank, 1))
        step = [first]
        if fault is not None:
            fault(self.model, guard, self.rank, lambda: step[0])
        try:
            for step[0] in range(first, steps + 1):
                loss_of = guard.compute_loss if guard is not None and with_loss else compute_loss
                optimizer.zero_grad(set_to_none=True)
                loss = loss_of(self.ddp, data(self.rank, step[0]), scale=1.0)
                loss.backward()
                if after_backward is not None:
                    after_backward(self.model, step[0])
                if clip is not None:
                    nn.utils.clip_grad_norm_(self.model.parameters(), clip)
                before, rng = fingerprint(self.model), torch.get_rng_state()
                moments = fingerprint_optimizer(optimizer)
                optimizer.step()
                if after_update is not None:
                    after_update(self.model, step[0])
                out.step = step[0]
                if step[0] == checkpoint_at and guard is not None:
                    guard.before_save()
                    out.notes["checkpoint"] = {
                        "model": {k: v.clone() for k, v in self.model.state_dict().items()},
                        "optimizer": _copied(optimizer.state_dict()),
                        "rng": torch.get_rng_state(),
                        "step": step[0],
                        "sdc": guard.manifest(),
                    }
        except SdcAlarm as e:
            out.alarm, out.message = encode(e.alarm), str(e)
            out.weights_before = before
            out.rng_intact = torch.equal(rng, torch.get_rng_state())
            out.notes["moments_intact"] = moments == fingerprint_optimizer(optimizer)
            out.gradients_dropped = all(p.grad is None for p in self.model.parameters())
            out.latched = _raises_again(optimizer, guard)
        if guard is not None:
            out.manifest = guard.manifest()
            out.notes["audits"] = (guard._ledger.audits_passed, guard._ledger.audits_skipped)
            out.notes["deterministic_left_on"] = torch.are_deterministic_algorithms_enabled()
            guard.close()
        out.weights = fingerprint(self.model)
        out.moments = fingerprint_optimizer(optimizer)
        return out


def warm_up_like_the_guard(ddp: DistributedDataParallel, batch: dict[str, Tensor]) -> None:
    """The discarded pass of every start, for runs without a guard."""
    buffers = [b.clone() for b in ddp.buffers()]
    rng = torch.get_rng_state()
    compute_loss(ddp, batch).backward()
    torch.set_rng_state(rng)
    for p in ddp.parameters():
        p.grad = None
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


def strikes(phases: tuple[Phase, ...], guard: Guard | None) -> bool:
    return (guard.phase if guard is not None else Phase.TRAINING) in phases


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


def alarm_of(text: str) -> Alarm:
    from training_agent.contract import decode

    return decode(Alarm, text)
