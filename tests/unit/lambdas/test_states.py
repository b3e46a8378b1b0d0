"""Named states, allowed transitions only, and rows and payloads of the version before."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from lambdas.deciding import answer_of
from lambdas.domain import errors
from lambdas.domain.approval import Action, Answer, Approval, ApprovalState
from lambdas.domain.errors import NeedsHumanError
from lambdas.domain.incident import NEXT, TERMINAL, Incident, State, end_for
from tests.events import builder
from training_agent.contract import decode, encode

from .drive import Driver

ADDED = {  # fields that rows of the version before do not have
    "asks", "asking", "joined", "decided_on", "failures_seen", "synthetic", "telemetry", "readings", "audits",
    "updated_at",
}  # fmt: skip


@pytest.fixture
def incident(driver: Driver) -> Incident:
    driver.register()
    (opened,) = driver.alarm(builder.alarm(builder.culprit(3)))
    return opened


def test_every_end_that_people_read_has_a_name() -> None:
    assert {s.value for s in TERMINAL} == {
        "JOINED", "OBSERVED", "CLOSED", "RELEASED", "REPLACED", "REPLACED_BY_HYPERPOD",
        "REPLACEMENT_DEGRADED", "TERMINATED_NO_DEMAND", "REJECTED_KEPT", "REJECTED_RELEASED", "EXPIRED",
        "NO_APPROVER", "HUMAN_OVERRIDE", "WORLD_CHANGED", "BLOCKED_BY_BREAKER", "HEALTHCHECK_STUCK",
        "HANDED_TO_HUMAN",
    }  # fmt: skip


def test_every_state_leads_to_an_end_and_no_end_leads_anywhere() -> None:
    assert not TERMINAL & NEXT.keys() and TERMINAL | NEXT.keys() == set(State)
    without_execution = State.DETAILS_MISSING  # `reconcile` ends it, whom nothing has to close
    for state in NEXT:
        assert State.CLOSING in NEXT[state] or state in (State.CLOSING, without_execution)
    assert NEXT[without_execution] <= TERMINAL
    assert NEXT[State.CLOSING] >= TERMINAL - {State.JOINED}


def test_only_the_listed_transitions_are_possible(incident: Incident) -> None:
    for state in State:
        for target in State:
            at = replace(incident, state=state)
            if target is state or target in NEXT.get(state, ()):
                assert at.to(target).state is target
            else:
                with pytest.raises(NeedsHumanError):
                    at.to(target)


def test_nothing_but_an_approval_leads_to_a_replacement() -> None:
    assert [s for s in State if State.REPLACING in NEXT.get(s, ())] == [State.AWAITING_APPROVAL]
    assert [s for s in State if State.VERIFYING in NEXT.get(s, ())] == [State.REPLACING]
    assert not [s for s in State if State.DETAILS_MISSING in NEXT.get(s, ())]


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (errors.NoApproverError, State.NO_APPROVER),
        (errors.HumanOverrideError, State.HUMAN_OVERRIDE),
        (errors.WorldChangedError, State.WORLD_CHANGED),
        (errors.BreakerError, State.BLOCKED_BY_BREAKER),
        (errors.ReplacedByHyperPodError, State.REPLACED_BY_HYPERPOD),
        (errors.HaltedError, State.HANDED_TO_HUMAN),
        (errors.RefusedError, State.HANDED_TO_HUMAN),
    ],
)
def test_an_error_leads_to_the_end_of_its_name(error: type[Exception], end: State) -> None:
    assert end_for(error("why")) is end


def test_a_step_out_of_order_goes_to_a_human_and_does_nothing(driver: Driver, incident: Incident) -> None:
    assert driver.step("replace", incident)["outcome"] == "human"
    assert driver.step("verify", incident)["outcome"] == "human"
    assert not driver.world.cluster.calls


def test_every_transition_is_in_the_audit_trail(driver: Driver, incident: Incident) -> None:
    driver.answer(driver.until_asked(incident), "keep")
    driver.play(incident, "approval_answered")
    trail = [what for owner, what, _ in driver.world.incidents.trail if owner == incident.id]
    states = [what.removeprefix("state ") for what in trail if what.startswith("state ")]
    assert states == [
        "LOCATED", "CONTAINED", "DECIDED", "AWAITING_APPROVAL", "CLOSING", "REJECTED_KEPT",
    ]  # fmt: skip
    assert {"evict", "mail", "decision"} <= set(trail)


# restart and upgrade


def of_before(incident: Incident) -> Incident:
    """What reads back from a row that the version before has written."""
    assert {f.name for f in fields(Incident)} >= ADDED
    plain = json.loads(encode(incident))
    for name in ADDED:
        del plain[name]
    for target in plain["targets"]:
        del target["running_in_group"]
    return replace(decode(Incident, json.dumps(plain), max_bytes=None), version=incident.version)


def test_a_row_of_the_version_before_walks_on(driver: Driver, incident: Incident) -> None:
    for step in ("locate", "contain", "decide"):
        driver.step(step, incident)
        rows = driver.world.incidents.rows
        rows[incident.id] = of_before(rows[incident.id])
    old = driver.world.incidents.get(incident.id)
    assert (old.asks, old.joined, old.asking) == (0, (), Action.REPLACE)
    driver.step("decide", incident)  # or: decided before the upgrade and asked after it
    driver.answer(driver.ask(incident))
    assert driver.step("replace", incident)["outcome"] == "replaced"


def test_an_execution_that_waits_since_before_the_upgrade_is_answered_and_finishes(
    driver: Driver, incident: Incident
) -> None:
    """Its definition goes from the answer straight to `replace`, by the outcome that the callback carries."""
    link = driver.until_asked(incident)
    rows = driver.world.incidents.rows
    rows[incident.id] = of_before(rows[incident.id])
    driver.answer(link)
    (_, output) = driver.world.callback.answers[0]
    assert output["outcome"] == "approved"
    assert set(output) == {
        "incident_id",
        "outcome",
        "story",
        "wait_seconds",
        "approval_timeout_seconds",
        "patience_seconds",
    }
    assert driver.step("replace", incident)["outcome"] == "replaced"


def test_a_question_decided_before_the_upgrade_and_asked_after_it_still_gets_an_approval(
    driver: Driver, incident: Incident
) -> None:
    driver.play(incident, "locate", stop="request_approval")
    rows = driver.world.incidents.rows
    rows[incident.id] = replace(of_before(rows[incident.id]), approval_id=None)
    link = driver.ask(incident)
    assert driver.answer(link)["statusCode"] == 200
    assert driver.step("replace", incident)["outcome"] == "replaced"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer.APPROVE, "approved"),
        (Answer.KEEP, "rejected_keep"),
        (Answer.RELEASE, "rejected_release"),
    ],
)
def test_the_outcomes_that_old_definitions_know_have_not_changed(answer: Answer, outcome: str) -> None:
    row = Approval(
        "a", "i", Action.REPLACE, "n", "i-1", "h", "", "", state=ApprovalState.DECIDED, answer=answer
    )
    assert answer_of(row)["outcome"] == outcome
