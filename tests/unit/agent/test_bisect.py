"""The search of `sdc bisect`: what it claims, what it does not, and how it is bounded and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.events import builder
from tests.patience import PATIENCE_S, eventually
from training_agent import CheckpointStore
from training_agent.bisect import Case, Kind, Result, Seen, Start, Task, search
from training_agent.cli.app import main
from training_agent.cli.bisect_memory import points
from training_agent.contract import Check, ResumePoint, encode

WINDOW = range(21, 30)


def right(step: int) -> str:
    return f"{step:016x}"


def case(poisoned: int | None, *, points: Any = WINDOW, starts: tuple[Start, ...] | None = None) -> Case:
    """A job that was wrong from `poisoned` on."""

    def recorded(step: int) -> str:
        return f"bad{step}" if poisoned is not None and step >= poisoned else right(step)

    inside = tuple(Start(s, f"step-{s}", recorded(s), doubtful=True) for s in (24, 28))
    sound = (Start(10, "step-10", right(10)), Start(20, "step-20", right(20)))
    return Case(tuple((s, recorded(s)) for s in points), sound + inside if starts is None else starts)


def played(given: Case, compute: Any = lambda kind, step: right(step)) -> tuple[Result, list[Task]]:
    """Answer every task as a launch would: point by point, up to the first that differs."""
    seen, tasks = Seen(), []
    while isinstance(move := search(given, seen), Task):
        tasks.append(move)
        assert len(tasks) < 50
        for step, expected in move.points:
            seen.of(move.kind)[step] = compute(move.kind, step)
            if seen.of(move.kind)[step] != expected:
                break
    return move, tasks


@pytest.mark.parametrize("poisoned", WINDOW)
def test_the_first_poisoned_update_is_found_wherever_it_is(poisoned: int) -> None:
    result, tasks = played(case(poisoned))
    assert (result.decided, result.poisoned) == (True, (poisoned, poisoned)), result.why
    assert result.back_to is not None
    assert result.back_to.step == max(s for s in (20, 24, 28) if s < poisoned)
    assert [t.kind for t in tasks][-1] is Kind.AGAIN


def test_points_that_are_further_apart_give_a_range() -> None:
    result, _ = played(case(23, points=(22, 25, 29)))
    assert (result.decided, result.poisoned) == (True, (23, 25))


def test_the_second_replay_begins_at_the_newest_checkpoint_that_the_first_has_proven() -> None:
    _, tasks = played(case(27))
    assert [(t.kind, t.start.step) for t in tasks] == [(Kind.FIRST, 20), (Kind.AGAIN, 24)]


def test_a_doubtful_checkpoint_with_other_weights_than_the_trail_is_nowhere_begun_or_gone_back_to() -> None:
    given = case(27)
    foreign = Start(25, "step-25.doubtful-1", "of another attempt", doubtful=True)
    unknown = Start(26, "step-26.doubtful-1", None, doubtful=True)
    starts = tuple(sorted((*given.starts, foreign, unknown), key=lambda s: s.step))
    result, tasks = played(Case(given.points, starts))
    assert [t.start.step for t in tasks] == [20, 24]
    assert result.back_to is not None and result.back_to.step == 24


def test_nothing_is_poisoned_where_all_recorded_weights_are_computed_again() -> None:
    result, tasks = played(case(None))
    assert (result.decided, result.poisoned, len(tasks)) == (True, None, 1)
    assert "no poisoned update was applied" in result.why


def test_a_script_that_never_gives_the_jobs_bits_accuses_no_update() -> None:
    result, tasks = played(case(None), lambda kind, step: f"other {step}")
    assert (result.decided, result.poisoned) == (False, None)
    assert tasks[-1].kind is Kind.CALIBRATE
    assert "do not even give the checkpoint of 20" in result.why


def test_without_an_older_checkpoint_a_difference_at_the_first_point_proves_nothing() -> None:
    result, _ = played(case(21, starts=(Start(20, "step-20", right(20)),)))
    assert (result.decided, result.poisoned) == (False, None)
    assert "proves nothing" in result.why


def test_a_replay_that_does_not_repeat_itself_decides_nothing() -> None:
    result, _ = played(case(25), lambda kind, step: right(step) if step < 25 else f"{kind.value} {step}")
    assert (result.decided, result.poisoned) == (False, None)
    assert "differ from each other" in result.why


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (case(25, starts=()), "there is no checkpoint from before"),
        (case(25, points=()), "the job recorded no weights"),
    ],
)
def test_it_says_what_it_lacks(given: Case, says: str) -> None:
    result, tasks = played(given)
    assert (result.decided, tasks) == (False, []) and says in result.why


# -- the command, with a launch that only plays the part ------------------------------------------------

LAUNCH = """
import json, os, sys
plan = json.load(open(os.environ["SDC_BISECT"]))
assert "SDC_EVENT_BUS" not in os.environ and "launch-" in os.environ["SDC_SHARED_DIR"]
with open(plan["record"], "w") as out:
    for step, expected in plan["points"]:
        if step == int(sys.argv[1]):
            sys.exit(3)
        out.write(json.dumps([step, f"{step:016x}"]) + chr(10))
        if expected != f"{step:016x}":
            break
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An alarm at 30, wrong since 25, and what belongs to it."""
    monkeypatch.setenv("SDC_EVENT_BUS", "bus")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    for folder in ("spool", "capsules"):
        (tmp_path / folder).mkdir()
    spool = tmp_path / "spool" / "alarm.json"
    resume = ResumePoint(20, str(checkpoints / "step-20"))
    spool.write_text(encode(builder.alarm(builder.culprit(3), suspect_window=(1, 30), resume_from=resume)))
    points = [[s, right(s) if s < 25 else f"bad{s}"] for s in range(1, 30)]
    trail = {"format": 1, "step": 30, "world": 6, "names": ["w"], "points": points}
    (tmp_path / "capsules" / "trail-step-30-attempt-1.json").write_text(json.dumps(trail))
    (tmp_path / "launch.py").write_text(LAUNCH)
    return tmp_path


def bisect(job: Path, *options: str, dies_at: int = 0) -> int:
    launch = [sys.executable, str(job / "launch.py"), str(dies_at)]
    return main(["bisect", str(job / "spool" / "alarm.json"), *options, "--", *launch])


def test_a_launch_that_fails_loses_nothing_of_what_it_computed(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect(job, dies_at=23) == 4
    assert "a trusted GPU alarmed" in " ".join(capsys.readouterr().err.split())
    kept = json.loads((job / "spool" / "alarm.bisect.json").read_text())
    assert (kept["updates"], sorted(map(int, kept["first"]))) == (22, list(range(1, 23)))
    assert bisect(job) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "update 25 is the first poisoned one" in shown
    assert "Last checkpoint before it: step 0, the start." in shown
    assert bisect(job, "--json") == 0  # remembered: no launch is made
    assert len(list((job / "spool" / "alarm.bisect.d").iterdir())) == 3


@pytest.mark.parametrize("recorded", [(30, 39), (39,)])
def test_a_record_on_the_way_to_the_window_calibrates_the_search(
    job: Path, capsys: pytest.CaptureFixture[str], recorded: tuple[int, ...]
) -> None:
    saved = CheckpointStore(job / "checkpoints", 1).save(20, {"w": torch.zeros(1)}, {"step": 20})
    resume = ResumePoint(20, str(saved.path))
    alarm = builder.alarm(builder.culprit(3), step=40, suspect_window=(31, 40), resume_from=resume)
    (job / "spool" / "alarm.json").write_text(encode(alarm))
    points = [[s, right(s) if s <= 30 else f"bad{s}"] for s in recorded]
    trail = {"format": 1, "step": 40, "world": 6, "names": ["w"], "points": points}
    (job / "capsules" / "trail-step-40-attempt-1.json").write_text(json.dumps(trail))
    code = bisect(job)
    shown = " ".join(capsys.readouterr().out.split())
    if len(recorded) == 1:
        assert code == 4 and "proves nothing" in shown
    else:
        assert code == 0 and "one of the updates 31 to 39 is the first poisoned one" in shown


def test_a_job_without_any_checkpoint_is_replayed_from_its_start(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alarm = builder.alarm(builder.culprit(3), suspect_window=(1, 30), resume_from=None)
    (job / "spool" / "alarm.json").write_text(encode(alarm))
    assert bisect(job) == 0
    assert "Last checkpoint before it: step 0, the start." in " ".join(capsys.readouterr().out.split())
    later = builder.alarm(builder.culprit(3), suspect_window=(21, 30), resume_from=None)
    (job / "spool" / "alarm.json").write_text(encode(later))
    assert bisect(job, "--state", str(job / "other.json")) == 3
    assert "The alarm knows no checkpoint from before its window" in " ".join(capsys.readouterr().err.split())


def test_lines_cut_off_and_folders_taken_away_stop_no_search(job: Path) -> None:
    record = job / "record.jsonl"
    record.write_text('[1, "a"]\n[2, "b')
    assert dict(points(record)) == {1: "a"}
    assert bisect(job, dies_at=23) == 4
    (job / "spool" / "alarm.bisect.d" / "launch-1").rename(job / "spool" / "alarm.bisect.d" / "launch-2")
    assert bisect(job) == 0
    assert len(list((job / "spool" / "alarm.bisect.d").iterdir())) == 3


HANGS = """
import json, os, pathlib, signal
plan = json.load(open(os.environ["SDC_BISECT"]))
with open(plan["record"], "w") as out:
    for step, expected in plan["points"][:3]:
        out.write(json.dumps([step, expected]) + chr(10))
