"""One rank of one layout: runs its cases in one process group and writes the raw results.

Usage: worker.py OUT_DIR LAYOUT FORM|<number of sampled cases>, with RANK and friends set.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.matrix import judge, rows, sample
from tests.matrix.job import FEATURES, MatrixJob


def main(out: Path, layout: str, form: str) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    table = rows.load()
    job = MatrixJob(rank, table["layouts"][layout])
    found = {}
    begun = time.monotonic()
    cases = sample.cases(table, layout, int(form)) if form.isdecimal() else rows.cases(table, layout, form)
    for case in cases:
        if rows.lacking(case, table, FEATURES):
            continue
        schedule = table["schedules"][case.row["schedule"]]
        found[case.key] = asdict(job.run(case, schedule, judge.shift_of(case, table)))
    found_all = {"results": found, "features": FEATURES, "seconds": time.monotonic() - begun}
    (out / f"{layout}-{rank}.json").write_text(json.dumps(found_all))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
