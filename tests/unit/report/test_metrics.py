"""What a job's reporter tells CloudWatch: zeros while healthy, real counts on an alarm, signs of life."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from training_agent.contract import Alarm, Check
from training_agent.report import StepChecks, job_reporter, metrics
from training_agent.report.metrics import MetricState

from .builders import FakeAws, an_alarm, settings_of

PASSED = StepChecks(audited=True, weight_checked=True, last_audit_pass=10, last_weight_check_pass=10)
BETWEEN = StepChecks(audited=False, weight_checked=False, last_audit_pass=10, last_weight_check_pass=10)


def metric(call: dict[str, Any], name: str) -> list[float]:
    return [d["Value"] for d in call["MetricData"] if d["MetricName"] == name]


def test_healthy_training_publishes_zeros_and_signs_of_life(tmp_path: Path) -> None:
    aws = FakeAws()
    reporter = job_reporter(settings_of(tmp_path), 0, client=aws.factory)
    reporter.progress(10, PASSED)
    reporter.progress(17, BETWEEN)
    reporter.close()
    total = [sum(metric(c, "sdc_audits_done")) for c in aws.metrics]
    assert sum(total) == 2.0  # one audit, once by cluster and once by cluster and job
    last = aws.metrics[-1]
    assert last["Namespace"] == "TrainingSDC"
    for name in ("sdc_nonfinite_grad", "sdc_replay_mismatch", "sdc_divergent_tensors"):
        assert metric(last, name) == [0.0, 0.0]
    assert metric(last, "sdc_heartbeat") == [1.0, 1.0]
    assert metric(last, "sdc_last_pass_age_steps") == [7.0, 7.0]
    assert [d["Dimensions"] for d in last["MetricData"][:2]] == [
        [{"Name": "Cluster", "Value": "demo"}],
        [{"Name": "Cluster", "Value": "demo"}, {"Name": "Job", "Value": "llama"}],
    ]


def test_what_was_given_up_is_counted_in_a_metric(tmp_path: Path) -> None:
    aws = FakeAws()
    aws.refuse = lambda call, index: True
    reporter = job_reporter(settings_of(tmp_path), 0, client=aws.factory)
    reporter.alarm(an_alarm())
    reporter.progress(31, BETWEEN)
    reporter.close()
    assert metric(aws.metrics[-1], "sdc_agent_dropped") == [1.0, 1.0]


def test_an_audit_and_an_alarm_are_counted_in_one_publication_only() -> None:
    state = MetricState("demo", "llama")
    state.progress(10, PASSED)
    state.alarm(an_alarm())
    first, second = ({"MetricData": state.take(0)} for _ in range(2))
    assert metric(first, "sdc_audits_done")[0] == 1.0
    assert metric(first, "sdc_replay_mismatch")[0] == 1.0
    assert metric(second, "sdc_audits_done")[0] == 0.0
    assert metric(second, "sdc_replay_mismatch")[0] == 0.0


def test_skipped_audits_are_counted_once() -> None:
    state = MetricState("demo", "llama")
    seen = []
    for step, skipped in ((10, 1), (20, 3), (21, 3)):
        state.progress(step, StepChecks(False, False, None, None, audits_skipped=skipped))
        seen.append(metric({"MetricData": state.take(0)}, "sdc_audits_skipped")[0])
    assert seen == [1.0, 2.0, 0.0]


def test_layer_audits_are_counted_where_they_are_on() -> None:
    state = MetricState("demo", "llama")
    state.progress(10, StepChecks(True, False, 10, None))
    assert not [m for m in state.take(0) if "layer" in m["MetricName"]]
    seen = []
    for step, skipped in ((11, 1), (12, 1)):
        checks = StepChecks(False, False, 10, None, layer_audited=True, layer_audits_skipped=skipped)
        state.progress(step, checks)
        values = {"MetricData": state.take(0)}
        seen.append([metric(values, f"sdc_layer_audits_{what}")[0] for what in ("done", "skipped")])
    assert seen == [[1.0, 1.0], [1.0, 0.0]]


def test_overhead_is_the_share_of_the_wall_time_inside_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
    state = MetricState("demo", "llama")
    state.progress(1, replace(BETWEEN, seconds=0.5))
    state.progress(2, replace(BETWEEN, seconds=0.25))
    now[0] += 10.0
    seen = {"MetricData": state.take(0)}
    assert metric(seen, "sdc_overhead_percent") == [7.5, 7.5]
    assert {d["Unit"] for d in seen["MetricData"] if d["Value"] == 7.5} == {"Percent"}
    now[0] += 10.0
    assert metric({"MetricData": state.take(0)}, "sdc_overhead_percent")[0] == 0.0


def test_a_job_that_computes_nothing_sends_no_heartbeat(tmp_path: Path) -> None:
    aws = FakeAws()
    reporter = job_reporter(settings_of(tmp_path), 0, client=aws.factory)
    reporter.started(None)
    reporter.close()
    assert aws.metrics == []


@pytest.mark.parametrize(
    ("alarm", "expected"),
    [
        (an_alarm(check=Check.NONFINITE, nonfinite_ranks=(1, 4)), [2.0, 0.0, 0.0]),
        (an_alarm(check=Check.NONFINITE, reduced_nonfinite=True), [1.0, 0.0, 0.0]),
        (an_alarm(check=Check.REPLAY), [0.0, 1.0, 0.0]),
        (an_alarm(check=Check.WEIGHTS, divergent_count=7), [0.0, 0.0, 7.0]),
    ],
)
def test_an_alarm_publishes_its_real_counts(tmp_path: Path, alarm: Alarm, expected: list[float]) -> None:
    aws = FakeAws()
    job_reporter(settings_of(tmp_path), 0, client=aws.factory).alarm(alarm)
    names = ("sdc_nonfinite_grad", "sdc_replay_mismatch", "sdc_divergent_tensors")
    assert [metric(aws.metrics[-1], n)[0] for n in names] == expected
