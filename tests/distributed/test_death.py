"""R7, A6: a rank dies in any way at any phase; the others end and accuse nobody; the job can resume.

By `make soak`; the short forms, a kill and a stop in a replay, are in `test_exit_codes`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.conftest import launch
from tests.distributed.death_job import GROUP_TIMEOUT, PHASES, STRUCK, WAYS
from training_agent.checkpoint import CheckpointStore

FAULTY = 2  # where the phase needs an alarm to be reached
START_S = 240  # three processes that import torch, on a machine that does something else as well


def die(way: str, phase: str, folder: Path) -> None:
    victim = 0 if phase == "save" else 1
    patience_s = START_S + GROUP_TIMEOUT.total_seconds() + 10
    ended = launch(
        "tests.distributed.death_job", 3, phase, way, str(folder),
        timeout=patience_s, stopped=victim if way == "stop" else None,
    )  # fmt: skip
    assert (folder / STRUCK).exists(), ended[victim][1]
    # After the last collective nobody needs the one that dies; an error in a replay is no death: the audit is
    # skipped on all ranks, and training goes on.
    goes_on = phase == "exit" or (way, phase) == ("exception", "replay")
    for rank, (code, out) in enumerate(ended):
        if rank != victim:
            assert (code == 0) is goes_on, (rank, out)
        for line in out.splitlines():
            said = json.loads(line) if line.startswith('{"sdc"') else {}
            if said.get("sdc") == "alarm":
                named = {f["rank"] for f in said["alarm"]["findings"]}
                assert named <= {FAULTY, None} and phase in ("confirm", "publish"), line
    newest = CheckpointStore(folder / "checkpoints", 3).newest()
    assert newest is not None and newest.step == (8 if goes_on else 4)
    CheckpointStore(folder / "checkpoints", 3).load(newest)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("way", WAYS)
def test_r7_a6_every_death_at_every_phase(way: str, phase: str, tmp_path: Path) -> None:
    die(way, phase, tmp_path)
