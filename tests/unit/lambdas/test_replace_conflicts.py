"""Evidence that is written while `replace` reads: it begins again by itself, for nobody else retries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lambdas.domain.errors import ConflictError
from lambdas.domain.incident import Incident, State
from lambdas.steps.effects import CONFLICTS
from tests.events import builder
from training_agent.contract import delivery_key

from .drive import Driver

FIRST = builder.alarm(builder.culprit(3))
SUSPECT = builder.INSTANCES[1]


def at_its_first_write(driver: Driver, what: Callable[[], object], times: int = 1) -> None:
    """Somebody writes between what `replace` read and what it writes."""
    incidents = driver.world.incidents
    save, left = incidents.save, [times]

    def saved(incident: Incident) -> Incident:
        if left[0] and incident.state is State.REPLACING:
            left[0] -= 1
            what()
        return save(incident)

    driver.monkeypatch.setattr(incidents, "save", saved)


def restarted(driver: Driver) -> None:
    """The job's second attempt alarms alike: noted at the open incident."""
    driver.send(builder.event(replace(FIRST, job=replace(builder.JOB, attempt=2))))


def touched(driver: Driver, incident: Incident) -> None:
    """Anybody's write of the row."""
    row = driver.world.incidents.get(incident.id)
    driver.world.incidents.rows[incident.id] = replace(row, version=row.version + 1)


def test_a_restarts_alarm_in_the_same_moment_does_not_end_at_a_human(
    driver: Driver, approved: Incident
) -> None:
    at_its_first_write(driver, lambda: restarted(driver))
    assert driver.step("replace", approved)["outcome"] == "replaced"
    assert driver.world.cluster.calls == [("replace", SUSPECT)]
    assert driver.world.incidents.occurrences(approved.id) == ((delivery_key(FIRST), 2),)


def test_second_evidence_in_the_same_moment_is_decided_upon_first(driver: Driver, approved: Incident) -> None:
    """A joined incident changes the row's version and, here, the decision: contained and decided again."""
    others = tuple(builder.culprit(rank) for rank in (2, 3))
    second = builder.alarm(*others, step=40)

    def joins() -> None:
        (incident,) = driver.alarm(second)
        driver.play(incident, "locate")
        rows = driver.world.incidents.rows
        rows[approved.id] = replace(rows[approved.id], nodes_named=99)  # and more nodes than GPUs explain

    at_its_first_write(driver, joins)
    assert driver.step("replace", approved)["outcome"] == "reopened"
    assert driver.world.cluster.calls == []
    assert driver.world.controls.locks == {}, "others wait for a lock while a human is asked"


def test_conflicts_without_end_are_left_to_a_human_and_call_nothing(
    driver: Driver, approved: Incident
) -> None:
    at_its_first_write(driver, lambda: touched(driver, approved), times=CONFLICTS)
    with pytest.raises(ConflictError):
        driver.step("replace", approved)
    assert driver.world.cluster.calls == []


def test_a_conflict_after_the_call_never_calls_again(driver: Driver, approved: Incident) -> None:
    """The row of the call stands: whoever begins again looks."""
    conclude = driver.world.incidents.conclude

    def conflicts(incident_id: str, name: str, *more: object) -> None:
        driver.monkeypatch.setattr(driver.world.incidents, "conclude", conclude)
        raise ConflictError("somebody wrote in between")

    driver.monkeypatch.setattr(driver.world.incidents, "conclude", conflicts)
    answer = driver.step("replace", approved)
    assert answer["outcome"] == "replaced" and "ISSUED_UNKNOWN" in answer["story"]
    assert driver.world.cluster.calls == [("replace", SUSPECT)]
