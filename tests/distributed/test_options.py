"""Options of the schedule in a real group: which kernels run, and audits by outcome."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.distributed.conftest import runs_of
from tests.distributed.expect import the_alarm
from tests.distributed.pace_cases import SPIKE_AT, STEPS
from training_agent.contract import Check
from training_agent.kernels import Kernels

pytestmark = pytest.mark.timeout(600)  # the first test waits for all runs
RANKS = 4
BAD = 1
KERNELS = {k.value: k.audited for k in Kernels}
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Results], list[dict[str, Any]]]:
    """Every run by name, one entry per rank; and the log lines of the first rank."""
    runs, ended = runs_of("tests.distributed.options_worker", RANKS, tmp_path_factory.mktemp("options"))
    lines = [[json.loads(t) for t in text.splitlines() if t.startswith('{"sdc"')] for _, text in ended]
    assert not any(e["sdc"] in ("kernels", "audit_rate") for own in lines[1:] for e in own), "said once"
    return runs, lines[0]


@pytest.fixture
def runs(ended: tuple[dict[str, Results], Any]) -> dict[str, Results]:
    """Every run by name."""
    return ended[0]


def same_end(results: Results, others: Results) -> bool:
    return [r["after"] for r in results] == [r["after"] for r in others]


# -- which kernels -------------------------------------------------------------------------------------


def test_switched_audits_miss_a_fault_that_only_the_kernels_of_other_steps_have(
    runs: dict[str, Results],
) -> None:
    results, clean = runs["kernels: switched: other"], runs["kernels: switched: clean"]
    for r in results:
        m = r["manifest"]
        assert (r["error"], m["audits_passed"], m["weight_checks_passed"]) == ("", 3, 4), (
            "the documented limit"
        )
    assert results[0]["after"][0] != clean[0]["after"][0], "and the weights are wrong, on all ranks alike"


def test_forced_kernels_leave_such_a_fault_nothing_to_strike(runs: dict[str, Results]) -> None:
    results = runs["kernels: forced: other"]
    assert [r["error"] for r in results] == [""] * RANKS
    assert same_end(results, runs["kernels: forced: clean"])
    assert not same_end(results, runs["kernels: switched: clean"]), "ordinary steps run other kernels"


@pytest.mark.parametrize("kernels", ["forced", "switched"])
def test_a_fault_of_the_kernels_that_audits_run_is_caught(runs: dict[str, Results], kernels: str) -> None:
    results = runs[f"kernels: {kernels}: deterministic"]
    alarm = the_alarm(results)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 4, (BAD,))
    assert (alarm.suspect_window, alarm.kernels) == ((3, 4), kernels)
    assert all(r["after"] == r["states"][3] for r in results), "that step was not applied"
    said = "those of every step" if kernels == "forced" else "of audited steps only"
    assert f"Audited kernels: {KERNELS[kernels]}" in results[0]["error"] and said in results[0]["error"]


def test_default_kernels_are_audited_as_they_are(runs: dict[str, Results]) -> None:
    for r in runs["kernels: default: clean"]:
        assert (r["error"], r["manifest"]["audits_passed"], r["manifest"]["notes"]) == ("", 3, [])
    alarm = the_alarm(runs["kernels: default: other"])
    assert (alarm.step, alarm.named_ranks, alarm.kernels) == (4, (BAD,), "default")
    assert same_end(runs["kernels: default: deterministic"], runs["kernels: default: clean"])


def test_forced_kernels_are_quiet_audited_and_bit_identical_to_a_loop_that_forces_them(
    runs: dict[str, Results],
) -> None:
    clean = runs["kernels: forced: clean"]
    for r in clean:
        m = r["manifest"]
        assert (r["error"], m["audits_passed"], m["audits_skipped"], m["notes"]) == ("", 3, 0, [])
        assert (m["schedule"]["kernels"], m["assurance"]["audits_forced"]) == ("forced", 3)
    assert same_end(clean, runs["kernels: forced: unguarded"])


def test_forced_kernels_come_back_bit_by_bit_and_another_choice_is_said(runs: dict[str, Results]) -> None:
    resumed, other = runs["kernels: forced: resumed"], runs["kernels: forced: resumed switched"]
    assert same_end(resumed, runs["kernels: forced: clean"])
    assert [r["manifest"]["notes"] for r in resumed] == [[]] * RANKS
    assert not same_end(other, resumed)
    for r in other:
        (note,) = r["manifest"]["notes"]
        assert note.startswith(
            "steps up to 4 ran with kernels='forced', the ones from there on with 'switched'"
        )
        assert (r["manifest"]["assurance"]["audits"], r["manifest"]["assurance"]["audits_forced"]) == (3, 2)


def test_the_update_and_evaluations_between_steps_keep_the_users_kernels(runs: dict[str, Results]) -> None:
    for r in runs["kernels: forced: evaluation"]:
        seen = r["notes"]["deterministic"]
        assert r["error"] == "" and all(seen["forward"]) and seen["forward"]
        assert not any(seen["update"]) and not any(seen["evaluation"])
        assert (len(seen["update"]), len(seen["evaluation"])) == (7, 7)


def test_each_start_says_its_kernels(ended: tuple[Any, list[dict[str, Any]]]) -> None:
    said = {e["kernels"]: e for e in ended[1] if e["sdc"] == "kernels"}
    assert {name: e["audited"] for name, e in said.items()} == KERNELS
    assert said["forced"]["attention"] == ["flash", "memory-efficient", "math"]
    assert "attention" not in said["switched"], "the user's own"


def test_an_operator_without_a_deterministic_kernel_that_comes_late_ends_the_run_by_name(
    runs: dict[str, Results],
) -> None:
    for r in runs["kernels: forced: late"]:
        assert "cannot train with kernels='forced': put_ does not have a deterministic" in r["error"]
        assert "Schedule(kernels='default')" in r["error"] and r["ended at"] == 5
        assert len(r["states"]) == 4, "no update follows"
    assert [r["error"] for r in runs["kernels: switched: late"]] == [""] * RANKS


def test_nothing_stays_switched_after_an_end_or_an_alarm(runs: dict[str, Results]) -> None:
    assert the_alarm(runs["kernels: forced: deferred"]).step == 5
    assert [r["ended at"] for r in runs["kernels: forced: deferred"]] == [6] * RANKS, (
        "in the middle of a step"
    )
    trained = {n: results for n, results in runs.items() if "left on" in results[0]}
    left_on = [n for n, results in trained.items() if any(r["left on"] for r in results)]
    assert len(trained) > 10 and left_on == ["kernels: forced: late"], "an error is left to close()"


# -- audits by outcome ---------------------------------------------------------------------------------


def rates(lines: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    """All that the log says of the rate, in order: each run begins at step 1."""
    return [(e["step"], e["every"], e["reason"]) for e in lines if e["sdc"] == "audit_rate"]


def test_a_budget_is_kept_by_the_slowest_ranks_cost_on_all_ranks_alike(
    ended: tuple[dict[str, Results], list[dict[str, Any]]],
) -> None:
    results = ended[0]["pace: budget"]
    assert [r["error"] for r in results] == [""] * RANKS
    assert [r["audited"] for r in results] == [[3, 6, 9, 12, 23, 34]] * RANKS
    for r in results:
        assert list(r["rates"].values()) == [3] * 12 + [11] * (STEPS - 12)
    assert rates(ended[1])[:2] == [
        (1, 3, "watchful for 12 steps after a start"),
        (13, 11, "overhead_budget=0.5, an audit costs 5.40 steps"),
    ]


def test_an_audited_step_that_the_policy_dropped_is_audited_when_it_comes_again(
    ended: tuple[dict[str, Results], list[dict[str, Any]]],
) -> None:
    results = ended[0]["pace: dropped"]
    assert [(r["error"], r["manifest"]["steps_skipped"]) for r in results] == [("", 1)] * RANKS
    assert [r["audited"] for r in results] == [list(range(2, 26, 2))] * RANKS  # 20 was dropped once


@pytest.mark.parametrize(
    ("name", "of", "first"),
    [
        ("spike of the loss", "loss", SPIKE_AT + 1),
        ("spike of the norm", "gradient norm", SPIKE_AT + 2),  # its numbers are read a step late
    ],
)
def test_one_ranks_spike_brings_audits_forward_on_all_ranks_and_accuses_nobody(
    ended: tuple[dict[str, Results], list[dict[str, Any]]], name: str, of: str, first: int
) -> None:
    results = ended[0][f"pace: {name}"]
    assert [(r["error"], r["alarm"]) for r in results] == [("", None)] * RANKS
    assert [r["audited"] for r in results] == [[3, 6, 9, 12, first, first + 3]] * RANKS
    reason = f"watchful for 12 steps after a spike of the {of} at step {SPIKE_AT}"
    assert (first, 3, reason) in rates(ended[1])
    assert all(r["rates"][str(first)] == 3 and r["rates"][str(SPIKE_AT)] == 30 for r in results)
