"""The fake training operator restarts, reschedules and stops processes as the real one does.

Real processes (small shell commands), the fake API server's own state.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from emulator import training_operator
from emulator.restart_budget import RestartBudget
from emulator.training_operator import TrainingOperator
from tests.patience import PATIENCE_S, eventually

from .cluster import Cluster, job

pytestmark = pytest.mark.enable_socket  # the operator looks for a free port


def test_a_job_whose_pods_all_end_well_is_done(tmp_path: Path) -> None:
    cluster = Cluster("a", "b")
    with TrainingOperator(cluster, job(tmp_path, "exit 0")) as operator:
        assert operator.wait(PATIENCE_S)
    assert operator.failure is None
    assert len(operator.attempts) == 1


def test_one_nonzero_exit_restarts_every_pod_in_place(tmp_path: Path) -> None:
    text = '[ "$SDC_ATTEMPT" = 2 ] && exit 0; [ $NODE_RANK = 1 ] && exit 3; exec sleep 60'
    with TrainingOperator(Cluster("a", "b"), job(tmp_path, text)) as operator:
        assert operator.wait(PATIENCE_S)
    assert [a.nodes for a in operator.attempts] == [("a", "b"), ("a", "b")]
    assert (1, 1, 3) in operator.exit_codes
    assert (1, 0, -15) in operator.exit_codes  # the sibling was terminated, not waited for


def test_an_evicted_pod_waits_for_a_node_and_keeps_its_rank(tmp_path: Path) -> None:
    cluster = Cluster("a", "b")
    text = '[ "$SDC_ATTEMPT" = 2 ] && echo $NODE_RANK on $NODE_NAME >> $MARKS/seats && exit 0; exec sleep 60'
    with TrainingOperator(cluster, job(tmp_path, text)) as operator:
        eventually(lambda: len(operator.attempts) == 1)
        cluster.cordon("b")
        cluster.terminate_pod("job-worker-1", namespace="training")
        eventually(lambda: cluster.phase("job-worker-1") == "Pending")
        time.sleep(0.5)
        assert len(operator.attempts) == 1  # nothing starts while a pod is Pending
        cluster.add("c")
        assert operator.wait(PATIENCE_S)
    assert [a.nodes for a in operator.attempts] == [("a", "b"), ("a", "c")]
    assert operator.restarts.processes == 1
    assert sorted((tmp_path / "seats").read_text().split("\n")[:2]) == ["0 on a", "1 on c"]


def test_a_released_node_takes_its_pod_back(tmp_path: Path) -> None:
    cluster = Cluster("a", "b")
    text = '[ "$SDC_ATTEMPT" = 2 ] && exit 0; exec sleep 60'
    with TrainingOperator(cluster, job(tmp_path, text)) as operator:
        eventually(lambda: len(operator.attempts) == 1)
        cluster.cordon("a")
        cluster.delete_pod("job-worker-0", namespace="training")
        eventually(lambda: cluster.phase("job-worker-0") == "Pending")
        cluster.cordon("a", cordoned=False)
        assert operator.wait(PATIENCE_S)
    assert operator.attempts[-1].nodes == ("a", "b")


def test_a_job_that_never_ends_well_spends_its_restarts_and_fails_with_the_reason(tmp_path: Path) -> None:
    spec = replace(job(tmp_path, "exit 1"), budget=RestartBudget(process_restarts=1, job_restarts=1))
    with TrainingOperator(Cluster("a", "b"), spec) as operator:
        assert operator.wait(PATIENCE_S)
    assert len(operator.attempts) == 4  # the first, one in place, the whole job, one in place
    spent = "the restart budget is spent: 2 process restarts and 1 job restarts"
    assert operator.failure == f"the job failed: {spent}"


def test_a_restart_in_place_keeps_the_pods_and_one_of_the_whole_job_makes_them_anew(tmp_path: Path) -> None:
    # the first one that fails ends the other, which must have written before
    both = "until [ $(cat $MARKS/pods-* | wc -l) -ge $((2 * SDC_ATTEMPT)) ]; do sleep 0.02; done"
    text = f'echo $POD_UID >> $MARKS/pods-$NODE_RANK; {both}; [ "$SDC_ATTEMPT" = 3 ] || exit 1'
    spec = replace(job(tmp_path, text), budget=RestartBudget(process_restarts=1, job_restarts=1))
    with TrainingOperator(Cluster("a", "b"), spec) as operator:
        assert operator.wait(PATIENCE_S)
    assert operator.failure is None
    for rank in range(2):
        first, in_place, anew = (tmp_path / f"pods-{rank}").read_text().split()
        assert first == in_place != anew


def test_pods_get_what_kubelet_and_device_plugin_give(tmp_path: Path) -> None:
    text = "env > $MARKS/env-$NODE_RANK"
    with TrainingOperator(Cluster("a", "b"), job(tmp_path, text)) as operator:
        assert operator.wait(PATIENCE_S)
    lines = (tmp_path / "env-1").read_text().splitlines()
    assert "NODE_NAME=b" in lines
    assert "NVIDIA_VISIBLE_DEVICES=GPU-b-0,GPU-b-1" in lines
    assert "SDC_ATTEMPT=1" in lines


def test_a_rank_in_a_session_of_its_own_that_ignores_sigterm_ends_with_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_operator, "TERMINATION_GRACE_SECONDS", 0.5)
    rank = (
        "import os,signal,time; signal.signal(15, signal.SIG_IGN); os.setsid(); "
        "os.symlink(str(os.getpid()), os.environ['MARKS'] + '/rank-' + os.environ['NODE_RANK']); "
        "time.sleep(600)"
    )
    text = f"""export NODE_RANK; trap '' TERM; {sys.executable} -c "{rank}" & wait"""
    with TrainingOperator(Cluster("a", "b"), job(tmp_path, text)):
        eventually(lambda: len(list(tmp_path.glob("rank-*"))) == 2)
    for link in tmp_path.glob("rank-*"):
        eventually(partial(ended, str(link.readlink())))


def ended(pid: str) -> bool:
    """Gone, or dead and not yet collected by its parent."""
    seen = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False)
    return seen.stdout.strip()[:1] in ("", "Z")
