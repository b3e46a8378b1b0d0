"""A restarted job holds while a rank stands on a suspect node, all ranks alike."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, eventually
from training_agent.contract import to_plain
from training_agent.errors import ConfigurationError, RefusedNodeError
from training_agent.hold import HoldResult, hold_while_quarantined
from training_agent.quarantine import add_to_record, entries_of
from training_agent.settings import Worker
from training_agent.spool import Spool

from .builders import JOB, ROOT, FakeAws, a_finding, a_place, an_alarm, instance, settings_of
from .starts import Start

KEY = entries_of(an_alarm(a_finding(1)))[0].delivery_key
RELEASED = {"state": "released", "delivery_key": KEY}


def accuse(shared: Path, *ranks: int | None, **changes: object) -> None:
    alarm = an_alarm(*(a_finding(r) for r in ranks), **changes)
    add_to_record(shared, entries_of(alarm))


def lines(text: str, kind: str) -> list[dict[str, object]]:
    parsed = [json.loads(line) for line in text.splitlines()]
    return [p for p in parsed if p["sdc"] == kind]


def test_nobody_accused_all_go(tmp_path: Path) -> None:
    results = Start(tmp_path).launch().finish()
    assert [r.held for r in results.values() if isinstance(r, HoldResult)] == [False] * 4
    placed = json.loads((tmp_path / "placement" / "2" / "3.json").read_text())
    assert placed.items() >= to_plain(a_place(3)).items()


def test_nobody_joins_before_all_places_stand(tmp_path: Path) -> None:
    start = Start(tmp_path).launch(0, 1, 3)
    time.sleep(0.5)
    assert start.results == {}
    start.launch(2)
    assert len(start.finish()) == 4


@pytest.mark.parametrize("accused", [1, 2])
def test_all_ranks_hold_while_one_stands_on_a_quarantined_instance(tmp_path: Path, accused: int) -> None:
    accuse(tmp_path, accused)
    results = Start(tmp_path, hold_timeout=timedelta(seconds=0.5)).launch().finish()
    assert all(isinstance(r, RefusedNodeError) for r in results.values())


def test_the_hold_timeout_ends_with_exit_code_5_and_says_who_stands_where(tmp_path: Path) -> None:
    accuse(tmp_path, 1)
    error = Start(tmp_path, hold_timeout=timedelta(seconds=0.3)).launch().finish()[3]
    assert isinstance(error, RefusedNodeError)
    assert error.exit_code == 5
    assert f"rank 0, 1 stands on quarantined {instance(0)}" in str(error)


@pytest.mark.parametrize("piped", [False, True])
def test_a_hold_says_who_can_let_it_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], piped: bool
) -> None:
    """Found without a pipeline: it sent people to an incident and its mail, which did not exist."""
    accuse(tmp_path, 1)
    aws = FakeAws() if piped else None
    error = Start(tmp_path, aws=aws, hold_timeout=timedelta(seconds=0.3)).launch().finish()[3]
    (first, *_) = (x for x in lines(capsys.readouterr().out, "holding") if "why" in x)
    for text in (str(error), str(first["next"])):
        assert ("its mail has the link" in text) is piped
        assert (f"sdc clear --shared-dir {tmp_path} --all --reason" in text) is not piped


def test_a_job_that_moved_off_the_suspect_goes(tmp_path: Path) -> None:
    accuse(tmp_path, 40)
    results = Start(tmp_path).launch().finish()
    assert all(isinstance(r, HoldResult) and not r.held for r in results.values())


def test_a_gpu_that_came_back_under_another_instance_still_holds(tmp_path: Path) -> None:
    finding = a_finding(40, place=replace(a_place(40), instance_id=instance(99), gpu_uuid="GPU-2"))
    add_to_record(tmp_path, entries_of(an_alarm(finding)))
    results = Start(tmp_path, hold_timeout=timedelta(seconds=0.3)).launch().finish()
    assert all(isinstance(r, RefusedNodeError) for r in results.values())


def test_the_whole_job_holds_when_nobody_was_named(tmp_path: Path) -> None:
    accuse(tmp_path, None)
    error = Start(tmp_path, hold_timeout=timedelta(seconds=0.3)).launch().finish()[0]
    assert "whole job" in str(error)


def test_the_tables_row_releases_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuse(tmp_path, 1)
    aws = FakeAws()
    aws.table[f"instance#{instance(0)}"] = {"state": "held", "delivery_key": "k", "held_at": "now"}
    start = Start(tmp_path, aws=aws).launch()
    eventually(lambda: f"instance#{instance(0)}" in aws.asked)
    time.sleep(0.3)
    assert start.results == {}
    aws.table[f"instance#{instance(0)}"] = {
        "state": "released",
        "delivery_key": KEY,
    }
    results = start.finish()
    assert all(isinstance(r, HoldResult) and r.held for r in results.values())
    output = capsys.readouterr().out
    assert {x["rank"] for x in lines(output, "holding")} == {0, 2}  # of two nodes
    assert {x["rank"] for x in lines(output, "released")} == {0, 2}


def test_a_later_release_of_another_alarm_does_not_release_this_one(tmp_path: Path) -> None:
    accuse(tmp_path, 1)
    aws = FakeAws()
    aws.table[f"instance#{instance(0)}"] = {
        "state": "released",
        "delivery_key": "another",
        "released_at": "2026-01-02T09:00:00Z",
    }
    results = Start(tmp_path, aws=aws, hold_timeout=timedelta(seconds=0.4)).launch().finish()
    assert all(isinstance(r, RefusedNodeError) for r in results.values())


def test_a_release_under_the_alarms_own_key_counts_whatever_the_clocks_say(tmp_path: Path) -> None:
    accuse(tmp_path, 1)
    (entry,) = entries_of(an_alarm(a_finding(1)))
    aws = FakeAws()
    aws.table["gpu#GPU-1"] = {
        "state": "released",
        "delivery_key": entry.delivery_key,
        "released_at": "2026-01-02T03:00:00Z",
    }
    results = Start(tmp_path, aws=aws).launch().finish()
    assert all(isinstance(r, HoldResult) for r in results.values())


def test_a_row_still_held_outweighs_a_released_one(tmp_path: Path) -> None:
    accuse(tmp_path, 1)
    aws = FakeAws()
    aws.table[f"instance#{instance(0)}"] = RELEASED
    aws.table["gpu#GPU-1"] = {"state": "held"}
    results = Start(tmp_path, aws=aws, hold_timeout=timedelta(seconds=0.4)).launch().finish()
    assert all(isinstance(r, RefusedNodeError) for r in results.values())


def test_a_job_row_releases_what_a_nameless_alarm_holds(tmp_path: Path) -> None:
    accuse(tmp_path, None)
    aws = FakeAws()
    (entry,) = entries_of(an_alarm(a_finding(None)))
    aws.table["job#job-1"] = {**RELEASED, "delivery_key": entry.delivery_key}
    results = Start(tmp_path, aws=aws).launch().finish()
    assert all(isinstance(r, HoldResult) for r in results.values())


def test_another_jobs_quarantine_of_our_node_holds_us_too(tmp_path: Path) -> None:
    aws = FakeAws()
    aws.table["gpu#GPU-3"] = {"state": "held"}
    error = Start(tmp_path, aws=aws, hold_timeout=timedelta(seconds=0.4)).launch().finish()[0]
    assert isinstance(error, RefusedNodeError)
    assert "gpu#GPU-3 is quarantined" in str(error)


def test_in_observe_mode_nobody_holds(tmp_path: Path) -> None:
    accuse(tmp_path, 1)
    aws = FakeAws()
    aws.table["mode"] = {"mode": "observe"}
    results = Start(tmp_path, aws=aws).launch().finish()
    assert all(isinstance(r, HoldResult) and not r.held for r in results.values())


def test_an_unknown_mode_is_not_observe(tmp_path: Path) -> None:
    accuse(tmp_path, 1)
    aws = FakeAws()
    aws.table["mode"] = {"mode": "observe-ish"}
    results = Start(tmp_path, aws=aws, hold_timeout=timedelta(seconds=0.3)).launch().finish()
    assert all(isinstance(r, RefusedNodeError) for r in results.values())


def test_an_unreadable_table_keeps_the_hold_and_warns_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accuse(tmp_path, 1)
    aws = FakeAws()
    aws.broken = RuntimeError("no route to host")
    start = Start(tmp_path, aws=aws).launch()
    time.sleep(0.5)
    assert start.results == {}
    aws.table[f"instance#{instance(0)}"] = RELEASED
    aws.broken = None
    assert all(isinstance(r, HoldResult) for r in start.finish().values())
    warnings = lines(capsys.readouterr().out, "warning")
    assert len(warnings) == 1
    assert "no route to host" in str(warnings[0]["message"])


def test_an_unreadable_table_does_not_stop_a_job_that_nobody_accuses(tmp_path: Path) -> None:
    aws = FakeAws()
    aws.broken = RuntimeError("no credentials")
    results = Start(tmp_path, aws=aws).launch().finish()
    assert all(isinstance(r, HoldResult) and not r.held for r in results.values())


def test_a_damaged_record_holds_because_the_suspects_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "quarantine.json").write_text("{")
    error = Start(tmp_path, hold_timeout=timedelta(seconds=0.3)).launch().finish()[0]
    assert isinstance(error, RefusedNodeError)
    assert "repair or restore" in str(error)


def test_places_of_another_attempt_are_ignored(tmp_path: Path) -> None:
    Start(tmp_path).launch().finish()
    start = Start(tmp_path, job=replace(JOB, attempt=3)).launch(0, 1)
    time.sleep(0.4)
    assert start.results == {}
    start.launch(2, 3)
    start.finish()
    for attempt in ("2", "3"):
        assert len(list((tmp_path / "placement" / attempt).glob("[0-9].json"))) == 4


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_a_restart_under_the_same_attempt_number_trusts_no_old_file(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """SDC_ATTEMPT that does not count: the old verdict was "go", and a suspect was named since."""
    Start(tmp_path).launch().finish()
    accuse(tmp_path, 1)
    start = Start(tmp_path, hold_timeout=timedelta(seconds=1))
    for rank in order:
        start.launch(rank)
        time.sleep(0.05)
    assert all(isinstance(r, RefusedNodeError) for r in start.finish().values())


def test_a_rank_that_never_comes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training_agent.hold.PLACEMENT_TIMEOUT", timedelta(seconds=0.3))
    results = Start(tmp_path).launch(0, 1).finish()
    for error in results.values():
        assert isinstance(error, ConfigurationError)
        assert "Ranks 2, 3 of attempt 2" in str(error)


def test_a_follower_gives_up_alone_when_rank_0_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training_agent.hold._GRACE_S", 0.2)
    (tmp_path / "placement" / "2").mkdir(parents=True)
    placed = {**to_plain(a_place(0)), "token": "gone"}
    (tmp_path / "placement" / "2" / "0.json").write_text(json.dumps(placed))
    results = Start(tmp_path, world=2, hold_timeout=timedelta(seconds=0.3)).launch(1).finish()
    assert isinstance(results[1], RefusedNodeError)


def test_an_alarm_that_never_left_is_sent_while_the_job_holds(tmp_path: Path) -> None:
    alarm = an_alarm(a_finding(1))
    Spool(tmp_path / "spool").put(alarm)
    accuse(tmp_path, 1)
    aws = FakeAws()
    start = Start(tmp_path, aws=aws).launch()
    eventually(lambda: Spool(tmp_path / "spool").unsent() == ())
    assert len(aws.events) == 1
    aws.table[f"instance#{instance(0)}"] = RELEASED
    start.finish()


def test_without_a_shared_folder_one_warning_and_no_hold(capsys: pytest.CaptureFixture[str]) -> None:
    result = hold_while_quarantined(settings_of(None), worker=Worker())
    assert not result.held
    assert len(lines(capsys.readouterr().out, "warning")) == 1


def test_a_shared_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="SDC_SHARED_DIR"):
        hold_while_quarantined(settings_of(tmp_path / "file"), worker=Worker())


HOLD = """
import sys
from training_agent import hold_while_quarantined
from training_agent.settings import AgentSettings
hold_while_quarantined(AgentSettings.from_env())
print(sorted({"torch", "boto3", "botocore", "numpy"} & set(sys.modules)))
"""


def held_process(shared: Path, **more: str) -> subprocess.Popen[str]:
    environment = {"NODE_NAME": f"hyperpod-{instance(0)}", "SDC_SHARED_DIR": str(shared), **more}
    return subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_hold_imports_neither_torch_nor_boto3(tmp_path: Path) -> None:
    output, _ = held_process(tmp_path).communicate(timeout=PATIENCE_S)
    assert output.strip() == "[]"


def test_sigterm_ends_a_hold_at_once(tmp_path: Path) -> None:
    accuse(tmp_path, 1)
    child = held_process(tmp_path)
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["sdc"] == "holding"
    child.terminate()
    child.communicate(timeout=PATIENCE_S)
    assert child.returncode == -signal.SIGTERM


def test_a_refused_start_ends_the_process_with_code_5(tmp_path: Path) -> None:
    accuse(tmp_path, 1)
    codes = tmp_path / "codes"
    child = held_process(tmp_path, SDC_HOLD_TIMEOUT_SECONDS="1", SDC_EXIT_CODE_DIR=str(codes))
    _, errors = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 5
    assert "RefusedNodeError" in errors
    assert [p.read_text() for p in codes.iterdir()] == ["5"]
