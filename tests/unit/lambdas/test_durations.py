"""How long people wait for containment, for an answer and for a new node: three numbers of the dashboard."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from infra.dashboard import DURATIONS
from tests.events import builder

from .drive import Driver

SUSPECT = builder.INSTANCES[1]


def measured(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """Seconds by metric, of what was printed in CloudWatch's embedded format under {Cluster}."""
    lines: list[dict[str, Any]] = []
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("{") and "_aws" in line:
            lines.append(json.loads(line))
    found: dict[str, float] = {}
    for line in lines:
        (shape,) = line["_aws"]["CloudWatchMetrics"]
        for metric in shape["Metrics"]:
            if metric["Unit"] == "Seconds":
                assert shape["Namespace"] == "TrainingSDC" and shape["Dimensions"] == [["Cluster"]]
                assert line["Cluster"] == builder.CLUSTER
                found[metric["Name"]] = line[metric["Name"]]
    return found


def test_each_duration_is_measured_once_where_the_dashboard_looks(
    driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.world.clock.at += timedelta(seconds=20)
    link = driver.until_asked(incident)
    driver.world.clock.at += timedelta(seconds=300)
    driver.answer(link)
    driver.play(incident, "approval_answered", stop="verify")
    driver.world.clock.at += timedelta(seconds=1500)
    driver.world.cluster.swap(SUSPECT)
    driver.play(incident, "verify", stop="resume")
    seconds = measured(capsys)
    assert set(seconds) == set(DURATIONS)
    assert {name: round(value) for name, value in seconds.items()} == {
        "seconds_to_contain": 20,
        "seconds_to_approve": 300,
        "seconds_to_replace": 1500,
    }


def test_second_evidence_and_drills_are_not_measured(
    driver: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.play(incident, "locate", stop="decide")
    assert set(measured(capsys)) == {"seconds_to_contain"}
    rows = driver.world.incidents.rows
    rows[incident.id] = rows[incident.id].to(rows[incident.id].state)
    driver.step("contain", incident)
    assert measured(capsys) == {}
