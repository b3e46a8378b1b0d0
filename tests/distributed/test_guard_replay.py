"""Check 2 on six real ranks of three fake nodes, fault by fault."""

from __future__ import annotations

import pytest

from tests.distributed.expect import VARIANTS, Scenario, alarm_in, assert_quiet
from training_agent.contract import Check, FindingKind, Independence, SecondConfirmation, Verdict


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


def test_an_audit_that_digested_less_than_was_computed_is_skipped_and_never_passed(
    scenario: Scenario,
) -> None:
    results = scenario("gradients that nobody digested")
    assert_quiet(results)
    for manifest in (r["manifest"] for r in results):
        assert (manifest["audits_passed"], manifest["audits_skipped"]) == (0, 1)
        assert manifest["last_audit_pass"] is None
        assert manifest["passed_at_this_step"] == ["weights", "optimizer state"]


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
