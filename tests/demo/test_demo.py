"""The demo itself, from the command line: faults drawn at random, judged by what it writes.

A failing draw is run again with the line that the test prints (DEMO_DRAW=<number>).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training_agent.fault_plan import TWO_GPUS_MIN_RANKS, Fault

ROOT = Path(__file__).parents[2]
STEPS = 60
TIMEOUT_SECONDS = 540
INJECTED = [f.value for f in Fault if f is not Fault.NONE]
ENDS = {  # fault -> (check, decision row, terminal state)
    "nan-once": ("nonfinite", "V2", "RELEASED"),
    "forward-x1000": ("replay", "C1", "REPLACED"),
    "forward-x1000-once": ("replay", "V2", "RELEASED"),
    "replayer-x1000": ("replay", "V3", "REPLACED"),
    "weight-grad-x1000": ("replay", "C1", "REPLACED"),
    "weight-flip": ("weights", "W1", "REPLACED"),
    "two-gpus": ("replay", "C1", "REPLACED"),
}


def draw(number: int) -> dict[str, str]:
    """One request, a pure function of `number`."""
    chosen = random.Random(number)
    fault = chosen.choice(INJECTED)
    nodes, gpus = chosen.choice([(3, 2), (3, 1), (4, 1)])
    if fault == Fault.TWO_GPUS.value and nodes * gpus < TWO_GPUS_MIN_RANKS:
        nodes, gpus = 3, 2
    return {
        "FAULT": fault,
        "NODES": str(nodes),
        "GPUS": str(gpus),
        "FAULT_RANK": str(chosen.randrange(nodes * gpus)),
        "FAULT_STEP": str(chosen.randint(1 if gpus > 1 else 2, STEPS)),
        "SEED": str(chosen.randrange(1000)),
    }


def run_demo(out: Path, request: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run `python -m examples.demo`; the summary is empty when none was written."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        env={**os.environ, **request, "OUT": str(out)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    summary = out / "summary.json"
    return done, json.loads(summary.read_text()) if summary.exists() else {}


def judge(out: Path, number: int) -> None:
    """A drawn fault is named, dealt with as its row says, and leaves no trace in the weights."""
    request = draw(number)
    done, summary = run_demo(out, request)
    told = f"DEMO_DRAW={number}: {request}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, told
    hit = summary["injected_rank"]
    assert summary["named_ranks"] == sorted(hit if isinstance(hit, list) else [hit]), told
    assert hit == int(request["FAULT_RANK"]) or int(request["FAULT_RANK"]) in hit, told
    ended = (summary["check"], summary["decision_row"], summary["terminal_state"])
    assert ended == ENDS[request["FAULT"]], told
    assert (summary["replaced_instance"] in (None, [])) == (summary["terminal_state"] == "RELEASED"), told
    assert summary["weights_identical_to_fault_free_run"] is True, told
    assert summary["final_step"] == STEPS, told
    first, last = summary["suspect_window"]
    struck = summary["struck_step"] if isinstance(hit, list) else [summary["struck_step"]]
    assert all(first <= step <= last for step in struck), told
    assert summary["alarm_step"] == last and summary["resumed_from_step"] < first, told
    assert json.loads((out / "execution-history.json").read_text()), told
    assert "GPU-steps were computed again" in (out / "report.html").read_text(), told
    assert (out / "mail.txt").exists() == (summary["terminal_state"] == "REPLACED"), told


@pytest.mark.timeout(TIMEOUT_SECONDS + 30)
def test_a_random_fault_goes_all_the_way_round(tmp_path: Path) -> None:
    judge(tmp_path / "out", int(os.environ.get("DEMO_DRAW", random.SystemRandom().randrange(1_000_000))))


@pytest.mark.soak
@pytest.mark.timeout(TIMEOUT_SECONDS + 30)
@pytest.mark.parametrize("number", range(40))
def test_many_faults_go_all_the_way_round(tmp_path: Path, number: int) -> None:
    judge(tmp_path / "out", number)


@pytest.mark.soak
@pytest.mark.timeout(TIMEOUT_SECONDS + 30)
def test_without_a_fault_nothing_happens(tmp_path: Path) -> None:
    done, summary = run_demo(tmp_path / "out", {"FAULT": "none"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary["named_ranks"] == [] and summary["decision_row"] is None
    assert not (tmp_path / "out" / "every-mail.txt").exists()


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"FAULT": "gamma-rays"}, "does not exist; choose one of"),
        ({"NODES": "2"}, "Set NODES=3 or more"),
        ({"FAULT_STEP": "61"}, "this run has steps 1 to 60"),
        ({"FAULT": "two-gpus", "GPUS": "1"}, "strict majority"),
        ({"FAULT_STEP": "1", "GPUS": "1"}, "other software"),
    ],
)
def test_what_cannot_run_is_refused_before_training(
    tmp_path: Path, request_: dict[str, str], words: str
) -> None:
    done, summary = run_demo(tmp_path / "out", request_)
    assert done.returncode == 4
    assert words in done.stderr
    assert not summary and "Traceback" not in done.stderr


def test_the_list_of_faults_has_one_line_each_with_the_name_first() -> None:
    done, _ = run_demo(Path("unused"), {"FAULT": "list"})
    assert [line.split()[0] for line in done.stdout.splitlines()] == [f.value for f in Fault]
