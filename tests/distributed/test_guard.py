"""The whole of the agent on six real ranks of three fake nodes, fault by fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from training_agent.contract import (
    Alarm,
    Check,
    FindingKind,
    Independence,
    Pair,
    SecondConfirmation,
    Verdict,
    decode,
)

Scenario = Callable[[str], list[dict[str, Any]]]
VARIANTS = ("static graph", "bucket views", "fp16 hook")


def alarm_in(results: list[dict[str, Any]], *, applied: bool = False) -> Alarm:
    """The alarm, after checking what must hold for every alarm."""
    assert len({r["alarm"] for r in results}) == 1, "the alarm is not the same object on all ranks"
    for r in results:
        assert r["alarm"] is not None
        assert r["gradients_dropped"]
        assert r["latched"]
        assert not r["notes"]["deterministic left on"]
        assert applied or r["before"] == r["after"], "weights, moments or RNG moved"
    return decode(Alarm, results[0]["alarm"])


def assert_quiet(results: list[dict[str, Any]]) -> None:
    assert [r["message"] for r in results] == [""] * len(results)


def trained(results: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(r["weights"], r["moments"]) for r in results]


# -- nothing wrong -------------------------------------------------------------------------------------


def test_a_healthy_run_is_quiet_and_bit_identical_to_one_without_the_guard(scenario: Scenario) -> None:
    clean = scenario("clean")
    assert_quiet(clean)
    assert trained(clean) == trained(scenario("unguarded"))
    assert [r["manifest"]["audits_passed"] for r in clean] == [3] * 6
    assert [r["manifest"]["audits_skipped"] for r in clean] == [0] * 6
    assert [r["manifest"]["weight_checks_passed"] for r in clean] == [
        4
    ] * 6  # before the first step, and three


def test_an_audit_compares_every_gradient_the_output_and_the_loss(scenario: Scenario) -> None:
    manifest = scenario("clean")[0]["manifest"]
    parameters = [name for name in manifest["digests"] if "running" not in name and "tracked" not in name]
    assert manifest["tensors_compared"] == len(parameters) + 2
    assert manifest["loss_audited"]


def test_without_compute_loss_the_module_is_audited_and_the_manifest_says_so(scenario: Scenario) -> None:
    clean = scenario("clean without compute_loss")
    assert_quiet(clean)
    assert trained(clean) == trained(scenario("unguarded"))
    assert clean[0]["manifest"]["audits_passed"] == 3
    assert not clean[0]["manifest"]["loss_audited"]


def test_hooks_of_an_audit_are_gone_after_it(scenario: Scenario) -> None:
    parameters = len(
        [n for n in scenario("clean")[0]["manifest"]["digests"] if n.endswith(("weight", "bias"))]
    )
    assert [r["notes"]["leaf hooks left"] for r in scenario("clean")] == [parameters] * 6  # those of check 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_a1_ddp_options_and_a_users_comm_hook_work_unchanged(scenario: Scenario, variant: str) -> None:
    clean = scenario(f"{variant}: clean")
    assert_quiet(clean)
    assert trained(clean) == trained(scenario(f"{variant}: unguarded"))
    assert clean[0]["manifest"]["audits_passed"] == 1


@pytest.mark.parametrize("variant", ["", *(f"{v}: " for v in VARIANTS)])
def test_check_1_reads_the_reduced_gradients_before_clipping(scenario: Scenario, variant: str) -> None:
    assert "missed reduced gradients" not in scenario(f"{variant}clean")[0]["notes"]


def test_the_reporter_hears_of_registration_progress_and_alarm(scenario: Scenario) -> None:
    clean = [r["notes"]["reported"] for r in scenario("clean")]
    assert [len(r["registrations"]) for r in clean] == [1] * 6
    assert [r["registrations"][0] is None for r in clean] == [False, True] * 3
    node = clean[2]["registrations"][0]
    assert [p["rank"] for p in node["places"]] == [2, 3]
    assert (node["world_size"], node["nodes"], node["resumed_from_step"]) == (6, 3, None)
    assert clean[0]["steps"] == list(range(1, 32))
    assert clean[0]["audited"] == clean[0]["weight-checked"] == [10, 20, 30]
    faulty = scenario("forward-x1000")
    assert [r["notes"]["reported"]["alarms"] for r in faulty] == [[r["alarm"]] for r in faulty]
    resumed = scenario("resumed")[0]["notes"]["reported"]
    assert resumed["registrations"][0]["resumed_from_step"] == 20
    assert resumed["steps"] == list(range(21, 32))


# -- check 1 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step", "first"), [("nan-once", 25, 21), ("nan-once on an audit step", 20, 11)]
)
def test_nan_once_names_the_rank_as_transient(scenario: Scenario, name: str, step: int, first: int) -> None:
    alarm = alarm_in(scenario(name))
    assert (alarm.check, alarm.step, alarm.suspect_window) == (Check.NONFINITE, step, (first, step))
    assert alarm.nonfinite_ranks == (3,)
    (finding,) = alarm.findings
    assert (finding.kind, finding.rank, finding.verdict) == (FindingKind.PAIR, 3, Verdict.TRANSIENT)
    assert [p.target for p in alarm.pairs] == [3]
    assert scenario(name)[0]["step"] == step - 1


def test_nan_in_everything_a_gpu_computes_makes_it_the_culprit(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("nan in everything"))
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, finding.kind, finding.rank) == (
        Check.NONFINITE,
        23,
        FindingKind.CULPRIT,
        3,
    )
    assert finding.majority


def test_nan_in_the_data_names_nobody(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("nan in the data"))
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, alarm.nonfinite_ranks) == (Check.NONFINITE, 25, (3,))
    assert (finding.kind, finding.rank, finding.reproduced) == (FindingKind.NONFINITE, None, True)
    assert alarm.pairs == ()


@pytest.mark.parametrize("variant", VARIANTS[:2])
def test_nan_from_the_all_reduce_names_nobody_and_blames_one_step(scenario: Scenario, variant: str) -> None:
    alarm = alarm_in(scenario(f"{variant}: nan in the reduction"))
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, alarm.suspect_window) == (Check.NONFINITE, 7, (7, 7))
    assert alarm.reduced_nonfinite
    assert alarm.nonfinite_ranks == alarm.named_ranks == ()
    assert finding.kind is FindingKind.REDUCED


def test_a_gradient_of_1e25_alarms_although_the_user_clips_it(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("gradient of 1e25, clipped"))
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.NONFINITE, 15, (1,))


@pytest.mark.parametrize("variant", VARIANTS)
def test_nan_once_is_named_under_every_kind_of_ddp(scenario: Scenario, variant: str) -> None:
    alarm = alarm_in(scenario(f"{variant}: nan-once"))
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.NONFINITE, 5, (3,))


def test_nan_in_a_step_that_cannot_be_replayed_still_names_the_rank(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("nan in a step that cannot be replayed"))
    (finding,) = alarm.findings
    assert (alarm.step, alarm.pairs, alarm.nonfinite_ranks) == (5, (), (3,))
    assert (finding.kind, finding.rank, finding.reproduced) == (FindingKind.NONFINITE, 3, None)


# -- check 2 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rank"),
    [("forward-x1000", 3), ("forward-x1000 without compute_loss", 3), ("weight-grad-x1000", 5)],
)
def test_a_persistent_fault_from_23_on_is_named_at_30(scenario: Scenario, name: str, rank: int) -> None:
    results = scenario(name)
    alarm = alarm_in(results)
    assert (alarm.check, alarm.step, alarm.suspect_window) == (Check.REPLAY, 30, (21, 30))
    assert results[0]["step"] == 29
    (finding,) = alarm.findings
    assert (finding.kind, finding.rank, finding.majority) == (FindingKind.CULPRIT, rank, True)
    assert finding.place is not None
    assert finding.place.gpu_uuid == f"GPU-{rank // 2}-{rank % 2}"
    assert alarm.independence is Independence.NODE
    assert len(alarm.pairs) == 2
    assert all(rank in (p.replayer, p.target) for p in alarm.pairs)


def test_the_alarm_says_where_and_what_next(scenario: Scenario) -> None:
    message = scenario("forward-x1000")[0]["message"]
    for part in (
        "step 30",
        "not applied",
        "rank 3",
        "hyperpod-i-00000000000000001",
        "GPU-1-1",
        "21 to 30",
        "Next:",
    ):
        assert part in message


def test_a_fault_of_one_audit_step_is_transient(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("forward-x1000-once"))
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step) == (Check.REPLAY, 30)
    assert (finding.kind, finding.rank, finding.verdict) == (FindingKind.PAIR, 3, Verdict.TRANSIENT)


def test_a_fault_that_strikes_in_replays_only_names_the_replayer(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("replayer-x1000"))
    (finding,) = alarm.findings
    assert (finding.kind, finding.rank, finding.verdict) == (FindingKind.PAIR, 2, Verdict.REPLAYER)
    assert finding.second_confirmation is SecondConfirmation.REPEATS
    assert [p.replayer for p in alarm.pairs] == [2]


def test_two_bad_gpus_are_both_named_and_nobody_else(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("two-gpus"))
    assert {f.kind for f in alarm.findings} == {FindingKind.CULPRIT}
    first, second = alarm.named_ranks
    assert first == 1
    assert second // 2 != 0  # on another node
    assert all({p.replayer, p.target} & {first, second} for p in alarm.pairs)


def test_a_wrong_loss_is_caught_with_compute_loss_and_missed_without(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("wrong loss"), applied=True)  # the preflight: no update was tried
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 1, (4,))  # by the preflight
    assert alarm.loss_audited
    missed = scenario("wrong loss without compute_loss")
    assert_quiet(missed)
    assert not missed[0]["manifest"]["loss_audited"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_faults_are_named_under_every_kind_of_ddp(scenario: Scenario, variant: str) -> None:
    alarm = alarm_in(scenario(f"{variant}: forward-x1000"))
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 10, (3,))


def test_one_of_two_micro_batches_is_audited(scenario: Scenario) -> None:
    results = scenario("two forwards per update")
    assert_quiet(results)
    assert [(r["manifest"]["audits_passed"], r["manifest"]["audits_skipped"]) for r in results] == [
        (3, 0)
    ] * 6


def test_a_batch_changed_in_place_after_the_forward_is_skipped_not_accused(scenario: Scenario) -> None:
    results = scenario("batch changed in place")
    assert_quiet(results)
    assert results[0]["manifest"]["audits_skipped"] == 1


# -- check 3 -------------------------------------------------------------------------------------------


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
