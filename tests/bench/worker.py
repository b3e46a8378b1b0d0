"""One rank of the step benchmark: rounds of all subjects until the A/A row is quiet or the time is over.

Usage: worker.py OUT_DIR TOKENS SECONDS SIZE GROUP, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.bench import figures, model, subjects
from tests.bench.counting import Counts, counted
from tests.bench.figures import Round
from tests.bench.subjects import Subject

BLOCK = 12  # rounds: one turn through all kinds of steps


def main(out: Path, tokens: int, seconds: float, size: model.Size, group: str) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    jobs, start = [], {}
    for name in subjects.GROUPS[group]:
        jobs.append(_timed(start, name, lambda name=name: Subject(name, size, tokens)))
    for job in jobs:  # first steps: warm-up and preflight
        _timed(start, f"first step, {job.name}", job.step)
    rounds: list[Round] = []
    deadline = time.perf_counter() + seconds
    while True:
        rounds += _block(jobs)
        done = time.perf_counter() > deadline or (
            len(rounds) >= 4 * BLOCK and abs(figures.quiet(rounds)) <= figures.QUIET_PCT / 2
        )
        if _agreed(done):
            break
    operations = {job.name: _operations(job) for job in jobs}
    if rank == 0:
        (out / "rounds.json").write_text(
            json.dumps(
                {
                    "rounds": [{"kind": r.kind, "seconds": dict(r.seconds)} for r in rounds],
                    "operations": operations,
                    "start_s": start,
                    "parameters": sum(p.numel() for p in jobs[0].ddp.parameters()),
                }
            )
        )
    for job in jobs:
        job.close()
    dist.barrier()
    dist.destroy_process_group()


def _block(jobs: list[Subject]) -> list[Round]:
    found = []
    for turn in range(BLOCK):
        kind = subjects.kind_of(jobs[0].step_number + 1)
        own: dict[str, float] = {}
        for i in range(len(jobs)):  # another one is first in every round
            job = jobs[(i + turn) % len(jobs)]
            dist.barrier()
            _timed(own, job.name, job.step)
        slowest = torch.tensor([own[job.name] for job in jobs])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if kind is not None:
            found.append(Round(kind, {j.name: float(s) for j, s in zip(jobs, slowest, strict=True)}))
    return found


def _operations(job: Subject) -> dict[str, Any]:
    """Counts of one healthy step, one with a weight check and one with an audit."""
    out: dict[str, Any] = {}
    while len(out) < 3:
        kind = subjects.kind_of(job.step_number + 1)
        counts: Counts = counted(job.step)
        if kind is not None and kind not in out:
            out[kind] = counts.as_dict()
    return out


def _agreed(done: bool) -> bool:
    flag = torch.tensor([int(done)])
    dist.broadcast(flag, 0)
    return bool(flag.item())


def _timed(into: dict[str, float], name: str, action: Any) -> Any:
    start = time.perf_counter()
    result = action()
    into[name] = time.perf_counter() - start
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), getattr(model, sys.argv[4]), sys.argv[5])
