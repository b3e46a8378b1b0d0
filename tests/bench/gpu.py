"""`python -m tests.bench.gpu`: the GPU figures, one JSON line per section as it ends, all of them last.

Runs with the machine's own python3 and torch, PYTHONPATH at the repository, nothing installed. --dry:
smallest sizes, on the CPU where there is no GPU; proves that it runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.bench import gpu_step, model
from tests.matrix.launch import launch
from training_agent import _digest_backends, _digest_portable
from training_agent.digest import digest

TWO = "two processes"


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one run."""

    device: torch.device
    megabytes: tuple[int, ...]
    alone: str  # names in `model`
    together: str
    tokens: int
    turns: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true")
    dry = parser.parse_args().dry
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not dry:
        sys.stdout.write("bench-gpu needs a CUDA GPU; --dry runs it on the CPU with the smallest sizes.\n")
        return 2
    sizes = Plan(device, (1,), "TINY", "TINY", 64, 2)
    plan = sizes if dry else Plan(device, (16, 256, 4096), "LARGE", "MIDDLE", 4096, 10)
    sections: dict[str, tuple[Callable[[Plan], Any], float]] = {
        "machine": (machine, 30),
        "digest": (digests, 60),
        "alone": (alone, 200),
        TWO: (together, 120),
        "instructions": (instructions, 60),
    }
    if dry:
        del sections["instructions"]  # the same without a GPU: a test of its own
    found: dict[str, Any] = {}
    for name, (section, cap_s) in sections.items():
        found[name] = _section(section, plan, cap_s)
        sys.stdout.write(json.dumps({name: found[name]}) + "\n")
        sys.stdout.flush()
    out = Path("out/bench-gpu.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")
    return 1 if any(isinstance(f, dict) and "error" in f for f in found.values()) else 0


def _section(section: Callable[[Plan], Any], plan: Plan, cap_s: float) -> Any:
    """One section's figures, or its error; the others run all the same. Loops look at the cap themselves."""
    start = time.perf_counter()
    gpu_step.deadline = start + cap_s
    try:
        result = section(plan)
    except Exception as e:  # noqa: BLE001  # whatever the machine's torch, Triton and drivers raise
        result = {"error": f"{type(e).__name__}: {e}"[:500], "trace": traceback.format_exc()[-1500:]}
    if isinstance(result, dict):
        result["section_s"] = round(time.perf_counter() - start, 1)
    return result


def machine(plan: Plan) -> dict[str, Any]:
    """What this ran on."""
    return {
        "device": torch.cuda.get_device_name() if plan.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "digest_backend": _digest_backends.name_of(plan.device.type),
    }


def digests(plan: Plan) -> dict[str, Any]:
    """Milliseconds of one read, a copy, and the digest; 4096 MB also as 1,000 tensors."""
    rows = []
    for megabytes in plan.megabytes:
        x = torch.zeros(megabytes * 2**18, device=plan.device)
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
        ms = {name: gpu_step.milliseconds(way, plan.device, plan.turns) for name, way in ways.items()}
        rows.append({"megabytes": megabytes, "ms": ms, "digest_to_read": ms["digest"] / ms["read"]})
    return {"rows": rows}


def alone(plan: Plan) -> dict[str, Any]:
    """The large model in a world of one: plain and guarded steps, weight check, audits, host syncs."""
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if plan.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            return gpu_step.alone(getattr(model, plan.alone), plan.tokens, plan.device, plan.turns)
        finally:
            dist.destroy_process_group()


def together(plan: Plan) -> dict[str, Any]:
    """Two processes on the one device, over gloo, everything switched on."""
    with tempfile.TemporaryDirectory() as folder:
        args = (plan.device.type, plan.together, str(plan.tokens), str(plan.turns))
        launch("tests.bench.gpu_step", 2, Path(folder), *args, timeout=120, gpus=1)
        found: dict[str, Any] = json.loads((Path(folder) / "0.json").read_text())
        return found


def instructions(_plan: Plan) -> dict[str, Any]:
    """The digest kernel compiled for sm_90, counted."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.agent.sm90"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        return {"skipped": done.stderr.strip()[-300:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
