"""The same training once for each kind of outage, in one launch. Prints one JSON line per kind and rank.

Arguments: folder, steps, JSON of kind -> environment; "none" trains without a publisher. With a fourth
argument, a step: rank 1's batch holds a NaN there, and the process ends as an alarm ends it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from training_agent import Schedule, attach, job_reporter
from training_agent.contract import Job
from training_agent.report import job as report_job
from training_agent.settings import AgentSettings


def main() -> None:
    folder, steps, kinds = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    fault = int(sys.argv[4]) if len(sys.argv) > 4 else None
    dist.init_process_group("gloo")
    if fault is None:
        report_job.FLUSH_S = 1.0  # at the end of training nothing is waited for that matters
    for kind, environment in kinds.items():
        for name in [n for n in os.environ if n.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(environment)
        dist.barrier()
        before = resident_mb()
        said = {"kind": kind, **train(folder / kind, kind, steps, fault)}
        said["threads"] = sum(t.name == "sdc-publisher" for t in threading.enumerate())
        said["grown_mb"] = round(resident_mb() - before, 1)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def resident_mb() -> float:
    """Of this process, now; 0 where /proc does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def milliseconds(times: list[float]) -> dict[str, float]:
    """Median, 99th percentile and largest."""
    ordered = sorted(times)
    at = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "max": len(ordered) - 1}
    return {name: round(1000 * ordered[index], 3) for name, index in at.items()}


def train(folder: Path, kind: str, steps: int, fault: int | None) -> dict[str, Any]:
    """Digest of losses and weights; events given up; times of the main thread."""
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    folder.mkdir(exist_ok=True)
    (folder / f"pid-{rank}").write_text(str(os.getpid()))  # torchrun's workers lead sessions of their own
    settings = AgentSettings(
        "demo",
        Job("job", f"uid-{kind}", attempt=int(os.environ.get("SDC_ATTEMPT", "1"))),
        f"hyperpod-i-{rank:017x}",
        gpu_uuids=("GPU-0",),
        shared_dir=folder,
        event_bus=None if kind == "none" else "bus",
    )
    reporter = job_reporter(settings, rank, publishers={0, 1}, metrics_every_s=0.2)

    def compute_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch) - batch).square().mean()

    telling: list[float] = []  # seconds inside the reporter, per step
    stepping: list[float] = []
    progress = reporter.progress

    def timed(*args: Any) -> None:
        began = time.perf_counter()
        progress(*args)
        telling.append(time.perf_counter() - began)

    reporter.progress = timed  # type: ignore[method-assign]
    began = time.perf_counter()
    guard = attach(
        model, optimizer, compute_loss=compute_loss, schedule=Schedule(20, 20, None),
        settings=settings, reporter=reporter,
    )  # fmt: skip
    attached_s = time.perf_counter() - began
    seen = hashlib.sha256()
    for step in range(1, steps + 1):
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        if step == fault and rank == 1:
            batch[0, 0] = float("nan")
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = guard.compute_loss(model, batch)
        loss.backward()
        optimizer.step()
        stepping.append(time.perf_counter() - began)
        seen.update(loss.detach().numpy().tobytes())
    for p in model.parameters():
        seen.update(p.detach().numpy().tobytes())
    guard.close()
    return {
        "digest": seen.hexdigest(),
        "dropped": reporter.dropped,
        "attach_s": round(attached_s, 2),
        "reporter_ms": milliseconds(telling),
        "step_ms": milliseconds(stepping),
    }


main()
