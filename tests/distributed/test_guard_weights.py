"""Check 3, optimizer state and checkpoints on six real ranks of three fake nodes."""

from __future__ import annotations

import json

import pytest

from tests.distributed.expect import Scenario, alarm_in, assert_quiet, trained
from training_agent.contract import Check, FindingKind, Pair


def test_weight_flip_is_named_by_the_next_weight_check(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("weight-flip"), applied=True)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 30, (0,))
    assert alarm.suspect_window == (21, 30)


def test_a_flipped_weight_is_named_by_the_check_of_the_checkpoint_and_nothing_is_saved(
    scenario: Scenario,
) -> None:
    results = scenario("weight-flip before a checkpoint")
    alarm = alarm_in(results, applied=True)
    assert (alarm.check, alarm.step, alarm.suspect_window) == (Check.WEIGHTS, 25, (21, 25))
    assert alarm.divergent_tensors == ("blocks.0.up.weight",)
    (finding,) = alarm.findings
    assert (finding.kind, finding.rank, finding.majority) == (FindingKind.WEIGHTS, 0, True)
    assert results[0]["notes"]["checkpoints"] == [5, 10, 15, 20]
    assert alarm.resume_from is not None
    assert alarm.resume_from.step == 20


def test_a_moment_flipped_before_a_save_is_named_and_nothing_is_saved(scenario: Scenario) -> None:
    results = scenario("moment flipped before a checkpoint")
    alarm = alarm_in(results, applied=True)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 15, (4,))
    assert alarm.divergent_tensors == ("optimizer state exp_avg of blocks.1.down.weight",)
    assert results[0]["notes"]["checkpoints"] == [5, 10]
    assert [r["notes"]["strikes"] for r in results] == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("name", ["moment flipped, state not compared", "moment flipped between checkpoints"])
def test_a_moment_is_compared_only_where_a_save_may_follow_and_unless_it_is_switched_off(
    scenario: Scenario, name: str
) -> None:
    results = scenario(name)
    assert_quiet(results)
    assert sum(r["notes"]["strikes"] for r in results) == 1
    assert all("optimizer state" not in r["manifest"]["passed_at_this_step"] for r in results)


def test_the_manifest_says_what_passed_at_its_own_step(scenario: Scenario) -> None:
    checked = scenario("clean")[0]["manifest"]
    parameters = [n for n in checked["digests"] if n.endswith(("weight", "bias"))]
    assert (checked["step"], checked["passed_at_this_step"]) == (31, [])
    assert checked["last_optimizer_state_pass"] == 30
    assert checked["state_tensors_compared"] == 3 * len(parameters)  # two moments and a counter


def test_a_save_that_is_not_forced_is_let_through_and_says_that_nothing_was_compared(
    scenario: Scenario,
) -> None:
    results = scenario("save that is not forced")
    assert_quiet(results)
    assert results[0]["notes"]["checkpoints"] == [7]
    manifest = results[0]["manifest"]
    assert (manifest["step"], manifest["passed_at_this_step"]) == (7, [])
    assert manifest["last_weight_check_pass"] == 0  # before the first step


def test_diverged_weights_seen_by_an_audit_are_called_weights_not_compute(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("weight-flip seen by an audit"))
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 30, (0,))
    assert alarm.suspect_window == (1, 30)  # the weights last passed before step 1
    assert alarm.contests == ()
    assert Pair(replayer=0, target=alarm.pairs[0].target) in alarm.pairs or alarm.pairs[0].target == 0


def test_nan_in_one_replicas_stored_weight_is_named_at_the_next_step(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("nan in a stored weight"))
    assert (alarm.step, alarm.named_ranks, alarm.nonfinite_ranks) == (22, (2,), (2,))
    assert alarm.check is Check.WEIGHTS


# -- checkpoints ---------------------------------------------------------------------------------------


def test_a_run_resumed_from_a_checkpoint_ends_bit_identical(scenario: Scenario) -> None:
    resumed = scenario("resumed")
    assert_quiet(resumed)
    assert [[r["weights"], r["moments"]] for r in resumed] == [r["notes"]["whole"] for r in resumed]
    assert trained(resumed) == trained(scenario("clean"))


def test_checkpoints_inside_the_window_are_moved_aside_and_the_one_before_it_is_named(
    scenario: Scenario,
) -> None:
    results = scenario("x1000 between checkpoints")
    alarm = alarm_in(results)
    assert (alarm.step, alarm.suspect_window, alarm.named_ranks) == (30, (21, 30), (3,))
    assert alarm.resume_from is not None
    assert alarm.resume_from.step == 20
    assert 25 not in results[0]["notes"]["checkpoints"]  # saved after the fault had begun
    assert results[0]["notes"]["checkpoints"] == [5, 10, 15, 20]


def test_a_damaged_checkpoint_is_refused_although_all_replicas_agree(scenario: Scenario) -> None:
    for r in scenario("damaged file"):
        assert r["alarm"] is None
        assert "checkpoint of step 20 is damaged: head.weight" in r["message"]
        assert r["step"] == 0


def test_a_weight_damaged_on_one_rank_after_loading_names_it(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("damaged on one rank"), applied=True)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 20, (1,))


def test_saving_a_step_whose_weights_were_not_compared_is_refused(scenario: Scenario) -> None:
    assert "weights of step 7 were not compared" in scenario("save of an unchecked step")[0]["notes"]["error"]


def test_the_manifest_is_json(scenario: Scenario) -> None:
    assert json.dumps(scenario("clean")[0]["manifest"])
