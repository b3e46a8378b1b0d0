"""What a start costs before the first step: imports in a fresh process. Attach, preflight: `worker`."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

_TIMER = """
import os, sys, time
def resident_mb():
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0
{before}
memory, start = resident_mb(), time.perf_counter()
{code}
sys.stdout.write(f"{{time.perf_counter() - start}} {{resident_mb() - memory}}")
"""
_TORCH = "import torch.nn.parallel, torch.distributed, torch.func"
_CLIENTS = (
    'os.environ["AWS_DEFAULT_REGION"] = "us-east-1"\n'
    "from training_agent.clients import boto3_client\n"
    'clients = boto3_client("events"), boto3_client("cloudwatch")'
)
IMPORTS = {
    "import_training_agent": ("", "import training_agent"),
    "import_hold_and_reporter": ("", "from training_agent import hold_while_quarantined, job_reporter"),
    "import_guard": (_TORCH, "from training_agent import attach"),  # without torch's own import
    "boto3_and_two_clients": ("", _CLIENTS),  # in the publisher's thread
}


def measure(turns: int = 3) -> dict[str, float]:
    """Seconds (`_s`) and resident memory (`_mb`, 0 where /proc does not tell)."""
    found = {}
    for name, (before, code) in IMPORTS.items():
        text = _TIMER.format(before=before, code=code)
        runs = [_run(text) for _ in range(turns)]
        found[f"{name}_s"] = round(median(s for s, _ in runs), 4)
        found[f"{name}_mb"] = round(median(mb for _, mb in runs), 1)
    return found


def _run(text: str) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    seconds, megabytes = done.stdout.split()
    return float(seconds), float(megabytes)
