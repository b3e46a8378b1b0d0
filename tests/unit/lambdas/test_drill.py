"""The fire drill: walks the whole path, touches nothing, can never replace."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lambdas import handlers
from lambdas.domain.drill import DRILL_INSTANCE, DRILL_NODE
from lambdas.domain.incident import Incident, State
from tests.events import builder
from training_agent.contract import Alarm, Job, decode

from .drive import CONTEXT, Driver


@pytest.fixture
def drill(driver: Driver) -> Incident:
    handlers.drill({}, CONTEXT)
    (detail,) = driver.world.bus.alarms
    event: dict[str, Any] = {**builder.event(decode(Alarm, detail)), "detail": json.loads(detail)}
    before = set(driver.world.incidents.rows)
    driver.send(event)
    (opened,) = set(driver.world.incidents.rows) - before
    return driver.world.incidents.get(opened)


def untouched(driver: Driver) -> bool:
    nodes = driver.world.kubernetes.nodes.values()
    return (
        not any(n.unschedulable for n in nodes)
        and not driver.world.kubernetes.evicted
        and not driver.world.quarantine.rows
        and not driver.world.cluster.calls
        and not driver.world.incidents.gates
        and not driver.world.controls.locks
        and not driver.world.controls.replaced
    )


def test_an_approved_drill_ends_closed_and_replaces_nothing(driver: Driver, drill: Incident) -> None:
    assert drill.synthetic
    link = driver.until_asked(drill)
    assert "FIRE DRILL" in driver.world.mail.sent[0][1] and DRILL_NODE in driver.world.mail.sent[0][1]
    assert driver.answer(link, typed=DRILL_INSTANCE[-6:])["statusCode"] == 200
    assert driver.play(drill, "approval_answered") == "closed"
    assert driver.path[-2:] == ["replace", "resume"]
    assert driver.world.incidents.get(drill.id).state is State.CLOSED
    assert untouched(driver)


@pytest.mark.parametrize(
    ("answer", "end"),
    [("keep", State.REJECTED_KEPT), ("release", State.REJECTED_RELEASED), (None, State.EXPIRED)],
)
def test_any_other_end_touches_nothing_either(
    driver: Driver, drill: Incident, answer: str | None, end: State
) -> None:
    link = driver.until_asked(drill)
    if answer:
        driver.answer(link, answer, typed=DRILL_INSTANCE[-6:])
    driver.play(drill, "approval_answered" if answer else "approval_timed_out")
    assert driver.world.incidents.get(drill.id).state is end
    assert untouched(driver)


def test_even_a_node_of_that_name_would_not_be_replaced(driver: Driver, drill: Incident) -> None:
    driver.add_node(DRILL_INSTANCE)
    driver.answer(driver.until_asked(drill), typed=DRILL_INSTANCE[-6:])
    driver.play(drill, "approval_answered")
    assert untouched(driver)


def test_a_drill_leaves_no_history(driver: Driver, drill: Incident) -> None:
    driver.until_asked(drill)
    assert not [e for e in driver.world.incidents.past if e.subject.startswith(("instance#", "gpu#"))]


def test_a_real_accusation_cannot_hide_as_a_drill(driver: Driver) -> None:
    """Job names are free; the node that no cluster has is what makes a drill."""
    job = Job("fire-drill", "drill-2026", 1, "training")
    driver.register(*[builder.registration(n, job=job) for n in range(3)])
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3), job=job))
    assert not incident.synthetic


def test_in_observe_mode_a_drill_says_what_it_would_have_done(driver: Driver, drill: Incident) -> None:
    driver.setting("MODE", "observe")
    driver.play(drill, "locate")
    assert driver.world.incidents.get(drill.id).state is State.CLOSED
    assert len(driver.world.mail.sent) == 1 and untouched(driver)