pathlib.Path(__file__).with_name("pid.part").write_text(str(os.getpid()))
pathlib.Path(__file__).with_name("pid.part").rename(pathlib.Path(__file__).with_name("pid"))
signal.pause()
"""


def heeds_interrupts() -> None:
    """Whatever starts the tests may ignore them, as a shell does for what runs in its background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_search_that_is_told_to_end_leaves_no_job_running_and_keeps_what_it_has(
    job: Path, number: signal.Signals
) -> None:
    (job / "hangs.py").write_text(HANGS)
    command = ["bisect", str(job / "spool" / "alarm.json"), "--", sys.executable, str(job / "hangs.py")]
    search = subprocess.Popen(
        [sys.executable, "-m", "training_agent.cli", *command],
        stdout=subprocess.DEVNULL,
        preexec_fn=heeds_interrupts,
    )
    try:
        eventually(lambda: (job / "pid").exists())
        search.send_signal(number)
        assert search.wait(PATIENCE_S) == 130
    finally:
        search.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(int((job / "pid").read_text()), 0)
    kept = json.loads((job / "spool" / "alarm.bisect.json").read_text())
    assert sorted(map(int, kept["first"])) == [1, 2, 3]


def test_a_memory_that_cannot_be_kept_is_said(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect(job, "--state", str(job / "launch.py" / "state.json")) == 4
    assert "What the search remembers cannot be kept at" in " ".join(capsys.readouterr().err.split())


def test_it_refuses_what_it_cannot_use(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", str(job / "spool" / "alarm.json")]) == 2
    assert main(["bisect", str(job / "none.json"), "--", "true"]) == 3
    assert main(["bisect", str(job / "launch.py"), "--", "true"]) == 4
    (job / "spool" / "alarm.bisect.json").write_text('{"alarm": "another"}')
    assert bisect(job) == 4
    assert "it belongs to another alarm" in " ".join(capsys.readouterr().err.split())


def test_a_weights_alarm_is_not_replayed(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alarm = builder.alarm(builder.weights(3), check=Check.WEIGHTS)
    (job / "spool" / "alarm.json").write_text(encode(alarm))
    assert bisect(job) == 4
    assert "Replicas differ since an update after step 20" in " ".join(capsys.readouterr().out.split())
