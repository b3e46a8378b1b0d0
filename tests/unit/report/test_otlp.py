"""Metrics for an OpenTelemetry collector, over a real socket, in health and in every kind of trouble."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, eventually
from training_agent.contract import Alarm, Metric, decode
from training_agent.errors import ConfigurationError
from training_agent.report import StepChecks, job_reporter, otlp
from training_agent.report import job as job_module
from training_agent.settings import AgentSettings
from training_agent.spool import Spool

from .builders import FakeAws, an_alarm, settings_of
from .collector import Collector

pytestmark = pytest.mark.enable_socket
PASSED = StepChecks(True, True, 10, 10, seconds=0.5)
BETWEEN = StepChecks(False, False, 10, 10, audits_skipped=2, audit_every=500, layer_audited=True,
                     layer_audits_skipped=3)  # fmt: skip


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as receiver:
        yield receiver


def test_healthy_training_tells_the_collector_zeros_and_signs_of_life_without_any_bus(
    tmp_path: Path, collector: Collector
) -> None:
    settings = settings_of(tmp_path, event_bus=None, otlp_endpoint=collector.url + "/", pod_name="pod-0")
    reporter = job_reporter(settings, 0)
    reporter.progress(10, PASSED)
    reporter.progress(17, BETWEEN)
    reporter.close()
    assert set(collector.paths) == {"/v1/metrics"}
    for name in ("sdc_nonfinite_grad", "sdc_replay_mismatch", "sdc_divergent_tensors", "sdc_agent_dropped"):
        assert collector.values(name)[-1] == 0
    assert collector.values("sdc_audits_done")[-1] == 1
    assert collector.values("sdc_audits_skipped")[-1] == 2
    assert collector.values("sdc_layer_audits_done")[-1] == 1
    assert collector.values("sdc_layer_audits_skipped")[-1] == 3
    assert collector.values("sdc_last_pass_age_steps")[-1] == 7
    assert collector.values("sdc_heartbeat")[-1] == 1
    assert collector.values("sdc_audit_every_steps")[-1] == 500
    assert max(collector.values("sdc_overhead_percent")) > 0
    (resource,) = collector.bodies[-1]["resourceMetrics"]
    attributes = {a["key"]: a["value"]["stringValue"] for a in resource["resource"]["attributes"]}
    assert attributes["service.name"] == "training-sdc-agent" and attributes["k8s.pod.name"] == "pod-0"
    points = [(m.get("sum") or m["gauge"])["dataPoints"][0] for m in resource["scopeMetrics"][0]["metrics"]]
    labels = [{a["key"]: a["value"]["stringValue"] for a in p["attributes"]} for p in points]
    assert labels == [{"cluster": "demo", "sdc_job": "llama"}] * len(Metric)
    assert "rank" not in json.dumps(collector.bodies)


def test_counts_are_cumulative_so_that_a_lost_post_loses_nothing(
    tmp_path: Path, collector: Collector
) -> None:
    reporter = job_reporter(
        settings_of(tmp_path, event_bus=None, otlp_endpoint=collector.url), 0, metrics_every_s=0.05
    )
    collector.status = 503
    for step in range(1, 4):
        reporter.progress(step, PASSED)
    time.sleep(0.2)
    collector.status = 200
    eventually(lambda: bool(collector.bodies))
    assert collector.values("sdc_audits_done")[0] == 3
    reporter.close()


def test_an_alarm_reaches_the_collector_before_the_process_goes_on(
    tmp_path: Path, collector: Collector
) -> None:
    reporter = job_reporter(settings_of(tmp_path, event_bus=None, otlp_endpoint=collector.url), 0)
    reporter.alarm(an_alarm())
    assert collector.values("sdc_replay_mismatch")[-1] == 1
    reporter.close()


@pytest.mark.parametrize("trouble", ["hole", "refused", "500", "rejected", "no JSON"])
def test_a_collector_in_trouble_is_one_warning_and_costs_the_alarm_nothing(
    trouble: str, tmp_path: Path, collector: Collector, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(job_module, "FLUSH_S", 0.5)
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.2)
    if trouble == "hole":
        collector.open.clear()
    collector.status = 500 if trouble == "500" else 200
    collector.answer = {
        "rejected": b'{"partialSuccess": {"rejectedDataPoints": "3"}}', "no JSON": b"<ok>",
    }.get(trouble, b"{}")  # fmt: skip
    url = "http://127.0.0.1:9" if trouble == "refused" else collector.url
    aws = FakeAws()
    settings = settings_of(tmp_path, otlp_endpoint=url)
    reporter = job_reporter(settings, 0, client=aws.factory, metrics_every_s=0.05)
    for step in range(200):
        reporter.progress(step, BETWEEN)
    reporter.alarm(an_alarm())
    reporter.close()
    assert [decode(Alarm, e["Detail"]) for e in aws.events] == [an_alarm()]
    assert Spool(tmp_path / "spool").unsent() == ()
    thread = reporter._beside._thread
    assert thread is not None
    thread.join(PATIENCE_S)  # it warns of its last try before another test begins
    warnings = capsys.readouterr().out.count("the OpenTelemetry collector cannot be told")
    assert warnings == (0 if trouble == "no JSON" else 1)


def test_only_rank_0_tells_the_collector(tmp_path: Path, collector: Collector) -> None:
    reporter = job_reporter(settings_of(tmp_path, 3, event_bus=None, otlp_endpoint=collector.url), 3)
    reporter.progress(1, PASSED)
    reporter.alarm(an_alarm())
    reporter.close()
    assert collector.bodies == []


def test_what_is_sent_is_otlp_json() -> None:
    """64-bit integers are strings, enums are numbers, sums say since when: the OTLP specification's JSON."""
    body = json.loads(
        otlp.encode({"service.name": "x", "empty": ""}, {}, {Metric.AUDITS_DONE: 2}, {}, 10, 20)
    )
    (resource,) = body["resourceMetrics"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "x"}}]
    (metric,) = resource["scopeMetrics"][0]["metrics"]
    point = {"startTimeUnixNano": "10", "timeUnixNano": "20", "attributes": [], "asInt": "2"}
    assert metric["sum"] == {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": [point]}


def test_an_address_of_another_kind_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="SDC_OTLP_ENDPOINT='collector:4317'"):
        AgentSettings.from_env({"NODE_NAME": "n", "SDC_OTLP_ENDPOINT": "collector:4317"})
