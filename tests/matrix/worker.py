"""One rank of one layout: runs its cases in one process group and writes the raw results, configuration by
configuration.

Usage: worker.py OUT_DIR LAYOUT FORM|<number of sampled cases> [DONE_LABEL ...], with RANK and friends set.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.matrix import judge, results, rows, sample
from tests.matrix.job import FEATURES, MatrixJob


def main(out: Path, layout: str, form: str, done: set[str]) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    table = rows.load()
    job = MatrixJob(rank, table["layouts"][layout])
    if form.isdecimal():
        results.write(out, "sample", rank, _run(job, table, sample.cases(table, layout, int(form))))
    else:
        for config in rows.configs(table, layout, form):
            if config.label not in done:
                results.write(out, config.label, rank, _run(job, table, rows.cases(table, config, form)))
                dist.barrier()  # what is written is complete on all ranks, but for the last one
    dist.barrier()
    dist.destroy_process_group()


def _run(job: MatrixJob, table: dict[str, Any], cases: Iterable[rows.Case]) -> dict[str, Any]:
    found, begun = {}, time.monotonic()
    for case in cases:
        if rows.lacking(case, table, FEATURES):
            continue
        schedule = table["schedules"][case.row["schedule"]]
        found[case.key] = asdict(job.run(case, schedule, judge.shift_of(case, table)))
    return {"results": found, "features": FEATURES, "seconds": round(time.monotonic() - begun, 1)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], set(sys.argv[4:]))
