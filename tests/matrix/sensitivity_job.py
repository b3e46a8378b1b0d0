"""A sample of the sensitivity table through a real guard: four gloo ranks, one of which is struck.

Comes in: how many flips; as a rank: `python -m tests.matrix.sensitivity_job OUT_DIR COUNT SEEDS`. Goes out:
where the guard differs from the table's one process. Model, batch and weights are the same on all ranks
and in that process, so the verdicts must be the same flip by flip.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.matrix.job import MODEL, Decoder, loss_function
from tests.matrix.launch import launch
from tests.matrix.sensitivity import Bench, Count, Row, Store, judge_computed, spoiled, strike, table_rows
from training_agent import AgentSettings, Guard, Schedule, SdcAlarm, attach
from training_agent.contract import Job
from training_agent.faults import FaultSpec, Injection, Persistence, Phase, Spot, Where

RANKS, STRUCK = 4, 1  # four: the mean of equal gradients is exact, as that of three is not
Verdict = tuple[str, tuple[int, ...]] | None  # check and named ranks; None: no alarm


@dataclass(frozen=True, slots=True)
class Picked:
    """One flip of the table."""

    row: Row
    bit: int
    seed: int

    def __str__(self) -> str:
        return f"{self.row.name}, bit {self.bit}, seed {self.seed}"


def picked(count: int, seeds: int) -> list[Picked]:
    """The same on every rank, and at least one of each row."""
    draw = random.Random(20)
    rows = list(table_rows())
    chosen = [Picked(row, draw.randrange(row.bits), draw.randrange(seeds)) for row in rows]
    while len(chosen) < count:
        row = draw.choice(rows)
        chosen.append(Picked(row, draw.randrange(row.bits), draw.randrange(seeds)))
    return chosen[:count]


class Expected:
    """What one process sees, as `sensitivity` computes it."""

    def __init__(self) -> None:
        self._benches = {dtype: Bench(dtype) for dtype in ("fp32", "bf16")}
        self._healthy = {dtype: b.compute("", None, Spot()) for dtype, b in self._benches.items()}

    def verdict(self, flip: Picked) -> Verdict:
        row = flip.row
        if row.place in ("weights", "optimizer state"):
            return "weights", (STRUCK,)  # moments are compared themselves where a save may follow
        _, shape = row.shapes(flip.bit, flip.seed)
        if row.place == "reduced gradient":
            _, finite = Store(row.place).updated(shape, Spot(flip.seed))
            return None if finite else ("nonfinite", ())
        count = Count()
        hit = self._benches[row.dtype].compute(row.place, shape, Spot(flip.seed))
        judge_computed(count, flip.bit, self._healthy[row.dtype], hit)
        if count.harmless:
            return None
        return ("nonfinite" if count.seen["non-finite"] else "replay"), (STRUCK,)


class Struck:
    """This rank's model under a guard, one step for each flip."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        torch.manual_seed(3)
        self._models = [DistributedDataParallel(Decoder(MODEL)) for _ in range(2)]  # one with a comm hook
        self._start = {k: v.clone() for k, v in Bench("fp32").model.state_dict().items()}
        self._guard: Guard | None = None

    def verdict(self, flip: Picked) -> Verdict:
        """Train one step from the table's weights."""
        row = flip.row
        ddp = self._models[row.place == "reduced gradient"]
        ddp.module.load_state_dict(self._start)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
        bench = Bench(row.dtype)
        loss_of = loss_function(row.dtype)
        ends = self._strike(flip, ddp, optimizer)
        saves = row.place == "optimizer state"
        self._guard = attach(
            ddp,
            optimizer,
            compute_loss=loss_of,
            schedule=Schedule(1, 1, 1 if saves else None),
            settings=_settings(self.rank),
        )
        try:
            self._guard.compute_loss(ddp, bench.tokens, bench.gain).backward()
            optimizer.step()
        except SdcAlarm as e:
            return e.alarm.check.value, e.alarm.named_ranks
        finally:
            for handle in ends:
                handle()
            self._guard.abandon()
            optimizer.zero_grad()
        return None

    def _phase(self) -> Phase:
        return Phase.TRAINING if self._guard is None else self._guard.phase

    def _strike(
        self, flip: Picked, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer
    ) -> list[Any]:
        _, shape = flip.row.shapes(flip.bit, flip.seed)
        layer: Any = ddp.module.blocks[1].feed_forward.down  # type: ignore[index, union-attr]
        stored = {
            "weights": Where.WEIGHTS,
            "optimizer state": Where.OPTIMIZER_STATE,
            "reduced gradient": Where.REDUCED_GRADIENT,
        }.get(flip.row.place)
        if stored is None:

            def wrong(tensor: Tensor) -> Tensor:
                training = self._phase() is Phase.TRAINING
                return spoiled(tensor, shape, Spot(flip.seed)) if training else tensor

            hooks = strike(layer, flip.row.place, wrong) if self.rank == STRUCK else []
            return [hook.remove for hook in hooks]
        everywhere = stored is Where.REDUCED_GRADIENT
        spec = FaultSpec(stored, shape, None if everywhere else STRUCK, 1, Persistence.ONCE, seed=flip.seed)
        injection = Injection(
            spec,
            rank=self.rank,
            step=lambda: 1,
            phase=self._phase,
            module=layer,
            optimizer=optimizer,
            ddp=ddp if everywhere else None,
        )
        return [injection.close]


def _settings(rank: int) -> AgentSettings:
    node = rank // 2
    gpus = tuple(f"GPU-{node}-{i}" for i in range(2))
    return AgentSettings("sample", Job("sample", "uid"), f"hyperpod-i-{node:017x}", gpu_uuids=gpus)


def differing(count: int, seeds: int, timeout: float) -> list[str]:
    """Launch the ranks; one sentence per flip whose verdict is not the same."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (str(count), str(seeds))
        launch("tests.matrix.sensitivity_job", RANKS, Path(folder), *arguments, timeout=timeout)
        ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]
    expected = Expected()
    return list(_compared(picked(count, seeds), ranks, expected))


def _compared(flips: list[Picked], ranks: list[Any], expected: Expected) -> Iterator[str]:
    for i, flip in enumerate(flips):
        found = [None if r[i] is None else (r[i][0], tuple(r[i][1])) for r in ranks]
        wanted = expected.verdict(flip)
        if found != [wanted] * RANKS:
            yield f"{flip}: one process says {wanted}, the guards say {found}"


def main(out: Path, count: int, seeds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    job = Struck()
    found = [job.verdict(flip) for flip in picked(count, seeds)]
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
