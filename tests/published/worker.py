"""One rank of six: the published table under the ported design, then every trial under both designs.

Usage: worker.py OUT_DIR table|trials|short|all|crash, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.matrix import judge, rows
from tests.published import table as published
from tests.published.trials import CRASHES, SHORT, TRIALS, Loop

LAYOUT = "6x3"


def main(out: Path, part: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    if part == "crash":
        (out / f"{rank}.json").write_text(json.dumps(TRIALS[CRASHES](Loop("published"))))
        os._exit(0)  # the group is broken: whoever waits for this rank must see it gone
    table = rows.load()
    found: dict[str, Any] = {}
    if part != "trials":
        job = published.PublishedJob(rank, table["layouts"][LAYOUT])
        for case in published.cases(table, LAYOUT, short=part == "short"):
            schedule = table["schedules"][case.row["schedule"]]
            found[case.key] = asdict(job.run(case, schedule, judge.shift_of(case, table)))
            if rank == 0:
                sys.stdout.write(f"- {case.key}\n")
                sys.stdout.flush()
    if part != "table":
        for name in SHORT if part == "short" else TRIALS:
            for design in ("ours",) if name == CRASHES else ("published", "ours"):
                found[f"{name}|{design}"] = TRIALS[name](Loop(design))
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
