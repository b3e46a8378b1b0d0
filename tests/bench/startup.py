"""What a start costs before the first step: imports in a fresh process. Attach, preflight: `worker`."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

_TIMER = """
import sys, time
{before}
start = time.perf_counter()
{code}
sys.stdout.write(str(time.perf_counter() - start))
"""


def measure(turns: int = 3) -> dict[str, float]:
    """Seconds; the second without torch's own import."""
    return {
        "import_training_agent_s": _seconds("", "import training_agent", turns),
        "import_guard_s": _seconds(
            "import torch.nn.parallel, torch.distributed, torch.func",
            "from training_agent import attach",
            turns,
        ),
    }


def _seconds(before: str, code: str, turns: int) -> float:
    text = _TIMER.format(before=before, code=code)
    runs = [
        float(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout)
        for _ in range(turns)
    ]
    return round(median(runs), 4)
