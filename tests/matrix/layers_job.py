"""One of three ranks with a layer audit at every step, and in each step a one-off finite fault somewhere.

Usage: layers_job.py OUT_DIR FAULTS DRAW ..., with RANK and friends set. Every rank draws alike; weights never
move, and a step that alarms is dropped, so that each fault meets the same healthy job. Goes out: per fault
where it was, whether its block's turn it was, and whom the guard named.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from examples.llama import ModelConfig, micro_batch
from tests.matrix.job import Decoder, loss_function
from tests.matrix.sensitivity import spoiled, strike
from training_agent import AgentSettings, Guard, Schedule, attach
from training_agent._alarm import Sighting
from training_agent._blocks import blocks_of
from training_agent._ledger import Ledger
from training_agent.contract import Job
from training_agent.faults import Column, Element, Flip, Noise, Phase, Shape, Spot, corrupted

MODEL = ModelConfig(vocabulary=48, width=16, layers=4, heads=2, feed_forward=32, context=8)
UNIFORM, BY_SHARE, OUTSIDE = "each block as likely", "by share of parameters", "outside any block: the loss"
PLACES = ("forward output", "input gradient", "weight gradient")
HEALTHY = "none"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong in one step, once."""

    rank: int
    block: str  # "" outside any
    layer: str  # the module that is struck
    place: str
    shape: Shape
    seed: int


def drawn(draw: str, count: int, world: int, model: nn.Module) -> list[Fault]:
    """The faults, the same on every rank."""
    chance = random.Random(f"{draw}, {count}")
    units = [b.name for b in blocks_of(model)]
    sizes = [sum(p.numel() for p in model.get_submodule(u).parameters()) for u in units]
    found = []
    for seed in range(count):
        rank = chance.randrange(world)
        shapes = (Element(1000.0), Column(1.1), Noise(0.1), Flip((chance.randrange(16, 23),)))
        shape = chance.choice(shapes)
        if draw == OUTSIDE:
            found.append(Fault(rank, "", "", "loss", Element(1.7), seed))
            continue
        unit = chance.choices(units, sizes if draw == BY_SHARE else None)[0]
        inside = [n for n, m in model.get_submodule(unit).named_modules() if isinstance(m, _STRUCK)]
        layer = ".".join(part for part in (unit, chance.choice(inside)) if part)
        embedding = isinstance(model.get_submodule(layer), nn.Embedding)
        place = chance.choice([p for p in PLACES if not (embedding and p == "input gradient")])
        found.append(Fault(rank, unit, layer, place, shape, seed))
    return found


_STRUCK = (nn.Linear, nn.RMSNorm, nn.Embedding)


class Struck:
    """This rank's guarded job."""

    def __init__(self, draw: str) -> None:
        self.rank = dist.get_rank()
        torch.manual_seed(4)
        self._net = Decoder(MODEL)
        self._ddp = DistributedDataParallel(self._net)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=0.0)
        self._compute = loss_function("fp32")
        self._draw = draw
        self._now: Fault | None = None
        self._changed = False
        node = f"hyperpod-i-{self.rank:017x}"
        self.guard: Guard = attach(
            self._ddp,
            self._optimizer,
            compute_loss=self._loss,
            schedule=Schedule(10**6, 10**6, None, layer_every=1),
            settings=AgentSettings("c", Job("layers", "u"), node, gpu_uuids=(f"GPU-{self.rank}",)),
            policy="skip",
        )

    def run(self, count: int) -> list[dict[str, Any]]:
        """One step for each fault; first healthy ones, a round of all blocks."""
        world = dist.get_world_size()
        units = [b.name for b in blocks_of(self._net)]
        plan: list[Fault | None] = [None] * len(units)
        with sightings() as seen:
            return [
                self._one(number, fault, units, seen)
                for number, fault in enumerate([*plan, *drawn(self._draw, count, world, self._net)])
            ]

    def _one(
        self, number: int, fault: Fault | None, units: list[str], seen: list[Sighting]
    ) -> dict[str, Any]:
        seen.clear()
        self._now, self._changed = fault, False
        turn = units[self.guard._ledger.layers.turn % len(units)]
        hooks = self._hooks(fault)
        tokens = micro_batch(MODEL, 1, number, self.rank)
        self._optimizer.zero_grad()
        gain = torch.ones(tokens.shape[0], tokens.shape[1] - 1, 1)
        self.guard.compute_loss(self._ddp, tokens, gain).backward()
        self._optimizer.step()
        for hook in hooks:
            hook.remove()
        return {
            "block": HEALTHY if fault is None else fault.block,
            "place": HEALTHY if fault is None else fault.place,
            "rank": None if fault is None else fault.rank,
            "audited": turn,
            "changed": self._changed,
            "named": sorted({f.rank for s in seen for f in s.findings if f.rank is not None}),
            "alarms": [asdict(s.findings[0])["evidence"] for s in seen],
        }

    def _hooks(self, fault: Fault | None) -> list[Any]:
        if fault is None or fault.rank != self.rank or not fault.layer:
            return []
        layer: Any = self._net.get_submodule(fault.layer)
        return strike(layer, fault.place, self._wrong)

    def _wrong(self, tensor: Tensor) -> Tensor:
        fault = self._now
        if fault is None or self._changed or self.guard.phase is not Phase.TRAINING:
            return tensor
        bits = corrupted(tensor, fault.shape, Spot(fault.seed))
        if bits is None or torch.equal(bits, tensor.detach()):
            return tensor
        self._changed = True
        return spoiled(tensor, fault.shape, Spot(fault.seed))

    def _loss(self, model: Any, tokens: Tensor, gain: Tensor) -> Tensor:
        loss = self._compute(model, tokens, gain)
        fault = self._now
        if fault is not None and fault.place == "loss" and fault.rank == self.rank:
            return self._wrong_loss(loss)
        return loss

    def _wrong_loss(self, loss: Tensor) -> Tensor:
        if self._changed or self.guard.phase is not Phase.TRAINING:
            return loss
        self._changed = True
        return loss * 1.7


@contextmanager
def sightings() -> Iterator[list[Sighting]]:
    """What makes the policy drop a step, as it comes."""
    found: list[Sighting] = []
    skipped: Callable[[Ledger, Sighting], None] = Ledger.step_skipped

    def told(ledger: Ledger, sighting: Sighting) -> None:
        found.append(sighting)
        skipped(ledger, sighting)

    Ledger.step_skipped = told  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Ledger.step_skipped = skipped  # type: ignore[method-assign]


def main(out: Path, count: int, draws: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = {}
    for draw in draws or (UNIFORM, BY_SHARE, OUTSIDE):
        job = Struck(draw)
        found[draw] = job.run(count)
        job.guard.close()
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:]))
