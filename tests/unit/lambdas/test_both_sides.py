"""What the pipeline writes is what the agent reads: one alarm on both sides of the quarantine table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lambdas.adapters import aws
from lambdas.adapters.quarantine import QuarantineTable
from lambdas.domain.incident import State
from tests.events import builder
from training_agent.contract import Alarm, Mode, QuarantineEntry, Verdict, instance_subject
from training_agent.quarantine import entries_of
from training_agent.quarantine_table import QuarantineTable as AgentTable
from training_agent.quarantine_table import Row

from .drive import Driver

SUSPECT = builder.INSTANCES[1]
AHEAD = "2026-01-01T00:22:00.000000Z"  # a node's clock that is ten minutes off
BEHIND = "2026-01-01T00:01:00.000000Z"


@pytest.fixture
def agent(driver: Driver, tables: None) -> AgentTable:
    """The agent's reader, on the table that the steps write."""
    driver.world.quarantine = QuarantineTable("quarantine")  # type: ignore[assignment]
    return AgentTable("quarantine", aws.client)


def alarm(time: str, attempt: int = 1) -> Alarm:
    job = replace(builder.JOB, attempt=attempt)
    return builder.alarm(builder.pair(3, Verdict.TRANSIENT), time=time, job=job)


def the_row(agent: AgentTable) -> Row:
    return agent.rows([instance_subject(SUSPECT)])[instance_subject(SUSPECT)]


def the_entry(message: Alarm) -> QuarantineEntry:
    (entry,) = entries_of(message)
    return entry


def released(driver: Driver, agent: AgentTable, message: Alarm) -> Row:
    """Contained, then let go."""
    driver.register()
    (incident,) = driver.alarm(message)
    driver.play(incident, "locate", stop="decide")
    assert the_row(agent).held and not the_row(agent).releases(the_entry(message))
    rows = driver.world.incidents.rows
    rows[incident.id] = replace(rows[incident.id], state=State.DECIDED, closing=State.RELEASED)
    driver.step("resume", incident)
    return the_row(agent)


@pytest.mark.parametrize("time", [AHEAD, BEHIND])
def test_the_release_of_an_alarm_frees_its_own_entry_whatever_the_clocks_say(
    driver: Driver, agent: AgentTable, time: str
) -> None:
    row = released(driver, agent, alarm(time))
    assert row.releases(the_entry(alarm(time)))


def test_an_alarm_that_comes_again_in_the_next_attempt_is_not_freed_by_the_earlier_release(
    driver: Driver, agent: AgentTable
) -> None:
    row = released(driver, agent, alarm(BEHIND))
    for time in (AHEAD, BEHIND):  # a pod whose clock is behind accuses before the release, so it says
        assert not row.releases(the_entry(alarm(time, attempt=2)))


def test_a_hold_beside_another_incidents_is_not_lost_when_that_one_lets_go(
    driver: Driver, agent: AgentTable
) -> None:
    row = released(driver, agent, alarm(BEHIND))
    (key,) = {the_entry(alarm(BEHIND)).delivery_key}
    subject, now = instance_subject(SUSPECT), driver.world.clock.now()
    store = driver.world.quarantine
    store.hold(subject, [key], "first", now)
    store.hold(subject, ["second"], "second", now)
    assert not store.release(subject, [key], "first", now)
    assert row.subject == subject and the_row(agent).held
    assert store.release(subject, ["second"], "second", now)
    assert the_row(agent).releases(the_entry(alarm(BEHIND)))


def test_a_release_frees_the_entries_of_every_attempt_that_its_evidence_came_from(
    driver: Driver, agent: AgentTable
) -> None:
    """The same alarm again after a restart, another one of a third attempt: all by clocks that run ahead."""
    driver.register()
    (incident,) = driver.alarm(alarm(AHEAD))
    driver.play(incident, "locate", stop="decide")
    assert not driver.alarm(alarm(AHEAD, attempt=2)), "evidence, no incident of its own"
    driver.job_returns(attempt=3)
    third = replace(alarm(AHEAD, attempt=3), step=40)
    (joining,) = driver.alarm(third)
    assert driver.play(joining, "locate") == "joined"
    rows = driver.world.incidents.rows
    rows[incident.id] = replace(rows[incident.id], state=State.DECIDED, closing=State.RELEASED, decided_on=1)
    driver.step("resume", incident)
    entries = [the_entry(a) for a in (alarm(AHEAD), alarm(AHEAD, attempt=2), third)]
    assert [the_row(agent).releases(e) for e in entries] == [True, True, True]
    assert not the_row(agent).releases(the_entry(alarm(AHEAD, attempt=4)))


def test_the_mode_is_read_as_written(agent: AgentTable, driver: Driver) -> None:
    driver.world.quarantine.put_mode(Mode.OBSERVE)
    assert agent.mode() is Mode.OBSERVE
