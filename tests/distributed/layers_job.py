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

from tests.distributed.layers_models import HEALTHY, SKIPPING, TOKENS, WORDS, Kind
from tests.distributed.small_model import fingerprint
from training_agent import AgentSettings, Guard, Schedule, SdcAlarm, attach
from training_agent.contract import Job, encode
from training_agent.faults import Element, FaultSpec, Injection, Persistence, Phase, Where
from training_agent.schedule import ScheduleWarning

BAD = 1
Strike = Callable[[Any], tuple[nn.Module, FaultSpec]]  # from the model: the layer, and what strikes it


def tokens_for(rank: int, number: int) -> Tensor:
    """The tokens of one micro-batch."""
    generator = torch.Generator().manual_seed(1000 * number + rank)
    return torch.randint(WORDS, (3, TOKENS + 1), generator=generator)


def run(kind: Kind, rank: int, *, layered: bool = True, strike: Strike | None = None) -> dict[str, Any]:
    """Train one kind from a seeded start and say how it ended."""
    job = Training(kind, rank, layered=layered)
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

    def __init__(self, kind: Kind, rank: int, *, layered: bool) -> None:
        torch.manual_seed(5)
        self.kind, self.rank = kind, rank
        self.net = kind.model()
        self.ddp = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2, fused=kind.fused)
        self.now = 0
        torch.manual_seed(50 + rank)
        self.guard: Guard = attach(
            self.ddp,
            self.optimizer,
            compute_loss=self._loss if kind.with_loss else None,
            schedule=Schedule(50, 10, None, **({"layer_every": 1, **kind.schedule} if layered else {})),
            settings=AgentSettings("c", Job("j", "u"), f"hyperpod-i-{rank:017x}", gpu_uuids=(f"GPU-{rank}",)),
            **kind.attach,
        )

    def step(self, step: int) -> None:
        """One update."""
        self.now = step
        self.optimizer.zero_grad()
        for part in range(self.kind.accumulate):
            tokens = tokens_for(self.rank, 10 * step + part)
            last = part == self.kind.accumulate - 1
            with nullcontext() if last else self.ddp.no_sync():
                loss_of = self.guard.compute_loss if self.kind.with_loss else self._loss
                loss_of(self.ddp, tokens).backward()
        self.optimizer.step()

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
        with torch.autocast("cpu", torch.bfloat16, enabled=self.kind.bf16):
            logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def once(where: Where, step: int, layer: int = 1) -> Strike:
    """One firing in the feed-forward of a layer."""
    spec = FaultSpec(where, Element(1000.0), BAD, step, Persistence.ONCE, phases=frozenset({Phase.TRAINING}))
    return lambda net: (net.layers[layer].down, spec)


def always(where: Where, step: int, layer: int = 1) -> Strike:
    """The same in everything that the GPU computes from that step on."""
    return lambda net: (net.layers[layer].down, FaultSpec(where, Element(1000.0), BAD, step))


# Of five blocks (embedding, two layers, norm, head) the third one's turn is at steps 3 and 8.
TURN, OTHER = 8, 9
COMPUTED = (Where.FORWARD_OUTPUT, Where.INPUT_GRADIENT, Where.WEIGHT_GRADIENT)


def scenarios(rank: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """All runs by name."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, kind in HEALTHY.items():
        runs[f"{name}: clean"] = lambda kind=kind: run(kind, rank)
        runs[f"{name}: unlayered"] = lambda kind=kind: run(kind, rank, layered=False)
    runs["skip connection"] = lambda: run(SKIPPING, rank)
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
    found = {name: one() for name, one in scenarios(rank).items()}
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
