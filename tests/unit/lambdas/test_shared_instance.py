"""Two incidents that suspect one instance: one goes on with both; what an ended one left is inherited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lambdas.domain.incident import Incident, State
from lambdas.steps.effects import CORDONED_BY
from lambdas.steps.locate import MAX_GATE_WAITS
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


def culprit_waits(driver: Driver, step: int = 40) -> Incident:
    """Evidence that names a GPU of the node which the job's incident suspects."""
    (second,) = driver.alarm(builder.alarm(builder.culprit(3), step=step))
    assert driver.step("locate", second)["outcome"] == "waiting"
    return second


@pytest.mark.parametrize("at", ["contain", "decide", "confirm"])
def test_a_culprit_takes_its_node_over_from_the_job_incident_that_names_nobody(
    driver: Driver, at: str
) -> None:
    """Row C1: replaced after review. The job's incident ends at a human, at its next step, unchecked."""
    driver.register()
    (first,) = driver.alarm(builder.alarm(UNCLEAR))
    assert driver.play(first, "locate", stop=at) == at
    second = culprit_waits(driver)
    assert driver.step("locate", second)["outcome"] == "waiting"
    driver.play(first, at)
    ended = row(driver, first)
    assert (ended.state, ended.decision_row) == (State.HANDED_TO_HUMAN, "V4")
    assert "takes it over" in ended.human_reason and not driver.world.cluster.calls
    link = driver.until_asked(second)
    assert driver.world.kubernetes.nodes[NODE].annotations[CORDONED_BY] == second.id
    driver.answer(link)
    assert driver.step("replace", second)["outcome"] == "replaced"
    assert driver.world.cluster.calls == [("replace", SUSPECT)]


def test_a_check_that_the_culprit_made_needless_is_waited_for_and_no_changed_world(driver: Driver) -> None:
    first = of_the_job(driver)
    driver.step("confirm", first)
    second = culprit_waits(driver)
    driver.play(first, "confirm")
    driver.answer(driver.until_asked(second))
    assert driver.step("replace", second)["outcome"] == "busy" and not driver.world.controls.locks
    driver.world.cluster.set_status(SUSPECT, "Running")
    assert driver.step("replace", second)["outcome"] == "replaced"


def test_a_second_culprit_joins_the_one_that_took_over(driver: Driver) -> None:
    first = of_the_job(driver)
    second, third = culprit_waits(driver), culprit_waits(driver, step=50)
    driver.play(first, "confirm")
    assert driver.step("locate", second)["outcome"] == "located"
    assert driver.play(third, "locate") == "joined"
    assert row(driver, second).joined == (third.id,)


def test_the_wait_for_the_gate_is_bounded_and_ends_with_the_evidence_joined(driver: Driver) -> None:
    first, second = of_the_job(driver), culprit_waits(driver)
    for _ in range(MAX_GATE_WAITS - 1):
        assert driver.step("locate", second)["outcome"] == "waiting"
    assert driver.play(second, "locate") == "joined"
    driver.play(first, "decide")
    assert row(driver, first).state is State.HANDED_TO_HUMAN and row(driver, first).decision_row == "C1"
    assert not driver.world.cluster.calls and not driver.world.incidents.gates


def test_what_blames_one_of_several_nodes_is_no_history_of_the_others(driver: Driver) -> None:
    driver.register()
    (first,) = driver.alarm(builder.alarm(Finding(FindingKind.WEIGHTS, involved=builder.places()[2:6])))
    driver.play(first, "locate", stop="decide")
    second = culprit_waits(driver)
    for _ in range(MAX_GATE_WAITS):
        driver.step("locate", second)
    driver.play(first, "decide")
    assert row(driver, first).decision_row == "C1"
    assert not driver.world.incidents.history(instance_subject(builder.INSTANCES[2]))


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
