"""Single faults at the places where one guard alone stands between them and harm; the sweep has them all."""

from __future__ import annotations

import pytest

from lambdas.domain.incident import State

from .asl import Definition
from .plant import Plant
from .test_single_faults import never_registered, silence, wrong
from .wires import Fault, Plan, Site


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, definition: Definition) -> Plant:
    return Plant(monkeypatch, definition)


def hit(plant: Plant, site: Site, fault: Fault, spared: int = 0) -> Plan:
    plan = Plan(site, fault, spared)
    plant.wires.plans.append(plan)
    return plan


def test_a_gate_that_was_taken_is_freed_when_nothing_can_be_written_after_it(plant: Plant) -> None:
    plan = hit(plant, Site("locate", "incidents.save", "record"), Fault.DENIED, spared=1)
    silence(plant)
    assert wrong(plant, plan) == []
    assert [i.state for i in plant.world.incidents.rows.values()] == [State.HANDED_TO_HUMAN]


def test_an_eviction_whose_caller_died_is_in_the_trail(plant: Plant) -> None:
    plan = hit(plant, Site("contain", "kubernetes.evict", "evict_job"), Fault.CRASH_AFTER)
    silence(plant)
    assert wrong(plant, plan) == []
    assert plant.watch.calls["kubernetes.evict"] == 1


def test_a_notice_whose_intent_was_not_answered_is_sent_by_the_retry(plant: Plant) -> None:
    plan = hit(plant, Site("request_approval", "incidents.intend", "tell"), Fault.LOST_AFTER)
    never_registered(plant)
    assert wrong(plant, plan) == []
    assert len(plant.world.mail.sent) == 1


@pytest.mark.parametrize(
    ("call", "caller"),
    [("approvals.end", "timed_out"), ("incidents.intend", "_once"), ("mail.send", "send_to_all")],
)
@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.LOST_BEFORE, Fault.CRASH_AFTER])
def test_an_expired_question_is_escalated_whatever_was_not_answered(
    plant: Plant, call: str, caller: str, fault: Fault
) -> None:
    """The row says EXPIRED before anybody was told: the retry does not take the row for the mail.

    What the state machine does not retry (a killed function) goes to a human, which is a mail as well.
    """
    spared = 1 if call == "incidents.intend" else 0  # the reminder comes before
    hit(plant, Site("request_approval", call, caller), fault, spared)
    silence(plant)
    (ended,) = plant.world.incidents.rows.values()
    told = {State.EXPIRED: "review expired", State.HANDED_TO_HUMAN: "needs a human"}[ended.state]
    assert ended.state is State.EXPIRED or fault is Fault.CRASH_AFTER
    assert any(told in subject for _, subject, _ in plant.world.mail.sent)
    assert plant.violations() == []
