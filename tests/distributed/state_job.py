"""One of three ranks: buffers, statistics, moments, masters, healthy and hit. Usage: OUT_DIR [soaked]."""

from __future__ import annotations

import copy
import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.bench.counting import counted
from tests.distributed.models import batch_for
from tests.distributed.small_model import fingerprint, settings_for
from tests.distributed.state_models import (
    EVERYWHERE,
    Buffered,
    Checkpointed,
    Counting,
    CountingLater,
    Halves,
    Histogram,
    Preconditioned,
    spoilt_statistics,
    unsteady_momentum,
)
from training_agent import Guard, Schedule, _statistics, attach
from training_agent._phase import Phase
from training_agent.contract import encode
from training_agent.errors import AgentError, SdcAlarm

RANK = int(os.environ.get("RANK", "0"))
CHECKS = Schedule(None, 2, 2)  # compared with all that is saved at 2, 4, 6, ...
AUDITS = Schedule(2, 100, None)
Act = Callable[["Job", int], None]


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


@dataclass
class Job:
    """One guarded loop. `written`, `hit`: right before the update of each step."""

    build: Callable[[], nn.Module] = Buffered
    schedule: Schedule = CHECKS
    steps: int = 6
    prepare: Act = lambda job, step: None
    hit: Act = lambda job, step: None
    between: Act = lambda job, step: None  # before the forward of each step
    masters: str = ""  # "one each" or "flat"
    other: bool = False  # the masters do not hold the model's values
    extra: bool = False  # the optimizer also holds a rank's own parameter
    micro_batches: int = 1
    ddp: dict[str, Any] = field(default_factory=dict)
    policy: str = "stop"
    kind: type[torch.optim.AdamW] = torch.optim.AdamW
    model: Any = None
    guard: Guard | None = None
    step: int = 0
    hit_at: int = -1

    def run(self) -> dict[str, Any]:
        torch.manual_seed(3)
        self.model = self.build()
        ddp = DistributedDataParallel(self.model, **self.ddp)
        self.held = self._masters() or list(self.model.parameters())
        own = [nn.Parameter(torch.full((4,), float(RANK)))] if self.extra else []
        self.optimizer = self.kind([*self.held, *own], lr=1e-2)
        try:
            self.guard = attach(
                ddp,
                self.optimizer,
                compute_loss=loss_of,
                schedule=self.schedule,
                settings=settings_for(RANK),
                policy=self.policy,
                finish=self._copy_gradients if self.policy == "retry" else None,
            )
            # first of all: a check of this very step must see what the hook below does
            self.prepare(self, 0)
            handle = self.optimizer.register_step_post_hook(lambda *_: self._hit_once())
            self.optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
            for step in range(1, self.steps + 1):
                self.step = step
                self._step(ddp)
            self.guard.close()
        except SdcAlarm as e:
            return {"alarm": encode(e.alarm), "error": str(e), **self._books()}
        except AgentError as e:
            return {"alarm": None, "error": str(e)}
        return {"alarm": None, "error": "", **self._books()}

    def _hit_once(self) -> None:
        """The step of an optimizer's subclass may call its parent's, with all hooks."""
        if self.step != self.hit_at:
            self.hit_at = self.step
            self.hit(self, self.step)

    def saved(self) -> dict[str, Any]:
        """What a checkpoint of the last step holds."""
        found = self.run()
        return copy.deepcopy(
            {
                "sdc": found["manifest"],
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            }
        )

    def load(self, checkpoint: dict[str, Any], *, optimizer: bool = True) -> dict[str, Any]:
        """Begin again from a checkpoint, and train one step."""

        def prepare(_job: Job, _step: int) -> None:
            assert self.guard is not None
            self.model.load_state_dict(checkpoint["model"])
            if optimizer:
                self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.guard.after_load(checkpoint["sdc"])

        self.prepare, self.steps = prepare, 1
        return self.run()

    def _books(self) -> dict[str, Any]:
        assert self.guard is not None
        return {"manifest": self.guard.manifest(), "end": fingerprint(self.model)}

    def _step(self, ddp: nn.Module) -> None:
        assert self.guard is not None
        self.between(self, self.step)
        self.model.zero_grad()
        for micro in range(self.micro_batches):
            last = micro == self.micro_batches - 1
            with nullcontext() if last else ddp.no_sync():  # type: ignore[operator]
                self.guard.compute_loss(ddp, batch_for(RANK, self.step, micro)).backward()
        self._copy_gradients()
        self.optimizer.step()
        if self.masters:
            self._copy_back()

    def _copy_gradients(self) -> None:
        if self.masters:
            grads = [p.grad.float() for p in self.model.parameters()]
            flat = torch.cat([g.reshape(-1) for g in grads])
            for master, grad in zip(self.held, [flat] if self.masters == "flat" else grads, strict=True):
                master.grad = grad

    def _masters(self) -> list[nn.Parameter]:
        copies = [p.detach().float().clone() for p in self.model.parameters()] if self.masters else []
        if self.other:
            copies[0] += 1
        if self.masters == "flat":
            copies = [torch.cat([c.reshape(-1) for c in copies])]
        return [nn.Parameter(c) for c in copies]

    def _copy_back(self) -> None:
        sizes = [p.numel() for p in self.model.parameters()]
        values = torch.cat([m.detach().reshape(-1) for m in self.held]).split(sizes)
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), values, strict=True):
                p.copy_(value.view_as(p))


