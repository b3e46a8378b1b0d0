"""Steps on one device: plain, guarded at once and deferred, and what check and audit cost by themselves.

As a program it is one of two ranks: gpu_step.py OUT_DIR DEVICE SIZE TOKENS TURNS SECONDS, with RANK and
friends set. Figures come one by one: whoever is cut off has said what it knew.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from tests.bench import model
from tests.bench.counting import counted
from tests.bench.model import Decoder, Size, batch_for
from tests.bench.subjects import settings_for
from training_agent import Schedule, _startup, attach
from training_agent._capture import Unit, take
from training_agent._evidence import Depth
from training_agent.checks.replay import recompute
from training_agent.checks.weights import find_divergent_ranks
from training_agent.determinism import deterministic


def compute_loss(net: nn.Module, tokens: Tensor) -> Tensor:
    """The loss in bf16."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        return model.compute_loss(net, tokens)


class Job:
    """One model in training; `mode` None is plain DDP. `options`: of its schedule."""

    def __init__(
        self,
        size: Size,
        tokens: int,
        device: torch.device,
        mode: str | None,
        audits: int | None,
        **options: Any,
    ) -> None:
        torch.manual_seed(1)
        self.device, self.rank = device, dist.get_rank()
        with device:  # a billion random numbers take a CPU many seconds
            module = Decoder(size)
        self.ddp = DistributedDataParallel(module, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=1e-4, fused=True)
        self.tokens = batch_for(size, tokens, self.rank, 1).to(device)
        self.loss_of: Callable[..., Tensor] = compute_loss
        self.guard: Any = None
        if mode is None:
            return
        with warnings.catch_warnings(), _world_of_one():
            warnings.simplefilter("ignore")
            self.guard = attach(
                self.ddp,
                self.optimizer,
                compute_loss=compute_loss,
                schedule=Schedule(audits, 1_000, 1_000_000, **options),
                settings=settings_for(self.rank),
                mode=mode,
            )
        self.loss_of = self.guard.compute_loss

    def step(self) -> None:
        """One training step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss_of(self.ddp, self.tokens).backward()
        self.optimizer.step()

    def close(self) -> None:
        """Hooks off."""
        if self.guard is not None:
            self.guard.close()


Figures = dict[str, Any]


def alone(size: Size, tokens: int, device: torch.device, turns: int, deadline: float) -> Iterator[Figures]:
    """All figures of a world of one, the important ones first."""
    jobs = {str(mode): Job(size, tokens, device, mode, None) for mode in (None, "immediate", "deferred")}
    plain = jobs["None"]
    yield {"parameters": sum(p.numel() for p in plain.ddp.parameters())}
    yield _steps(jobs, device, turns, deadline)
    tensors = dict(plain.ddp.module.named_parameters())
    yield {"weight_check_ms": milliseconds(lambda: find_divergent_ranks(tensors), device, turns)}
    yield {"one_read_ms": milliseconds(lambda: [p.detach().sum() for p in tensors.values()], device, turns)}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("math", SDPBackend.MATH)):
        if time.perf_counter() < deadline:
            yield {f"audit_{name}_ms": milliseconds(lambda b=backend: _replay(plain, b), device, 2)}
    yield {"healthy_steps_that_synchronise": {name: synchronises(job) for name, job in jobs.items()}}
    for name, job in jobs.items():
        yield {f"host_syncs_{name}": counted(job.step).as_dict()}
    for name in ("immediate", "deferred"):
        jobs.pop(name).close()  # four models with their moments would not fit everywhere
    if time.perf_counter() < deadline:
        jobs["forced"] = Job(size, tokens, device, "immediate", None, kernels="forced")
        found = _steps(jobs, device, turns, deadline)
        yield {f"forced_kernels_{name}": figure for name, figure in found.items()}
    for job in jobs.values():
        job.close()


def _replay(job: Job, backend: SDPBackend) -> None:
    capture = take(Unit.LOSS, job.ddp.module, job.device, (job.tokens,), {})
    with deterministic(), sdpa_kernel([backend]):
        recompute(job.ddp, compute_loss, capture, Depth.BITS, job.device)


def synchronises(job: Job) -> str | None:
    """What CUDA's debug mode says of three healthy steps; None: nothing waited for the device.

    It does not see waits for an event, which is how immediate mode reads its flags: `counted` does.
    """
    if job.device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            job.step()
    except Exception as e:  # noqa: BLE001  # ours wrap what a collective raises
        return f"{type(e).__name__}: {e}"[:300]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def _steps(jobs: dict[str, Job], device: torch.device, turns: int, deadline: float) -> Figures:
    """Interleaved step times and the medians of their ratios to plain."""
    for job in jobs.values():
        for _ in range(3):
            job.step()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(turns):
        if turn >= 3 and _over(deadline):
            break
        for name, job in jobs.items():
            times[name].append(milliseconds(job.step, device, 1, warm=False))
    ratios = {n: median(a / b for a, b in zip(t, times["None"], strict=True)) for n, t in times.items()}
    return {
        "step_ms": {name: median(t) for name, t in times.items()},
        "over_plain_pct": {name: round(100 * (r - 1), 2) for name, r in ratios.items()},
    }


def _over(deadline: float) -> bool:
    """Whether any rank is late: a common answer."""
    late = torch.tensor([int(time.perf_counter() > deadline)])
    if dist.get_world_size() > 1:
        dist.all_reduce(late)
    return bool(late.item())


def milliseconds(action: Callable[[], Any], device: torch.device, turns: int, *, warm: bool = True) -> float:
    """Median wall time, the device's work included."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    if warm:
        action()
    found = []
    for _ in range(turns):
        wait()
        start = time.perf_counter()
        action()
        wait()
        found.append(1e3 * (time.perf_counter() - start))
    return round(median(found), 4)


