"""A job with a restart budget outlives an approval that comes four hours later, because it holds.

Real processes under the fake operator and the launcher of the product; the hold is the agent's own. Two
seconds stand for four hours: the wait, the hold's timeout, its polls and its heartbeat are scaled alike. The
budget's period is not, so that no restart is forgotten meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulator.restart_budget import RestartBudget
from emulator.training_operator import JobSpec, TrainingOperator
from tests.patience import PATIENCE_S, eventually
from training_agent.contract import Env, instance_subject, job_subject

from .cluster import Cluster, job
from .held_worker import KEY, TABLE_FILE

pytestmark = pytest.mark.enable_socket  # the operator looks for a free port

HOUR_S = 0.5
HOLD_TIMEOUT_S = 12  # 24 hours, as in examples/hyperpod/job.yaml
SAMPLE = RestartBudget(process_restarts=3, job_restarts=1)
GOOD, BAD, NEW = (f"hyperpod-i-0a1b2c3d4e5f6000{n}" for n in (1, 2, 3))
ROOT = Path(__file__).parents[3]


def hit_job(tmp_path: Path, how: str, accused: str) -> JobSpec:
    """A job whose pods each run one rank of `held_worker` inside `training_agent.run`."""

    def launcher(spec: JobSpec, node_rank: int, port: int) -> list[str]:
        launch = [spec.python, "-m", "training_agent.run", "--", "env", f"RANK={node_rank}"]
        return [
            *launch,
            f"WORLD_SIZE={spec.nodes}",
            spec.python,
            str(Path(__file__).with_name("held_worker.py")),
            how,
            accused,
        ]

    environment = {
        "PYTHONPATH": str(ROOT),
        Env.QUARANTINE_TABLE.value: "quarantine",
        Env.HOLD_TIMEOUT.value: str(HOLD_TIMEOUT_S),
    }
    spec = job(tmp_path, "")
    return replace(spec, python=sys.executable, environment=environment, launcher=launcher, budget=SAMPLE)


def put_rows(spec: JobSpec, subject: str, state: str) -> None:
    """What contain and resume write: one row, replaced as a whole."""
    row = {"state": {"S": state}, "delivery_keys": {"SS": [KEY]}}
    new = spec.shared_dir / "new-table.json"
    new.write_text(json.dumps({subject: row}))
    new.replace(spec.shared_dir / TABLE_FILE)


def finished(spec: JobSpec) -> list[dict[str, Any]]:
    return [json.loads((spec.shared_dir / f"finished-{rank}.json").read_text()) for rank in range(2)]


def all_hold(spec: JobSpec) -> bool:
    logs = [spec.log_dir / f"job-worker-{rank}-attempt-2.log" for rank in range(2)]
    return all(log.exists() and '"sdc":"holding"' in log.read_text() for log in logs)


def wait_four_hours_on_hold(operator: TrainingOperator) -> None:
    eventually(lambda: all_hold(operator.job))
    time.sleep(4 * HOUR_S)
    assert not operator.done
    assert len(operator.attempts) == 2  # the alarm's restart, and none since


def test_a_release_four_hours_later_ends_in_a_finished_job_after_one_restart(tmp_path: Path) -> None:
    spec = hit_job(tmp_path, "hold", "job")
    put_rows(spec, job_subject(spec.uid), "held")
    with TrainingOperator(Cluster(GOOD, BAD), spec) as operator:
        wait_four_hours_on_hold(operator)
        put_rows(spec, job_subject(spec.uid), "released")
        assert operator.wait(PATIENCE_S)
    assert operator.failure is None
    assert (operator.restarts.processes, operator.restarts.jobs) == (1, 0)
    for rank in finished(spec):
        assert rank["waited_s"] / HOUR_S >= 4
        assert not rank["torch"]


def test_a_replacement_four_hours_later_ends_in_a_finished_job_after_two_restarts(tmp_path: Path) -> None:
    cluster, spec = Cluster(GOOD, BAD), hit_job(tmp_path, "hold", "1")
    put_rows(spec, instance_subject(BAD.removeprefix("hyperpod-")), "held")
    with TrainingOperator(cluster, spec) as operator:
        eventually(lambda: len(operator.attempts) == 2)
        cluster.cordon(BAD)  # the pod stays: a disruption budget refuses its eviction, say
        wait_four_hours_on_hold(operator)
        cluster.remove_node(BAD)  # and its pod
        cluster.add(NEW)
        assert operator.wait(PATIENCE_S)
    assert operator.failure is None
    assert (operator.restarts.processes, operator.restarts.jobs) == (2, 0)
    assert [rank["node"] for rank in finished(spec)] == [GOOD, NEW]


def test_refusing_instead_of_holding_fails_the_job_before_anybody_can_approve(tmp_path: Path) -> None:
    spec = replace(hit_job(tmp_path, "refuse", "job"), nodes=1)
    put_rows(spec, job_subject(spec.uid), "held")
    with TrainingOperator(Cluster(GOOD), spec) as operator:
        assert operator.wait(PATIENCE_S)
    assert operator.failure is not None
    assert "the restart budget is spent" in operator.failure
    assert (operator.restarts.processes, operator.restarts.jobs) == (6, 1)
    assert [code for _, _, code in operator.exit_codes] == [3] + [5] * 7
    assert not list(tmp_path.glob("finished-*"))
