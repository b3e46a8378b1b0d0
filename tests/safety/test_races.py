"""Races: whoever comes first wins, the others see that they lost, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from lambdas import handlers
from lambdas.domain.approval import Answer
from tests.events import builder
from tests.unit.lambdas.drive import CONTEXT

from .asl import Definition
from .machine import Killed
from .plant import Plant
from .threads import THREADS, interference, together, unshared
from .wires import Fault, Plan, Site

ROUNDS, SOAK_ROUNDS = 20, 200
ENDS = {Answer.APPROVE: "REPLACED", Answer.KEEP: "REJECTED_KEPT", Answer.RELEASE: "REJECTED_RELEASED"}
Race = Callable[[Plant, int], None]


def asked(plant: Plant, job: int = 0) -> str:
    """An incident that waits for a person."""
    run = plant.jobs[job]
    (incident,) = plant.alarm(plant.alarm_of(builder.culprit(3, run.seats), job=run))
    plant.pump()
    assert incident.id in plant.waiting()
    return incident.id


def call(plant: Plant, function: str, incident_id: str, **payload: object) -> Any:
    plant.wires.enter(function, incident_id)
    return getattr(handlers, function)({"incident_id": incident_id, **payload}, CONTEXT)


def settle(plant: Plant, days: float = 2) -> None:
    for job in plant.jobs:
        plant.later(timedelta(hours=1), partial(plant.job_returns, job))
    plant.advance(timedelta(days=days))
    assert plant.violations() == [] and not plant.dead_letters


def eight_deliveries_open_one_incident(plant: Plant, seed: int) -> None:
    body = builder.event(plant.alarm_of(builder.culprit(3, plant.jobs[0].seats)))
    with interference(plant, seed):
        together([partial(plant.deliver, body)] * THREADS)
    plant.pump()
    assert len(plant.world.incidents.rows) == len(plant.machine.executions) == 1
    assert len(plant.waiting()) == 1 and len(plant.world.mail.sent) == 1
    settle(plant)


def eight_alarms_on_one_instance_leave_one_open(plant: Plant, seed: int) -> None:
    seats = plant.jobs[0].seats
    alarms = [plant.alarm_of(builder.culprit(3, seats), step=100 + n) for n in range(THREADS)]
    ids = [incident.id for alarm in alarms for incident in plant.alarm(alarm)]
    with interference(plant, seed):
        together([partial(call, plant, "locate", i) for i in ids])
    plant.pump()
    assert len(plant.open_incidents()) == 1
    assert sum(i.state.value == "JOINED" for i in plant.world.incidents.rows.values()) == THREADS - 1
    assert len(plant.world.incidents.evidence) == THREADS - 1, "evidence was lost"
    settle(plant)


def eight_calls_of_replace_call_hyperpod_once(plant: Plant, seed: int) -> None:
    incident_id = asked(plant)
    assert plant.human(incident_id, "approve") == 200
    with interference(plant, seed):
        together([partial(call, plant, "replace", incident_id)] * THREADS)
    assert plant.watch.calls["cluster.replace"] == 1
    settle(plant)
    assert not plant.open_incidents()


def eight_calls_after_one_that_died_call_hyperpod_once(plant: Plant, seed: int) -> None:
    """The row says REPLACING already, so that only the INTENT stands between two calls."""
    incident_id = asked(plant)
    assert plant.human(incident_id, "approve") == 200
    plant.wires.plans = [Plan(Site("replace", "controls.read", "permit"), Fault.CRASH_AFTER)]
    with pytest.raises(Killed):
        call(plant, "replace", incident_id)
    with interference(plant, seed):
        together([partial(call, plant, "replace", incident_id)] * THREADS)
    assert plant.watch.calls["cluster.replace"] == 1
    settle(plant)
    assert not plant.open_incidents()


def approve_reject_and_expiry_have_one_outcome(plant: Plant, seed: int) -> None:
    incident_id = asked(plant)
    posts = [partial(plant.human, incident_id, d) for d in ("approve", "keep", "release")]
    expiry = partial(call, plant, "request_approval", incident_id, timed_out=True)
    plant.watch.consent = TheRow(plant)
    with interference(plant, seed):
        answers = together([*posts, expiry, *posts])
    assert answers.count(200) <= 1, answers
    settle(plant)
    row = next(r for r in plant.world.approvals.rows.values() if r.incident_id == incident_id)
    expected = ENDS[row.answer] if row.answer is not None else "EXPIRED"
    assert plant.incident(incident_id).state.value == expected
    assert len(plant.watch.issued) == (row.answer is Answer.APPROVE)


class TheRow(dict[str, Answer]):
    """Several people answer at once: the consent that counts is the one that was recorded."""

    def __init__(self, plant: Plant) -> None:
        super().__init__()
        self._plant = plant

    def get(self, key: str, default: object = None) -> Answer | None:  # type: ignore[override]
        return self._plant.world.approvals.rows[key].answer


def two_incidents_share_the_last_slot(plant: Plant, seed: int) -> None:
    plant.setting("REPLACEMENTS_PER_DAY", "1")
    plant.watch.limits.per_day = 1
    both = [asked(plant, 0), asked(plant, 1)]
    for incident_id in both:
        assert plant.human(incident_id, "approve") == 200
    with interference(plant, seed):
        together([partial(call, plant, "replace", i) for i in both * 4])
    settle(plant, days=0.9)
    assert len(plant.watch.issued) == 1


RACES = {
    race.__name__: race
    for race in (
        eight_deliveries_open_one_incident,
        eight_alarms_on_one_instance_leave_one_open,
        eight_calls_of_replace_call_hyperpod_once,
        eight_calls_after_one_that_died_call_hyperpod_once,
        approve_reject_and_expiry_have_one_outcome,
        two_incidents_share_the_last_slot,
    )
}


def run(definition: Definition, race: Race, count: int) -> None:
    for seed in range(count):
        with pytest.MonkeyPatch.context() as patched:
            plant = Plant(patched, definition, jobs=2)
            unshared(patched)
            race(plant, seed)


@pytest.mark.parametrize("race", RACES)
def test_races(definition: Definition, race: str) -> None:
    run(definition, RACES[race], ROUNDS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("race", RACES)
def test_soak_races(definition: Definition, race: str) -> None:
    run(definition, RACES[race], SOAK_ROUNDS)


def test_a_registration_that_comes_late_within_its_grace_is_waited_for(definition: Definition) -> None:
    with pytest.MonkeyPatch.context() as patched:
        plant = Plant(patched, definition)
        plant.world.registrations.rows.clear()
        (incident,) = plant.alarm(plant.alarm_of(builder.culprit(3, plant.jobs[0].seats)))
        plant.later(timedelta(seconds=100), partial(plant.start_job, plant.jobs[0]))
        plant.advance(timedelta(minutes=3))
        assert incident.id in plant.waiting()
