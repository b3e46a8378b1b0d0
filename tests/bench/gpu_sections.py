"""One section of `tests.bench.gpu`, in a process of its own: gpu_sections.py NAME SECONDS [--dry].

Goes out: a JSON line per figure, as soon as it is known.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.bench import gpu_step, model
from tests.bench.gpu_step import milliseconds
from tests.matrix.launch import launch
from training_agent import _digest_backends, _digest_portable
from training_agent.digest import digest


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one run."""

    device: torch.device
    megabytes: tuple[int, ...]
    alone: str  # names in `model`
    together: str
    tokens: int
    turns: int
    seconds: float

    @classmethod
    def make(cls, seconds: float, *, dry: bool) -> Plan:
        """The real sizes, or the smallest."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if dry:
            return cls(device, (1,), "TINY", "TINY", 64, 2, seconds)
        return cls(device, (16, 256, 4096), "LARGE", "MIDDLE", 4096, 10, seconds)


def digests(plan: Plan) -> None:
    """The machine; milliseconds of one read, a copy, and the digest, also as 1,000 tensors."""
    cuda = plan.device.type == "cuda"
    emit(
        "machine",
        device=torch.cuda.get_device_name() if cuda else "cpu",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        python=sys.version.split()[0],
        digest_backend=_digest_backends.name_of(plan.device.type),
    )
    if not cuda and plan.megabytes[0] > 1:
        return  # without a GPU only a dry run makes sense
    for megabytes in plan.megabytes:
        x = torch.randn(megabytes * 2**18, device=plan.device)
        y = torch.empty_like(x)
        many = list(x.split(max(1, x.numel() // 1000)))
        odd = x.view(torch.uint8)[1:-3]
        ways = {
            "read": x.sum,
            "copy": lambda x=x, y=y: y.copy_(x),
            "digest": lambda x=x: digest([x]),
            "digest_1000_tensors": lambda many=many: digest(many),
            "digest_odd_address": lambda odd=odd: digest([odd]),
            "portable": lambda x=x: _digest_portable.table([x]),
        }
        ms = {name: milliseconds(way, plan.device, plan.turns) for name, way in ways.items()}
        emit("digest", **{f"{megabytes} MB": {"ms": ms, "digest_to_read": ms["digest"] / ms["read"]}})


def alone(plan: Plan) -> None:
    """The large model in a world of one: plain and guarded steps, weight check, audits, host syncs."""
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if plan.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        size = getattr(model, plan.alone)
        deadline = time.perf_counter() + 0.8 * plan.seconds
        for figures in gpu_step.alone(size, plan.tokens, plan.device, plan.turns, deadline):
            emit("alone", **figures)
        dist.destroy_process_group()


def together(plan: Plan) -> None:
    """Two processes on the one device, over gloo, everything switched on."""
    with tempfile.TemporaryDirectory() as name:
        folder, limit = Path(name), 0.8 * plan.seconds
        args = (plan.device.type, plan.together, str(plan.tokens), str(plan.turns), str(0.7 * limit))
        try:
            # Interpreters of their own on a GPU: CUDA does not survive a fork of whoever has asked for it.
            fresh = plan.device.type == "cuda"
            launch("tests.bench.gpu_step", 2, folder, *args, timeout=limit, gpus=1, fresh=fresh)
        finally:  # what the first rank had found before one of them failed
            for line in (folder / "0.jsonl").read_text().splitlines():
                emit("two processes", **json.loads(line))


SECTIONS: dict[str, Callable[[Plan], None]] = {"digest": digests, "alone": alone, "two processes": together}


def emit(section: str, **figures: Any) -> None:
    """One line."""
    sys.stdout.write(json.dumps({section: figures}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    SECTIONS[sys.argv[1]](Plan.make(float(sys.argv[2]), dry="--dry" in sys.argv))
