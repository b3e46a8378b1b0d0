"""One of three ranks with the checksum of the reduction on: quiet steps, then one wrong element at a time.

Usage: reduction_job.py OUT_DIR QUIET TRIALS MEASURED KIND ..., with RANK and friends set; the first MEASURED
steps calibrate. Each trial adds SIZE times the norm of a gradient to one of its elements inside the
all-reduce, the same on all ranks. Goes out: alarms in MEASURED + QUIET healthy steps, the limit, what was
seen by size.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.bench.model import TINY, Decoder, batch_for, compute_loss
from training_agent import AgentSettings, Schedule, _reduction, attach
from training_agent.contract import Job

SIZES = (1e-3, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 3e-7, 1e-7)  # of the norm; times 2^16 for bf16 gradients


@dataclass
class Spoiler:
    """A communication hook: DDP's own mean, and at times one wrong element in it."""

    world: int
    generator: torch.Generator
    size: float = 0.0  # of the norm; 0: healthy
    compress: bool = False
    target: int = -1  # index of the parameter that is struck, of those that the bucket holds
    parameters: list[int] = field(default_factory=list)

    def choose(self, count: int, size: float) -> None:
        """The next step goes wrong in one of `count` gradients."""
        self.target = int(torch.randint(count, (), generator=self.generator))
        self.size = size

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        if self.compress:
            buffer = buffer.to(torch.bfloat16)
        squares = torch.stack([g.double().square().sum() for g in bucket.gradients()])
        first = dist.all_reduce(squares, async_op=True)
        work = dist.all_reduce(buffer.div_(self.world), async_op=True)
        offsets = [g.storage_offset() for g in bucket.gradients()]
        numbers = [self.parameters.index(id(p)) for p in bucket.parameters()]
        assert work is not None and first is not None

        def spoil(future: Any) -> Tensor:
            reduced: Tensor = future.value()[0].to(bucket.buffer().dtype)
            first.wait()
            if self.size and self.target in numbers:
                at = numbers.index(self.target)
                start = offsets[at] - offsets[0]
                norm = (squares[at] / self.world).sqrt()
                length = bucket.gradients()[at].numel()
                spot = start + int(torch.randint(length, (), generator=self.generator))
                reduced[spot] += (norm * self.size).to(reduced.dtype)
            return reduced

        return work.get_future().then(spoil)


def run(kind: str, quiet: int, trials: int, rank: int) -> dict[str, Any]:
    """Healthy steps, then `trials` wrong ones of each size."""
    torch.manual_seed(4)
    net: nn.Module = Decoder(TINY)
    if kind == "bf16 weights":
        net = net.to(torch.bfloat16)
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=kind == "bucket views", bucket_cap_mb=0.05)
    world = dist.get_world_size()
    spoiler = Spoiler(world, torch.Generator().manual_seed(1), compress=kind == "compressing hook")
    spoiler.parameters = [id(p) for p in net.parameters()]
    if trials or spoiler.compress:
        ddp.register_comm_hook(None, lambda _state, bucket: spoiler(bucket))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    node = f"hyperpod-i-{rank:017x}"
    guard = attach(
        ddp,
        optimizer,
        compute_loss=compute_loss,
        schedule=Schedule(None, 100, None, reduction=True),
        settings=AgentSettings(cluster="c", job=Job("j", "u"), node=node, gpu_uuids=(f"GPU-{rank}",)),
        policy="skip",
    )
    accumulate = kind == "accumulation under no_sync"

    def step(number: int) -> bool:
        """Whether it was dropped."""
        before = guard._ledger.steps_skipped
        optimizer.zero_grad()
        for last in (False, True) if accumulate else (True,):
            with nullcontext() if last else ddp.no_sync():
                guard.compute_loss(ddp, batch_for(TINY, 64, rank, 2 * number + last)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return guard._ledger.steps_skipped > before

    alarms = sum(step(n) for n in range(_reduction.CALIBRATION + quiet))
    check = guard._update.reduction
    assert check is not None
    seen: dict[str, int] = {}
    scale = 2.0**16 if kind in ("bf16 weights", "compressing hook") else 1.0
    for size in SIZES if trials else ():
        for n in range(trials):
            spoiler.choose(len(spoiler.parameters), size * scale)
            seen[f"{size * scale:.1e}"] = seen.get(f"{size * scale:.1e}", 0) + step(quiet + n)
            spoiler.size = 0.0
    notes = guard.manifest()["notes"]
    guard.close()
    return {"alarms": alarms, "limit": check.limit, "off": check.off, "seen": seen, "notes": notes}


KINDS: tuple[str, ...] = (
    "fp32 weights",
    "bucket views",
    "accumulation under no_sync",
    "bf16 weights",
    "compressing hook",
)


def main(out: Path, quiet: int, trials: int, measured: int, kinds: tuple[str, ...]) -> None:
    _reduction.CALIBRATION = measured
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found = {kind: run(kind, quiet, trials, rank) for kind in kinds or KINDS}
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), tuple(sys.argv[5:]))
