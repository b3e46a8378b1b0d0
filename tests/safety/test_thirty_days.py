"""Thirty simulated days with Poisson alarms: whatever is opened ends, and nothing piles up."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest

from lambdas.domain.incident import Incident
from lambdas.domain.times import moment
from tests.events import builder
from training_agent.contract import Finding, FindingKind, Verdict

from .asl import Definition
from .fleet import JobRun
from .plant import Plant

DAYS, JOBS, ALARMS_A_DAY = 30, 6, 3.0
LONGEST = timedelta(days=2)  # of an incident, from the alarm to its end
ANSWERS = ["approve"] * 5 + ["keep", "release", "", ""]  # "": nobody answers this one


class Month:
    """One plant, thirty days, people who answer within hours and clean up after themselves."""

    def __init__(self, plant: Plant, seed: int) -> None:
        self.plant = plant
        self.rng = random.Random(seed)
        self.backlog: list[int] = []
        self.asked: set[str] = set()

    def run(self) -> None:
        for day in range(DAYS):
            at = self.rng.expovariate(ALARMS_A_DAY)
            while at < 1:
                self.plant.later(timedelta(days=at), self.strike)
                at += self.rng.expovariate(ALARMS_A_DAY)
            for hour in range(24):
                self.plant.later(timedelta(hours=hour), self.people)
            self.plant.later(timedelta(hours=23), self.repairs)
            self.plant.advance(timedelta(days=1))
            assert self.plant.violations() == [], f"day {day}"
            self.backlog.append(len(self.plant.open_incidents()))

    def strike(self) -> None:
        job = self.rng.choice(self.plant.jobs)
        rank = self.rng.randrange(len(job.seats))
        finding = self.finding(job, rank)
        step = 100 + int((self.plant.world.clock.at.timestamp() * 10) % 1e9)
        self.plant.alarm(
            self.plant.alarm_of(finding, job=job, step=step), deliveries=self.rng.choice([1, 1, 2])
        )
        if self.rng.random() < 0.9:
            self.plant.later(timedelta(hours=self.rng.uniform(0.2, 3)), lambda: self.plant.job_returns(job))

    def finding(self, job: JobRun, rank: int) -> Finding:
        dice = self.rng.random()
        if dice < 0.4:
            return builder.culprit(rank, job.seats)
        if dice < 0.8:
            return builder.pair(
                rank,
                self.rng.choice([Verdict.TRANSIENT, Verdict.PERSISTENT, Verdict.UNATTRIBUTABLE]),
                job.seats,
            )
        return Finding(self.rng.choice([FindingKind.REDUCED, FindingKind.SOFTWARE]), involved=job.seats[:2])

    def people(self) -> None:
        """Each request is looked at once, at some hour after its mail."""
        self.plant.world.cluster.check_ends = self.rng.choice(["pass", "pass", "fail", "stuck", "never"])  # type: ignore[attr-defined]
        for incident_id in self.plant.waiting():
            if incident_id not in self.asked and self.rng.random() < 0.6:
                self.asked.add(incident_id)
                decision = self.rng.choice(ANSWERS)
                if decision:
                    self.plant.human(incident_id, decision)
        close = getattr(self.plant.world.controls, "close_breaker", None)
        if close is not None:
            close("looked at it", "operator", self.plant.world.clock.at)

    def repairs(self) -> None:
        """What was left cordoned and is nobody's any more is repaired and comes back."""
        held = {t.node for i in self.plant.open_incidents() for t in i.targets}
        for name, node in list(self.plant.world.kubernetes.nodes.items()):
            if node.unschedulable and name not in held:
                self.plant.world.kubernetes.change(name, unschedulable=False, annotations={})
                self.plant.watch.cordoner[name] = ""


def age(incident: Incident) -> timedelta:
    assert incident.closed_at is not None or incident.state.value == "JOINED"
    return moment(incident.closed_at or incident.opened_at) - moment(incident.opened_at)


@pytest.mark.parametrize("seed", [1])
def test_thirty_days_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, definition: Definition, seed: int
) -> None:
    plant = Plant(monkeypatch, definition, jobs=JOBS)
    month = Month(plant, seed)
    month.run()
    assert sum(month.backlog[20:]) <= sum(month.backlog[:10]) + 10, month.backlog  # no growth
    assert max(month.backlog) <= 10, month.backlog
    plant.advance(LONGEST)
    rows = plant.world.incidents.rows.values()
    assert not plant.open_incidents()
    assert max(age(i) for i in rows) < LONGEST
    assert not plant.world.controls.locks and not plant.world.incidents.gates
    assert not plant.dead_letters
    assert all(not e.running for e in plant.machine.executions.values())
    ends = Counter(i.state.value for i in rows)
    assert len(rows) > DAYS and ends["REPLACED"] > 5 and len(ends) >= 5, ends
    assert plant.violations() == []