def _world_of_one() -> Any:
    """The product refuses to guard a job alone; here its healthy path is to be timed."""
    if dist.get_world_size() > 1:
        return nullcontext()
    return mock.patch.multiple(
        _startup,
        group_of=lambda ddp: ddp.process_group,
        partners=lambda *_: (0,),
        self_test=lambda *_: None,  # one rank cannot be unlike the others
    )


def together(size: Size, tokens: int, device: torch.device, turns: int, deadline: float) -> Iterator[Figures]:
    """Two ranks on one device; the last jobs have an audit every 4 steps, or of one block at every step."""
    jobs = {str(mode): Job(size, tokens, device, mode, None) for mode in (None, "immediate", "deferred")}
    yield _steps(jobs, device, turns, deadline)
    audited = {
        "None": jobs["None"],
        "audit every 4": Job(size, tokens, device, "immediate", 4),
        "a layer at every step": Job(size, tokens, device, "immediate", 1_000, layer_every=1),
    }
    times: dict[str, list[float]] = {name: [] for name in audited}
    for turn in range(12):
        if turn % 4 == 0 and turn and _over(deadline):
            break
        for name, job in audited.items():
            times[name].append(milliseconds(job.step, device, 1, warm=False))
    steps = len(times["None"])
    yield {"audited_steps": steps, "steps_ms": {name: round(sum(t), 2) for name, t in times.items()}}
    whole, layers = (job.guard.manifest() for job in list(audited.values())[1:])
    yield {"audits_passed": whole["audits_passed"], "layer_audits_passed": layers["layer_audits"]["passed"]}
    for job in {id(job): job for job in (*jobs.values(), *audited.values())}.values():
        job.close()


def main(out: Path, device: torch.device, size: Size, tokens: int, turns: int, seconds: float) -> None:
    """Rank 0 or 1."""
    deadline = time.perf_counter() + seconds
    dist.init_process_group("gloo")
    with (out / f"{os.environ['RANK']}.jsonl").open("w") as lines:
        for figures in together(size, tokens, device, turns, deadline):
            lines.write(json.dumps(figures) + "\n")
            lines.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        torch.device(sys.argv[2]),
        getattr(model, sys.argv[3]),
        int(sys.argv[4]),
        int(sys.argv[5]),
        float(sys.argv[6]),
    )
