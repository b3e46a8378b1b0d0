"""The dashboard asks for what somebody puts, and shows what is put: by name and by dimensions."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from infra.dashboard import DURATIONS
from lambdas import handlers, observability, wiring
from lambdas.domain.incident import State
from lambdas.settings import VARIABLES
from lambdas.steps.outcome import ENDED_IN
from lambdas.steps.reconcile import IN_STATE
from tests.events import builder
from tests.infra.reading import of_type
from tests.unit.lambdas.conftest import VALUES
from tests.unit.lambdas.drive import CONTEXT, Driver
from training_agent.contract import Metric
from training_agent.report.metrics import MetricState
from training_agent.report.types import StepChecks

Resources = dict[str, Any]
Series = set[tuple[str, frozenset[str]]]  # metric, names of its dimensions
CLUSTER = frozenset({"Cluster"})


@pytest.fixture(scope="module")
def body(resources: Resources) -> dict[str, Any]:
    """The dashboard, each reference replaced by a word."""
    (board,) = of_type(resources, "AWS::CloudWatch::Dashboard").values()
    parts = board["DashboardBody"]["Fn::Join"][1]
    parsed: dict[str, Any] = json.loads("".join(p if isinstance(p, str) else "x" for p in parts))
    return parsed


def shown(body: dict[str, Any]) -> Series:
    """Series of our namespace that the dashboard asks for."""
    found: Series = set()
    for widget in body["widgets"]:
        for metric in widget["properties"].get("metrics", []):
            if metric[0] == "TrainingSDC":
                names = metric[2 : len(metric) - isinstance(metric[-1], dict) : 2]
                found.add((metric[1], frozenset(names)))
        for search in re.findall(r"SEARCH\('(.*?)\"', '", json.dumps(widget).replace('\\"', '"')):
            schema, name = re.search(r"\{(.*?)\} MetricName=\"(\w+)\"", search).groups()  # type: ignore[union-attr]
            namespace, *dimensions = schema.split(",")
            assert namespace == "TrainingSDC"
            found.add((name, frozenset(dimensions)))
    return found


def watched(resources: Resources) -> Series:
    """Series that an alarm watches."""
    return {
        (a["MetricName"], frozenset(d["Name"] for d in a["Dimensions"]))
        for a in of_type(resources, "AWS::CloudWatch::Alarm").values()
        if a["Namespace"] == "TrainingSDC"
    }


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Series:
    """What the code puts: the agent in a minute, the handlers in an incident and in a look."""
    found: Series = set()
    state = MetricState("demo", "llama")
    for step, audited in ((1, False), (2, False), (3, True)):
        state.progress(
            step, StepChecks(audited, False, None, None, audit_every=10, layer_audited=not audited)
        )
    state.alarm(builder.alarm(builder.culprit(3)))
    for datum in state.take(0):
        found.add((datum["MetricName"], frozenset(d["Name"] for d in datum["Dimensions"])))

    for name in {n for names in VARIABLES.values() for n in names}:
        monkeypatch.setenv(name, VALUES.get(name, name.lower()))
    # powertools has read its variables at import
    monkeypatch.setattr(observability.metrics.provider, "namespace", "TrainingSDC")
    monkeypatch.setattr(observability.metrics.provider, "service", "ingest")
    driver = Driver(monkeypatch)
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    handlers.reconcile({}, CONTEXT)
    metric = {"metricStat": {"metric": {"name": "sdc_divergent_tensors"}}}
    detail = {"state": {"value": "ALARM"}, "configuration": {"metrics": [metric]}}
    lost = {"source": "aws.cloudwatch", "detail": detail}
    handlers.reconcile({"Records": [{"messageId": "m", "body": json.dumps(lost)}]}, CONTEXT)
    link = driver.until_asked(incident)
    driver.answer(link)
    driver.play(incident, "approval_answered", stop="verify")
    driver.world.cluster.swap(builder.INSTANCES[1])
    driver.play(incident, "verify", stop="resume")
    driver.job_returns(instance=next(reversed(driver.world.cluster.members)))
    driver.play(incident, "resume")
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("{") and '"_aws"' in line:
            for shape in json.loads(line)["_aws"]["CloudWatchMetrics"]:
                sets = [frozenset(names) for names in shape["Dimensions"]]
                found |= {(m["Name"], s) for m in shape["Metrics"] for s in sets}
    found |= {(name, CLUSTER) for name in driver.world.numbers.put_so_far}
    wiring.needs.cache_clear()
    return found


def by_state(series: Series) -> Series:
    """The two families of which one incident puts a few members only."""
    return {s for s in series if s[0].startswith((IN_STATE, ENDED_IN))}


def test_the_dashboard_asks_for_nothing_that_nobody_puts(body: dict[str, Any], put: Series) -> None:
    asked = shown(body)
    assert asked - by_state(asked) <= put
    assert by_state(put) <= asked


def test_alarms_watch_nothing_that_nobody_puts(resources: Resources, put: Series) -> None:
    assert watched(resources) <= put


def test_what_is_put_is_shown_or_watched(body: dict[str, Any], resources: Resources, put: Series) -> None:
    """The agent's metrics by cluster alone are for alarms; its others are shown by job."""
    agents = {(name, dimensions) for name, dimensions in put if name.startswith("sdc_")}
    shown_by_job = {n for n, d in shown(body) if d == {"Cluster", "Job"}}
    assert {name for name, _ in agents} == {m.value for m in Metric} == shown_by_job
    assert put - agents <= shown(body) | watched(resources)


def test_incidents_are_shown_in_every_state_open_or_ended(body: dict[str, Any]) -> None:
    states = {(IN_STATE if not s.terminal else ENDED_IN) + s.value.lower() for s in State}
    assert {name for name, _ in by_state(shown(body))} == states
    assert {(name, CLUSTER) for name in DURATIONS} <= shown(body)


def test_the_dashboard_shows_every_alarm(body: dict[str, Any], resources: Resources) -> None:
    (status,) = [w for w in body["widgets"] if w["type"] == "alarm"]
    assert len(status["properties"]["alarms"]) == len(of_type(resources, "AWS::CloudWatch::Alarm"))
