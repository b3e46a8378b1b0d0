"""Two incidents that suspect one instance: one goes on with both; what an ended one left is inherited."""

from __future__ import annotations

from dataclasses import replace

from lambdas.domain.incident import Incident, State
from lambdas.steps.effects import CORDONED_BY
from tests.events import builder
from training_agent.contract import Finding, FindingKind, Verdict, instance_subject

from .drive import Driver

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"
SEATS = builder.places()[2:4]
UNCLEAR = Finding(FindingKind.PAIR, verdict=Verdict.UNATTRIBUTABLE, involved=SEATS)


def of_the_job(driver: Driver) -> Incident:
    """V4 over the suspect's node, contained; it names nobody."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(UNCLEAR))
    driver.play(incident, "locate", stop="confirm")
    return incident


def row(driver: Driver, incident: Incident) -> Incident:
    return driver.world.incidents.get(incident.id)


def test_a_culprit_joins_the_open_incident_of_a_job_that_suspects_its_instance(driver: Driver) -> None:
    first = of_the_job(driver)
    (second,) = driver.alarm(builder.alarm(builder.culprit(3), step=40))
    assert driver.play(second, "locate") == "joined"
    assert row(driver, first).joined == (second.id,)
    driver.play(first, "decide")
    assert row(driver, first).state is State.HANDED_TO_HUMAN and row(driver, first).decision_row == "C1"
    assert not driver.world.cluster.calls and not driver.world.incidents.gates


def test_a_jobs_incident_joins_the_open_one_of_an_instance_and_keeps_no_gate(driver: Driver) -> None:
    driver.register()
    (first,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.step("locate", first)
    (second,) = driver.alarm(builder.alarm(UNCLEAR, step=40))
    assert driver.play(second, "locate") == "joined"
    assert set(driver.world.incidents.gates.values()) == {first.id}


def test_what_an_ended_incident_left_contained_is_taken_over(driver: Driver) -> None:
    first = of_the_job(driver)
    rows = driver.world.incidents.rows
    rows[first.id] = replace(rows[first.id], closing=State.HANDED_TO_HUMAN)
    driver.play(first, "tell_human")
    (second,) = driver.alarm(builder.alarm(builder.culprit(3), step=40))
    link = driver.until_asked(second)
    assert link and driver.world.kubernetes.nodes[NODE].annotations[CORDONED_BY] == second.id
    assert driver.world.quarantine.rows[instance_subject(SUSPECT)]["holders"] == {second.id}


def test_a_cordon_that_a_human_decided_to_keep_is_not_taken_over(driver: Driver) -> None:
    first = of_the_job(driver)
    rows = driver.world.incidents.rows
    rows[first.id] = replace(rows[first.id], state=State.REJECTED_KEPT)
    driver.world.incidents.gates.clear()
    (second,) = driver.alarm(builder.alarm(builder.culprit(3), step=40))
    driver.play(second, "locate")
    assert row(driver, second).state is State.HUMAN_OVERRIDE
    assert driver.world.kubernetes.nodes[NODE].annotations[CORDONED_BY] == first.id


def test_a_check_alone_does_not_release_what_an_ended_incident_accused(driver: Driver) -> None:
    """V2 after it is a repeat: a human is asked, whatever a check would say."""
    first = of_the_job(driver)
    rows = driver.world.incidents.rows
    rows[first.id] = replace(rows[first.id], state=State.HANDED_TO_HUMAN, decision_row="W2")
    driver.world.incidents.gates.clear()
    driver.world.incidents.past.clear()
    (second,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.TRANSIENT), step=40))
    assert driver.until_asked(second) and not driver.world.cluster.calls
