"""Delivery under outage, over real launches: training is bit for bit what it is without a publisher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.conftest import launch
from tests.distributed.endpoints import TroubledAws
from tests.patience import PATIENCE_S, eventually
from tests.ranks import ROOT
from training_agent.contract import Alarm, ExitCode, decode, delivery_key
from training_agent.spool import Spool

JOB = "tests.distributed.outage_job"
OUTAGES = ("hole", "refused", "dns", "5xx", "throttled", "expired", "partial", "credentials", "slow", "well")


@pytest.fixture
def aws() -> Iterator[TroubledAws]:
    with TroubledAws() as troubled:
        yield troubled


def train_through(aws: TroubledAws, folder: Path, steps: int) -> dict[str, list[dict[str, Any]]]:
    """Per kind what each rank said: digest of losses and weights, events given up."""
    kinds = {"none": {}, **{kind: aws.environment(kind) for kind in OUTAGES}}
    ended = launch(JOB, 2, str(folder), str(steps), json.dumps(kinds), timeout=900)
    found: dict[str, list[dict[str, Any]]] = {}
    for code, out in ended:
        assert code == 0, out
        for line in out.splitlines():
            said = json.loads(line) if line.startswith("{") else {}
            if "kind" in said:
                found.setdefault(said["kind"], []).append(said)
            assert said.get("sdc") != "alarm"
    return found


def require_the_same_training(found: dict[str, list[dict[str, Any]]]) -> None:
    assert set(found) == {"none", *OUTAGES}
    for kind, ranks in found.items():
        assert [r["digest"] for r in ranks] == [r["digest"] for r in found["none"]], kind


def test_a8_a13_no_outage_changes_a_bit_of_the_training(aws: TroubledAws, tmp_path: Path) -> None:
    require_the_same_training(train_through(aws, tmp_path, 40))
    assert {e["DetailType"] for e in aws.events["well"]} == {"SDC Node Registered"}
    assert len(aws.events["well"]) == 2


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a8_a13_no_outage_changes_a_bit_of_500_steps(aws: TroubledAws, tmp_path: Path) -> None:
    """R6 and A8's figures; `out/outages.json` keeps what was measured."""
    found = train_through(aws, tmp_path, 500)
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out" / "outages.json").write_text(json.dumps(found, indent=1))
    require_the_same_training(found)
    assert all(r["attach_s"] <= 5 for r in found["hole"])
    for kind, ranks in found.items():
        assert all(r["reporter_ms"]["p99"] <= 5 for r in ranks), kind
        assert all(r["grown_mb"] < 64 and r["threads"] <= len(found) for r in ranks), kind


def torchrun(aws: TroubledAws, kind: str, folder: Path, *fault: str, attempt: int = 1) -> Any:
    """The launcher wrapper around torchrun around the job."""
    script = str(ROOT / "tests/distributed/outage_job.py")
    kinds = json.dumps({kind: aws.environment(kind)})
    return subprocess.Popen(
        [sys.executable, "-m", "training_agent.run", "--", sys.executable, "-m", "torch.distributed.run",
         "--standalone", "--nproc-per-node", "2", script, str(folder), "30", kinds, *fault],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SDC_ATTEMPT": str(attempt)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def alarms(aws: TroubledAws, kind: str) -> list[Alarm]:
    return [decode(Alarm, e["Detail"].encode()) for e in aws.events[kind] if e["DetailType"] == "SDC Alarm"]


def test_a7_a_publisher_of_three_seconds_under_torchrun_loses_no_alarm(
    aws: TroubledAws, tmp_path: Path
) -> None:
    with torchrun(aws, "slow", tmp_path, "5") as job:
        out, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == ExitCode.ALARM, out
    sent = alarms(aws, "slow")
    assert sent and {delivery_key(a) for a in sent} == {delivery_key(sent[0])}  # two ranks, one key
    assert sent[0].step == 5 and sent[0].nonfinite_ranks == (1,)
    spool = Spool(tmp_path / "slow" / "spool")
    assert len(spool.alarms()) == 1 and spool.unsent() == ()


@pytest.mark.soak  # two more launches; the same over files alone is in test_job_reporter
def test_a7_what_sigkill_kept_from_leaving_is_sent_by_the_next_start_under_the_same_key(
    aws: TroubledAws, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "hole" / "spool")
    with torchrun(aws, "hole", tmp_path, "5") as job:
        eventually(lambda: bool(spool.alarms()) or job.poll() is not None)
        assert spool.alarms(), "no alarm was spooled"
        for worker in (tmp_path / "hole").glob("pid-*"):
            os.kill(int(worker.read_text()), signal.SIGKILL)
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate(timeout=PATIENCE_S)
    (kept,) = spool.unsent()
    (tmp_path / "hole").rename(tmp_path / "well")
    with torchrun(aws, "well", tmp_path, attempt=2) as job:
        out, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, out
    sent = alarms(aws, "well")
    assert {delivery_key(a) for a in sent} == {delivery_key(kept)} and sent[0] == kept
    assert Spool(tmp_path / "well" / "spool").unsent() == ()
