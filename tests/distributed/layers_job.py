"""One of three ranks with layer audits: healthy runs, faults, and what cannot be compared. Usage: OUT_DIR."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.layers_models import (
    HEALTHY,
    PASSING,
    SCALED,
    SKIPPING,
    TELLING,
    TOKENS,
    UNFIT,
    WORDS,
    Checkpointed,
    Kind,
    Telling,
)
from tests.distributed.small_model import fingerprint
from tests.matrix.layers_job import UNIFORM, Struck
from training_agent import AgentSettings, Guard, Schedule, SdcAlarm, attach
from training_agent.contract import Job, encode
from training_agent.faults import Element, FaultSpec, Injection, Persistence, Phase, Where
from training_agent.schedule import ScheduleWarning

BAD = 1
SAMPLE = 35  # of the faults behind the published probability
Strike = Callable[[Any], tuple[nn.Module, FaultSpec]]  # from the model: the layer, and what strikes it


def tokens_for(rank: int, number: int) -> Tensor:
    """The tokens of one micro-batch."""
    generator = torch.Generator().manual_seed(1000 * number + rank)
    return torch.randint(WORDS, (3, TOKENS + 1), generator=generator)


def run(
    kind: Kind, rank: int, *, layered: bool = True, strike: Strike | None = None, shared: Path | None = None
) -> dict[str, Any]:
    """Train one kind from a seeded start and say how it ended."""
    job = Training(kind, rank, layered=layered, shared=shared)
    injection = None if strike is None else job.injected(strike)
    alarm, step = None, 0
    try:
        for step in range(1, kind.steps + 1):
            job.step(step)
        job.guard.close()
    except SdcAlarm as e:
        alarm = encode(e.alarm)
        job.guard.abandon()
    if injection is not None:
        injection.close()
    return {
        "alarm": alarm,
        "at": step,
        "manifest": job.guard.manifest(),
        "weights": fingerprint(job.net),
        "left on": torch.are_deterministic_algorithms_enabled(),
        "hooks": job.hooks(),
    }


class Training:
    """One guarded model in its loop."""

    def __init__(self, kind: Kind, rank: int, *, layered: bool, shared: Path | None = None) -> None:
        torch.manual_seed(5)
        self.kind, self.rank = kind, rank
        self.net = kind.model()
        self.ddp = DistributedDataParallel(self.net)
        self.called: Any = torch.compile(self.ddp, backend="eager") if kind.compiled else self.ddp
        self.scaler = torch.amp.GradScaler("cpu", init_scale=kind.scaler or 1.0, enabled=kind.scaler > 0)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2, fused=kind.fused)
        self.now = 0
        torch.manual_seed(50 + rank)
        self.guard: Guard = attach(
            self.called,
            self.optimizer,
            compute_loss=self._loss if kind.with_loss else None,
            schedule=Schedule(**self._plan(layered)),
            settings=AgentSettings(
                "c", Job("j", "u"), f"hyperpod-i-{rank:017x}", gpu_uuids=(f"GPU-{rank}",), shared_dir=shared
            ),
            **kind.attach,
        )

    def _plan(self, layered: bool) -> dict[str, Any]:
        plan = {"audit_every": 50, "ckpt_every": None, "layer_every": 1, **self.kind.schedule}
        return plan if layered else {n: v for n, v in plan.items() if not n.startswith("layer_")}

    def step(self, step: int) -> None:
        """One update."""
        self.now = step
        Telling.now = staticmethod(lambda: f"{self.guard.phase.value} {step}")
        self.optimizer.zero_grad()
        for part in range(self.kind.accumulate):
            tokens = tokens_for(self.rank, 10 * step + part)
            last = part == self.kind.accumulate - 1
            with nullcontext() if last else self.ddp.no_sync():
                loss_of = self.guard.compute_loss if self.kind.with_loss else self._loss
                self.scaler.scale(loss_of(self.called, tokens)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def injected(self, strike: Strike) -> Injection:
        """Put a fault in on the bad rank."""
        layer, spec = strike(self.net)
        return Injection(
            spec, rank=self.rank, step=lambda: self.now, phase=lambda: self.guard.phase, module=layer
        )

    def hooks(self) -> int:
        """What is left on modules and parameters."""
        on_modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in self.net.modules())
        return on_modules + sum(len(p._backward_hooks or ()) for p in self.net.parameters())

    def _loss(self, model: Any, tokens: Tensor) -> Tensor:
        half = torch.float16 if self.kind.scaler else torch.bfloat16
        with torch.autocast("cpu", half, enabled=self.kind.bf16 or self.kind.scaler > 0):
            logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def once(where: Where, step: int, layer: int = 1) -> Strike:
    """One firing in the feed-forward of a layer."""
    spec = FaultSpec(where, Element(1000.0), BAD, step, Persistence.ONCE, phases=frozenset({Phase.TRAINING}))
    return lambda net: (net.layers[layer].down, spec)


def always(where: Where, step: int, layer: int = 1) -> Strike:
    """The same in everything that the GPU computes from that step on."""
    return lambda net: (net.layers[layer].down, FaultSpec(where, Element(1000.0), BAD, step))


def resumed(rank: int) -> dict[str, Any]:
    """Three steps, a start with their manifest, two steps more."""
    first = Training(Kind(), rank, layered=True)
    for step in range(1, 4):
        first.step(step)
    manifest, state = first.guard.manifest(), first.net.state_dict()
    first.guard.close()
    second = Training(Kind(), rank, layered=True)
    second.net.load_state_dict(state)
    second.guard.after_load(manifest)
    for step in range(4, 6):
        second.step(step)
    second.guard.close()
    return {"manifest": second.guard.manifest()}


def told(kind: Kind, rank: int) -> dict[str, Any]:
    """Also who ran deterministic kernels."""
    Telling.told.clear()
    return {**run(kind, rank), "told": list(Telling.told)}


# Of five blocks (embedding, two layers, norm, head) the third one's turn is at steps 3 and 8.
TURN, OTHER = 8, 9
COMPUTED = (Where.FORWARD_OUTPUT, Where.INPUT_GRADIENT, Where.WEIGHT_GRADIENT)


def scenarios(rank: int, out: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    """All runs by name."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, kind in HEALTHY.items():
        runs[f"{name}: clean"] = lambda kind=kind: run(kind, rank)
        runs[f"{name}: unlayered"] = lambda kind=kind: run(kind, rank, layered=False)
    for name, (kind, *_) in UNFIT.items():
        runs[name] = lambda kind=kind: run(kind, rank)
    runs["sample"] = lambda: {"seen": Struck(UNIFORM).run(SAMPLE)}
    runs["skip connection"] = lambda: run(SKIPPING, rank)
    runs["scaler"] = lambda: run(SCALED, rank)
    for name, kind in {"kernels": TELLING, "kernels, passing": PASSING}.items():
        runs[name] = lambda kind=kind: told(kind, rank)
    inside = HEALTHY["a gradient inside"]
    first = always(Where.FORWARD_OUTPUT, 4, layer=0)
    runs["a gradient inside: lasting"] = lambda: run(inside, rank, strike=first)
    runs["resumed"] = lambda: resumed(rank)
    for policy in ("skip", "warn", "retry"):
        kind, strike = Kind(attach={"policy": policy}), once(Where.INPUT_GRADIENT, TURN)
        runs[f"{policy}: once"] = lambda kind=kind, strike=strike: run(kind, rank, strike=strike)
    kept = Kind(Checkpointed, bf16=True)
    runs["capsule"] = lambda: run(kept, rank, strike=once(Where.WEIGHT_GRADIENT, TURN), shared=out)
    for where in COMPUTED:
        for name, strike in {"once": once(where, TURN), "elsewhere": once(where, OTHER)}.items():
            runs[f"{where.value}: {name}"] = lambda strike=strike: run(Kind(), rank, strike=strike)
        lasting = always(where, 4)
        runs[f"{where.value}: lasting"] = lambda lasting=lasting: run(Kind(), rank, strike=lasting)
    return runs


def main(out: Path) -> None:
    warnings.simplefilter("ignore", ScheduleWarning)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    # what is compiled comes last: from then on this process holds graphs
    runs = sorted(scenarios(rank, out).items(), key=lambda named: named[0] == "compiled")
    found = {name: one() for name, one in runs}
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
