"""Lazy naming on six real ranks: what it still names, and what it leaves to full naming."""

from __future__ import annotations

from tests.distributed.expect import Scenario, alarm_in, assert_quiet
from training_agent.contract import Check, FindingKind, Verdict


def test_audits_count_every_gradient_although_check_1_reads_the_small_ones_only(scenario: Scenario) -> None:
    clean = scenario("lazy naming: clean")
    assert_quiet(clean)
    assert clean[0]["manifest"]["audits_passed"] == 1
    assert clean[0]["manifest"]["audits_skipped"] == 0
    assert clean[0]["manifest"]["tensors_compared"] == scenario("clean")[0]["manifest"]["tensors_compared"]


def test_a_nan_from_the_forward_is_named(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("lazy naming: nan-once"))
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, alarm.nonfinite_ranks) == (Check.NONFINITE, 5, (3,))
    assert (finding.kind, finding.rank, finding.verdict) == (FindingKind.PAIR, 3, Verdict.TRANSIENT)
    assert [p.target for p in alarm.pairs] == [3]


def test_replays_compare_the_gradients_that_were_read_and_accuse_no_healthy_rank(scenario: Scenario) -> None:
    alarm = alarm_in(scenario("lazy naming: nan in the data"))
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, alarm.nonfinite_ranks) == (Check.NONFINITE, 5, (3,))
    assert (finding.kind, finding.rank, finding.reproduced) == (FindingKind.NONFINITE, None, True)
    assert alarm.pairs == ()


def test_a_nan_in_one_weights_gradient_stops_the_step_and_names_nobody(scenario: Scenario) -> None:
    results = scenario("lazy naming: nan in one weight's gradient")
    alarm = alarm_in(results)
    (finding,) = alarm.findings
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.NONFINITE, 5, ())
    assert alarm.reduced_nonfinite
    assert finding.kind is FindingKind.REDUCED
    assert "naming='full'" in finding.evidence
    assert results[0]["step"] == 4
