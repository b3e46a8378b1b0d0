"""The cost table: fresh, and it moves with its inputs."""

from __future__ import annotations

from typing import Any

from infra.alarms import OF_THE_RECONCILER
from infra.cost import OPERATE, Prices, Use, at_rest, of_an_incident, rendered
from tests.infra.reading import of_type
from training_agent.contract import Metric


def test_the_table_of_the_runbook_is_fresh() -> None:
    assert OPERATE.read_text() == rendered(OPERATE.read_text()), "run: python -m infra.cost"


def test_the_stack_s_own_numbers_are_those_of_the_stack(resources: dict[str, Any]) -> None:
    assert Use().alarms == len(of_type(resources, "AWS::CloudWatch::Alarm"))
    assert Use().metrics_of_a_job == 2 * len(Metric)
    own = {name for watch in OF_THE_RECONCILER if (name := watch.metric)}
    assert Use().metrics_of_the_pipeline >= len(own - {"alarms_without_incident"})


def test_more_jobs_cost_more_metrics() -> None:
    few, many = (sum(at_rest(Use(jobs=jobs), Prices()).values()) for jobs in (1, 11))
    calls = 30 * 24 * 60 * (1 + 1 / 5) * 0.01 / 1000  # a job's own a minute, the reconciler's every five
    assert round(many - few, 2) == round(10 * (26 * 0.30 + calls), 2)


def test_an_incident_costs_cents() -> None:
    assert 0.001 < sum(of_an_incident(Use(), Prices()).values()) < 0.1
