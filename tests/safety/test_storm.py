"""An event storm from eight threads: no wrong replacement, no uncaught exception, one execution per key."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest

from lambdas.domain.incident import incident_id
from lambdas.steps import ingest

from .asl import Definition
from .plant import Plant
from .storm import Event, events
from .threads import interference, together, unshared

JOBS, BATCH = 60, 100
PAUSE = timedelta(minutes=10)  # between batches: the more at once, the more is row S1's and nobody is asked
PER_DAY = 2  # replacements: so few that more are approved than may be made


def weather(plant: Plant, made: list[Event], seed: int) -> None:
    """Deliver in batches from all threads; in between the machine runs and people answer at random."""
    rng = random.Random(seed)
    for start in range(0, len(made), BATCH):
        batch = made[start : start + BATCH]
        with interference(plant, seed):
            together([lambda e=e: plant.deliver(e.body) for e in batch])  # type: ignore[misc]
        plant.pump()
        assert plant.shared_instances() == []
        for waiting in plant.waiting():
            if rng.random() < 0.5:
                plant.human(waiting, rng.choice(["approve", "approve", "keep", "release"]))
        plant.advance(PAUSE)


def check(monkeypatch: pytest.MonkeyPatch, definition: Definition, count: int, seed: int) -> Counter[str]:
    plant = Plant(monkeypatch, definition, jobs=JOBS)
    plant.setting("REPLACEMENTS_PER_DAY", str(PER_DAY))
    plant.setting("MAX_ALARM_AGE_SECONDS", str(20 * 3600))  # valid ones stay valid while the storm lasts
    plant.watch.limits.per_day = PER_DAY
    monkeypatch.setattr(ingest, "ALARMS_PER_HOUR", count)  # the quota has its own test: each key counts here
    unshared(monkeypatch)
    made = events(plant, count, seed)
    weather(plant, made, seed)
    plant.advance(timedelta(days=4))
    assert plant.violations() == [] and plant.dead_letters == []
    expected = {incident_id(key, node, 1) for e in made for key, node in e.keys}
    assert set(plant.world.incidents.rows) == expected
    assert Counter(plant.world.workflow.started.values()) == Counter(dict.fromkeys(expected, 1))
    assert all(e.status == "SUCCEEDED" for e in plant.machine.executions.values())
    forged = {i.id for i in plant.world.incidents.rows.values() if i.job.uid.startswith("forged")}
    assert forged and not forged & {incident for incident, _, _ in plant.watch.effects}
    assert not plant.open_incidents()
    assert not plant.world.controls.locks and not plant.world.incidents.gates
    ends = Counter(i.state.value for i in plant.world.incidents.rows.values())
    return Counter(e.kind for e in made) + ends + Counter(replacements=len(plant.watch.issued))


def test_a_storm_of_500_events_replaces_nothing_wrongly(
    monkeypatch: pytest.MonkeyPatch, definition: Definition
) -> None:
    counts = check(monkeypatch, definition, 500, seed=11)
    assert counts["replacements"] > 0, "a storm in which nothing can go wrong proves nothing"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_soak_a_storm_of_10000_events(
    monkeypatch: pytest.MonkeyPatch, definition: Definition, seed: int, record_property: pytest.FixtureRequest
) -> None:
    counts = check(monkeypatch, definition, 10_000, seed)
    record_property("counts", dict(counts))  # type: ignore[operator]
