"""One rank of the six-rank job: runs the scenarios named on the command line, writes its results as JSON.

Usage: worker.py OUT_DIR, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed.harness import TrainingJob
from tests.distributed.scenarios import SCENARIOS, VARIANT_SCENARIOS, VARIANTS
from training_agent.schedule import ScheduleWarning


def main(out: Path) -> None:
    warnings.simplefilter("ignore", ScheduleWarning)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    job = TrainingJob(rank, out)
    results = {name: scenario(job) for name, scenario in SCENARIOS.items()}
    for variant, options in VARIANTS.items():
        job = TrainingJob(rank, out / variant, **options)
        results |= {f"{variant}: {name}": scenario(job) for name, scenario in VARIANT_SCENARIOS.items()}
    for run in results.values():
        run.notes.pop("checkpoint", None)
    (out / f"{rank}.json").write_text(json.dumps({k: asdict(v) for k, v in results.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
