"""A4: what one rank sees, all ranks decide, and the scheduler is told by the wrapper's exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.ranks import ROOT
from training_agent.contract import ExitCode


def test_a4_a_nan_on_one_rank_ends_all_four_alike_under_torchrun_with_code_3() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "training_agent.run", "--", sys.executable, "-m", "torch.distributed.run",
         "--standalone", "--nproc-per-node", "4", str(ROOT / "tests/distributed/one_decision_job.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == ExitCode.ALARM, done.stdout + done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    assert {s["rank"] for s in said} == {0, 1, 2, 3}
    for s in said:
        assert (s["step"], s["applied"], s["same"], s["nonfinite"]) == (7, 6, True, [2])
    assert "trained through" not in done.stdout
