"""A healthy run and check 1 on six real ranks of three fake nodes."""

from __future__ import annotations

import pytest

from tests.distributed.expect import VARIANTS, Scenario, alarm_in, assert_quiet, trained
from training_agent.contract import Check, FindingKind, Verdict

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
    figures = [r["manifest"]["assurance"] for r in clean]
    assert [(f["gpu_steps_audited"], f["weight_checks"], f["starts"]) for f in figures] == [(18, 4, 1)] * 6


def test_an_audit_compares_every_gradient_the_norms_statistics_the_output_and_the_loss(
    scenario: Scenario,
) -> None:
    manifest = scenario("clean")[0]["manifest"]
    assert manifest["tensors_compared"] == len(manifest["digests"]) + 2
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


@pytest.mark.parametrize("variant", VARIANTS[:2])
def test_nan_in_one_ranks_copy_of_the_reduction_names_it_before_anybody_else_has_it(
    scenario: Scenario, variant: str
) -> None:
    """It lies outside of the share that this rank reads: seen one step later, by what it computes then."""
    alarm = alarm_in(scenario(f"{variant}: nan in one copy of it"), applied=True)
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.WEIGHTS, 8, (2,))
    assert (finding.kind, finding.majority) == (FindingKind.WEIGHTS, True)
    assert alarm.nonfinite_ranks == (2,)


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
