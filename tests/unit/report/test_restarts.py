"""Is it hardware? The same step on different nodes stops the loop with exit code 6."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from training_agent.checkpoint import CheckpointStore
from training_agent.cli.app import main
from training_agent.contract import Alarm, Check, Finding, FindingKind, ResumePoint
from training_agent.errors import ReproducibleError
from training_agent.hold import HoldResult
from training_agent.restarts import judge, look
from training_agent.spool import Spool

from .builders import JOB, a_finding, a_place, an_alarm
from .starts import Start

SOFTWARE = a_finding(None, FindingKind.SOFTWARE, majority=False)


def alarm(attempt: int, rank: int | None = 1, **changes: Any) -> Alarm:
    """Ranks 0 and 1 stand on one node, 2 and 3 on the next, and so on."""
    finding = changes.pop("finding", None) or a_finding(rank)
    return an_alarm(finding, job=replace(JOB, attempt=attempt), **changes)


def spool(shared: Path, *alarms: Alarm) -> None:
    for one in alarms:
        Spool(shared / "spool").put(one)


def test_the_same_step_on_another_node_follows_the_data_or_the_code() -> None:
    assert judge([alarm(1, 1), alarm(2, 5)]) == (alarm(1, 1), alarm(2, 5))


@pytest.mark.parametrize(
    "alarms",
    [
        (),
        (alarm(1),),
        (alarm(1, 1), alarm(2, 1)),  # follows the node: a persistent fault fails at the same audit again
        (alarm(1, 1), alarm(2, 0)),  # another GPU of the same node
        (alarm(1, 1), alarm(2, 5, step=40)),
        (alarm(1, 1), alarm(1, 5)),  # one start: two GPUs
        (alarm(1, 1), alarm(2, 5), alarm(3, 1, step=50)),  # the newest is another matter
        (alarm(1, None, finding=a_finding(None, FindingKind.REDUCED, majority=False)),
         alarm(2, None, finding=a_finding(None, FindingKind.REDUCED, majority=False))),
    ],
)  # fmt: skip
def test_what_does_not_follow_the_step_stops_nothing(alarms: tuple[Alarm, ...]) -> None:
    assert judge(alarms) is None


def test_a_gpu_that_came_back_under_another_instance_is_the_same_gpu() -> None:
    moved = a_finding(1)
    assert moved.place is not None
    place = replace(moved.place, node="hyperpod-i-0fffffffffffffff0", instance_id="i-0fffffffffffffff0")
    assert judge([alarm(1, 1), alarm(2, finding=replace(moved, place=place))]) is None


def test_what_several_nodes_do_alike_twice_is_reproducible() -> None:
    found = judge([alarm(1, None, finding=SOFTWARE), alarm(2, None, finding=SOFTWARE)])
    assert found is not None


REPRODUCED = a_finding(None, FindingKind.NONFINITE, majority=False, reproduced=True, involved=(a_place(1),))
DATA = {"reproduced": REPRODUCED, "camp": replace(SOFTWARE, involved=(a_place(0), a_place(1)))}


@pytest.mark.parametrize("finding", DATA.values(), ids=DATA)
def test_what_is_no_single_gpus_follows_the_data_on_the_same_nodes_too(finding: Finding) -> None:
    """Found with a NaN in the data: the same nodes, the same step, start after start."""
    assert judge([alarm(1, finding=finding), alarm(2, finding=finding)]) is not None


def test_data_once_and_a_named_gpu_the_other_time_prove_nothing() -> None:
    named = a_finding(5, FindingKind.NONFINITE)
    for pair in ((REPRODUCED, named), (named, REPRODUCED)):
        assert judge([alarm(n, finding=finding) for n, finding in enumerate(pair, start=1)]) is None


def test_a_gpu_beside_data_is_judged_by_where_the_gpu_stands() -> None:
    def both(attempt: int, rank: int) -> Alarm:
        return an_alarm(a_finding(rank), REPRODUCED, job=replace(JOB, attempt=attempt))

    assert judge([both(1, 3), both(2, 3)]) is None
    assert judge([both(1, 3), both(2, 5)]) is not None


def test_a_nan_in_the_data_ends_with_code_6_and_says_whose_batch_to_look_at(tmp_path: Path) -> None:
    spool(tmp_path, *(alarm(n, check=Check.NONFINITE, finding=REPRODUCED) for n in (1, 2)))
    error = Start(tmp_path, job=replace(JOB, attempt=3)).launch().finish()[0]
    assert isinstance(error, ReproducibleError)
    for part in ("on several GPUs alike", "batch of rank 1 at step 30", "the same batch again"):
        assert part in str(error)


def test_every_rank_ends_with_code_6_and_an_older_checkpoint_is_proposed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", 4)
    for step in (10, 20):
        store.save(step, {"w": torch.zeros(1)}, {})
    resumed = ResumePoint(20, str(tmp_path / "checkpoints" / "step-20"))
    spool(tmp_path, alarm(1, 1), alarm(2, 5, resume_from=resumed))
    results = Start(tmp_path).launch().finish()
    assert [type(r) for r in results.values()] == [ReproducibleError] * 4
    text = str(results[3])
    assert int(ReproducibleError.exit_code) == 6
    for part in ("Step 30", "attempt 1", "attempt 2", "step 10", "step-10", "sdc clear --reproducible"):
        assert part in text


def test_a_person_who_has_looked_lets_it_start_until_it_happens_again(tmp_path: Path) -> None:
    spool(tmp_path, alarm(1, 1), alarm(2, 5))
    where = ["--shared-dir", str(tmp_path)]
    assert main(["clear", "--reproducible", *where]) == 2  # no reason
    assert look(tmp_path) is not None
    assert main(["clear", "--reproducible", *where, "--reason", "batch 30 was damaged"]) == 0
    note = json.loads((tmp_path / "reproducible-acknowledged.json").read_text())
    assert note["reason"] == "batch 30 was damaged"
    assert all(isinstance(r, HoldResult) for r in Start(tmp_path).launch().finish().values())
    spool(tmp_path, alarm(3, 1), alarm(4, 5))
    assert look(tmp_path) is not None


def test_a12_the_same_node_again_is_no_reproducible_step_but_a_hold(tmp_path: Path) -> None:
    spool(tmp_path, *(alarm(attempt, 1) for attempt in range(1, 6)))
    assert look(tmp_path) is None
