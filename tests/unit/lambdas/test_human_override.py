"""A person's hand on a node wins: cordoned before us, after us, or again under our mark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lambdas.domain.incident import Incident, State
from lambdas.steps.effects import CORDONED_BY
from tests.events import builder
from training_agent.contract import Verdict

from .drive import Driver

NODE = f"hyperpod-{builder.INSTANCES[1]}"
RANK = 3


def by_hand(driver: Driver, *switches: bool) -> None:
    """kubectl cordon and uncordon: neither touches our annotation."""
    for on in switches:
        driver.world.kubernetes.change(NODE, unschedulable=on)


def asked(driver: Driver) -> tuple[Incident, str]:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(RANK)))
    return incident, driver.until_asked(incident)


def end_of(driver: Driver, incident: Incident) -> State:
    return driver.world.incidents.get(incident.id).state


def left_alone(driver: Driver) -> bool:
    return driver.world.kubernetes.nodes[NODE].unschedulable and not driver.world.cluster.calls


def test_a_cordon_from_before_ours_is_not_ours(driver: Driver) -> None:
    driver.register()
    by_hand(driver, True)
    (incident,) = driver.alarm(builder.alarm(builder.culprit(RANK)))
    driver.play(incident, "locate")
    assert end_of(driver, incident) is State.HUMAN_OVERRIDE and left_alone(driver)
    assert CORDONED_BY not in driver.world.kubernetes.nodes[NODE].annotations


def test_a_node_that_a_human_cordons_again_under_our_mark_is_not_replaced(driver: Driver) -> None:
    incident, link = asked(driver)
    by_hand(driver, False, True)
    assert driver.world.kubernetes.nodes[NODE].annotations[CORDONED_BY] == incident.id
    driver.answer(link)
    driver.play(incident, "approval_answered")
    assert end_of(driver, incident) is State.HUMAN_OVERRIDE and left_alone(driver)


def release_on_reject(driver: Driver) -> Incident:
    incident, link = asked(driver)
    by_hand(driver, False, True)
    driver.answer(link, "release")
    driver.play(incident, "approval_answered")
    return incident


def release_when_the_check_passes(driver: Driver) -> Incident:
    """V2: the person's hand comes between the check and the release."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(RANK, Verdict.TRANSIENT)))
    driver.play(incident, "locate", stop="confirm")
    driver.step("confirm", incident)
    driver.world.cluster.set_status(builder.INSTANCES[1], "Running")
    driver.play(incident, "confirm", stop="resume")
    by_hand(driver, False, True)
    driver.world.cluster.calls.clear()
    driver.job_returns()
    driver.play(incident, "resume")
    return incident


@pytest.mark.parametrize("released", [release_on_reject, release_when_the_check_passes])
def test_a_node_that_a_human_cordons_again_under_our_mark_is_not_uncordoned(
    driver: Driver, released: Callable[[Driver], Incident]
) -> None:
    incident = released(driver)
    assert end_of(driver, incident) in (State.RELEASED, State.REJECTED_RELEASED) and left_alone(driver)
    assert any("left as it is" in story for story in driver.stories)


def test_an_uncordon_by_hand_is_not_undone_but_by_new_evidence(driver: Driver) -> None:
    """A second alarm is contained once more: that cordon is ours again, whoever uncordoned in between."""
    incident, _ = asked(driver)
    by_hand(driver, False)
    assert not driver.world.kubernetes.nodes[NODE].unschedulable
    (second,) = driver.alarm(builder.alarm(builder.culprit(RANK), step=40))
    driver.play(second, "locate")
    rows = driver.world.incidents.rows
    rows[incident.id] = rows[incident.id].again()
    driver.step("contain", incident)
    assert driver.world.kubernetes.nodes[NODE].set_by_us
    assert driver.world.incidents.get(incident.id).targets[0].cordoned_by_us


def test_a_cordon_by_hand_is_respected_by_second_evidence(driver: Driver) -> None:
    """Ours first, then the person's, then the second alarm of the same incident."""
    incident, _ = asked(driver)
    by_hand(driver, False, True)
    rows = driver.world.incidents.rows
    rows[incident.id] = rows[incident.id].again()
    driver.step("contain", incident)
    assert not driver.world.incidents.get(incident.id).targets[0].cordoned_by_us
    assert any(
        "respected: cordoned by somebody else" in entry for _, _, entry in driver.world.incidents.trail
    )