def flip(tensor: Tensor, bit: int = 20, at: int = 5) -> None:
    """As the memory would: no version counter moves."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    tensor.data.view(words).view(-1)[at] ^= 1 << bit


def flipped(name: str, rank: int, step: int, **how: int) -> Act:
    return lambda job, now: flip(job.model.get_buffer(name), **how) if (rank, step) == (RANK, now) else None


def moment_flipped(key: str, rank: int, step: int) -> Act:
    def act(job: Job, now: int) -> None:
        if (rank, step) == (RANK, now):
            flip(job.optimizer.state[job.held[0]][key])

    return act


def preconditioner_flipped(job: Job, now: int) -> None:
    if (RANK, now) == (2, 4):
        flip(job.optimizer.state[job.held[0]]["GG"][1]["left"])


def weight_flipped(job: Job, now: int) -> None:
    if (RANK, now) == (2, 2):  # at the first comparison of all
        flip(job.model.head.weight)


def master_flipped(job: Job, now: int) -> None:
    if (RANK, now) == (1, 4):
        flip(job.held[-1], bit=3, at=1)  # not in the bf16 copy


def nan_gradient(job: Job, _now: int) -> None:
    """On rank 1, in step 3."""
    if RANK == 1:
        job.model.head.bias.register_hook(lambda g: g * float("nan") if job.step == 3 else g)


def nan_once(job: Job, _now: int) -> None:
    """On rank 1, in step 3, and not when that is computed again."""
    left = [RANK == 1]

    def spoil(gradient: Tensor) -> Tensor:
        if job.step != 3 or job.guard is None or job.guard.phase is not Phase.TRAINING or not left[0]:
            return gradient
        left[0] = False
        return gradient * float("nan")

    job.model.head.bias.register_hook(spoil)


def legal_writes(job: Job, now: int) -> None:
    """What loops do with buffers; nothing of it is a fault."""
    model = job.model
    model.mine.data += RANK + 1
    if now >= 5 and RANK == 2:
        model.late += 1  # in place: the counter tells
    if now == 5:
        model.register_buffer("born", torch.full((3,), float(RANK)))
        model.halves = model.halves.clone()  # replaced
        model.eighth.resize_(40).zero_()


def says(values: tuple[int, ...], name: str = "spoken", at: int = 4) -> Act:
    """These ranks write through `.data` from step `at` on."""

    def act(job: Job, now: int) -> None:
        if now >= at and RANK in values:
            job.model.get_buffer(name).data[1] += 1

    return act


def statistics_fault(phases: tuple[Phase, ...], steps: range) -> Act:
    def prepare(job: Job, _now: int) -> None:
        def strikes() -> bool:
            guard = job.guard
            return guard is not None and guard.step + 1 in steps and guard.phase in phases

        if RANK == 1:
            spoilt_statistics(job.model, strikes)

    return prepare


def other_momentum(job: Job, now: int) -> None:
    if RANK == 0 and now == 3:
        job.model.norm.momentum = 0.3


def damaged_moment(checkpoint: dict[str, Any]) -> None:
    flip(checkpoint["optimizer"]["state"][1]["exp_avg_sq"])


def damaged_buffer(checkpoint: dict[str, Any]) -> None:
    flip(checkpoint["model"]["positions"])


def without_state(checkpoint: dict[str, Any]) -> None:
    """As the agent before this one wrote it."""
    del checkpoint["sdc"]["state_digests"]
    damaged_moment(checkpoint)


def loaded(damage: Callable[[dict[str, Any]], None], **how: bool) -> dict[str, Any]:
    checkpoint = Job(steps=4).saved()
    damage(checkpoint)
    return Job().load(checkpoint, **how)


def cost() -> dict[str, Any]:
    """What one check sends and waits for, without and with what is saved beside the weights."""
    found: dict[str, Any] = {}

    def look(job: Job, now: int) -> None:
        assert job.guard is not None
        if now in (3, 5):  # between the steps; buffers were learned at step 2
            check = partial(job.guard._update.check_weights, state=now == 5)
            found["state" if now == 5 else "weights"] = counted(check).as_dict()

    job = Job(between=look, schedule=Schedule(None, 2, 2), steps=5)
    books = job.run()
    assert not books["error"]
    return {**found, "weights_there": len(list(job.model.parameters())), **books}


def blind(job: Job) -> dict[str, Any]:
    """The same without the comparison of statistics."""
    own, _statistics.Statistics.now = _statistics.Statistics.now, lambda _self: []  # type: ignore[method-assign]
    try:
        return job.run()
    finally:
        _statistics.Statistics.now = own  # type: ignore[method-assign]


def saving(*, together: bool) -> Act:
    """After step 4."""

    def act(job: Job, now: int) -> None:
        if now == 5:
            assert job.guard is not None
            job.guard.before_save(together=together)

    return act


ALONE = {"broadcast_buffers": False}
ELSEWHERE = Schedule(None, 2, 100)  # saves are due at 100
LONG = Schedule(None, 1, 1)
PERSISTENT = statistics_fault(EVERYWHERE, range(3, 99))
RUNS: dict[str, Callable[[], dict[str, Any]]] = {
    "buffers: clean": Job(hit=legal_writes, steps=10).run,
    "buffers: clean, not broadcast": Job(hit=legal_writes, ddp=ALONE, steps=10).run,
    "table, rank 1": Job(hit=flipped("table", 1, 4)).run,
    "table, rank 0": Job(hit=flipped("table", 0, 4)).run,
    "phases, rank 2": Job(hit=flipped("phases", 2, 4)).run,
    "table before the last check": Job(
        hit=flipped("table", 2, 5), ddp=ALONE, schedule=Schedule(None, 1, 4), steps=8
    ).run,
    "table spread": Job(hit=flipped("table", 0, 3)).run,
    "table overwritten": Job(hit=flipped("table", 1, 3)).run,
    "mask, rank 1": Job(hit=flipped("mask", 1, 4, bit=0)).run,
    "halves, rank 2": Job(
        hit=lambda job, now: job.model.halves.data[3:4].mul_(3) if (RANK, now) == (1, 4) else None
    ).run,
    "data of one rank": Job(hit=says((1,))).run,
    "data of one rank, warn": Job(hit=says((1,)), policy="warn", steps=8).run,
    "data of two ranks": Job(hit=says((1, 2))).run,
    "data of all ranks": Job(hit=says((0, 1, 2))).run,
    "moment exp_avg": Job(hit=moment_flipped("exp_avg", 2, 4)).run,
    "moment exp_avg_sq": Job(hit=moment_flipped("exp_avg_sq", 0, 4)).run,
    "moment, saved together": Job(
        hit=moment_flipped("exp_avg", 2, 4), schedule=ELSEWHERE, between=saving(together=True), steps=5
    ).run,
    "moment, saved elsewhere": Job(
        hit=moment_flipped("exp_avg", 2, 4), schedule=ELSEWHERE, between=saving(together=False), steps=5
    ).run,
    "preconditioner": Job(kind=Preconditioned).run,
    "preconditioner, flipped": Job(kind=Preconditioned, hit=preconditioner_flipped).run,
    "counted by rank": Job(kind=Counting).run,
    "counted by rank, moment": Job(kind=Counting, hit=moment_flipped("exp_avg", 2, 4)).run,
    "counted by rank, weight": Job(kind=Counting, hit=weight_flipped).run,
    "counted by rank, later": Job(kind=CountingLater).run,
    "masters: clean": Job(Halves, masters="one each").run,
    "masters: flat": Job(Halves, masters="flat").run,
    "masters: flipped": Job(Halves, masters="one each", hit=master_flipped).run,
    "masters: flat, flipped": Job(Halves, masters="flat", hit=master_flipped).run,
    "masters: moment": Job(Halves, masters="one each", hit=moment_flipped("exp_avg_sq", 1, 4)).run,
    "masters: nan, skipped": Job(Halves, masters="one each", prepare=nan_gradient, policy="skip").run,
    "masters: retried": Job(Halves, masters="one each", prepare=nan_once, policy="retry").run,
    "masters: others": Job(Halves, masters="one each", other=True).run,
    "extra": Job(Halves, extra=True).run,
    "cost": cost,
    "loaded": lambda: loaded(lambda _checkpoint: None),
    "loaded: damaged moment": lambda: loaded(damaged_moment),
    "loaded: damaged buffer": lambda: loaded(damaged_buffer),
    "loaded: older manifest": lambda: loaded(without_state),
    "loaded: optimizer later": lambda: loaded(damaged_moment, optimizer=False),
    "statistics: persistent": Job(schedule=AUDITS, prepare=PERSISTENT).run,
    "statistics: once": Job(schedule=AUDITS, prepare=statistics_fault((Phase.TRAINING,), range(4, 5))).run,
    "statistics: blind": partial(blind, Job(schedule=AUDITS, prepare=PERSISTENT)),
    "statistics: checkpointed, accumulated": Job(Checkpointed, schedule=AUDITS, micro_batches=3).run,
    "statistics: forward only": Job(schedule=Schedule(2, 100, None, kernels="default")).run,
    "statistics: rank 0's histogram": Job(lambda: Histogram(RANK), schedule=AUDITS, steps=12, ddp=ALONE).run,
    "statistics: set differently": Job(schedule=AUDITS, between=other_momentum).run,
    "statistics: not reproducible": Job(
        schedule=AUDITS, prepare=lambda job, _now: unsteady_momentum(job.model)
    ).run,
}


SOAKED = {
    "soaked: many checks": Job(hit=legal_writes, schedule=LONG, steps=1000).run,
    "soaked: many checks, not broadcast": Job(hit=legal_writes, schedule=LONG, steps=1000, ddp=ALONE).run,
}


def main(out: Path, kind: str = "") -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    runs = SOAKED if kind == "soaked" else RUNS
    found = {name: run() for name, run in runs.items()}
    (out / f"{RANK}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
