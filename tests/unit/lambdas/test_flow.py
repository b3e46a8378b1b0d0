"""An alarm all the way to its terminal state, through the handlers, for every row that the demo can meet."""

from __future__ import annotations

import pytest

from lambdas.domain.incident import State
from lambdas.domain.policy import Control
from tests.events import builder
from training_agent.contract import (
    Alarm,
    Finding,
    FindingKind,
    Mode,
    SecondConfirmation,
    Verdict,
    gpu_subject,
    instance_subject,
)

from .drive import Driver

SUSPECT = builder.INSTANCES[1]  # ranks 2 and 3
NODE = f"hyperpod-{SUSPECT}"


def replaced(driver: Driver, alarm: Alarm) -> str:
    """Walk to the approval, approve, let HyperPod replace, let the job return; returns the incident's id."""
    driver.register()
    (incident,) = driver.alarm(alarm)
    link = driver.until_asked(incident)
    assert driver.answer(link)["statusCode"] == 200
    assert driver.world.callback.answers[0][1]["outcome"] == "approved"

    def on_state(state: str) -> None:
        if state == "verify" and SUSPECT in driver.world.cluster.members:
            driver.job_returns(instance=driver.world.cluster.swap(SUSPECT))

    driver.on_state = on_state  # type: ignore[method-assign]
    assert driver.play(incident, "replace") == "closed"
    return incident.id


@pytest.mark.parametrize(
    ("alarm", "rows"),
    [
        (builder.alarm(builder.culprit(3)), ("C1",)),
        (builder.alarm(builder.culprit(3, majority=False)), ("C2",)),
        (builder.alarm(builder.weights(3)), ("W1",)),
        (builder.alarm(builder.pair(3, Verdict.PERSISTENT)), ("V1",)),
        (
            builder.alarm(builder.pair(3, Verdict.REPLAYER, second=SecondConfirmation.REPEATS)),
            ("V3", "V1"),
        ),
    ],
)
def test_a_named_culprit_is_replaced_after_approval(
    driver: Driver, alarm: Alarm, rows: tuple[str, ...]
) -> None:
    incident = driver.world.incidents.get(replaced(driver, alarm))
    assert incident.state is State.REPLACED
    assert incident.decided_rows == rows
    assert incident.resumed_from_step == 20
    assert incident.new_instance_id in driver.world.cluster.members
    assert driver.world.cluster.calls == [("replace", SUSPECT)]
    # a suspect of the weight check keeps its pod: the table says "keep cordoned", not "isolate"
    assert driver.world.kubernetes.evicted == ([] if rows == ("W1",) else ["llama-tiny-1"])
    for subject in (instance_subject(SUSPECT), gpu_subject(builder.places()[3].gpu_uuid or "")):
        assert driver.world.quarantine.state(subject) == "released"
    assert not driver.world.incidents.gates and not driver.world.controls.locks


def test_each_transition_leaves_an_event_on_the_bus(driver: Driver) -> None:
    replaced(driver, builder.alarm(builder.culprit(3)))
    states = [e["state"] for e in driver.world.bus.events]
    assert states == [
        "OPENING", "LOCATED", "CONTAINED", "DECIDED", "AWAITING_APPROVAL", "REPLACING", "VERIFYING",
        "CLOSING", "REPLACED",
    ]  # fmt: skip


def test_two_bad_gpus_are_two_incidents_and_one_replacement_at_a_time(driver: Driver) -> None:
    driver.register()
    first, second = driver.alarm(builder.alarm(builder.culprit(1), builder.culprit(4)))
    links = {i.id: driver.until_asked(i) for i in (first, second)}
    for incident in (first, second):
        target = driver.world.incidents.get(incident.id).instance_id or ""
        assert driver.answer(links[incident.id], typed=target[-6:])["statusCode"] == 200
    assert driver.step("replace", first)["outcome"] == "replaced"
    busy = driver.step("replace", second)
    assert (busy["outcome"], busy["wait_seconds"]) == ("busy", 60)
    driver.world.cluster.swap(builder.INSTANCES[0])
    assert driver.step("verify", first)["outcome"] == "verified"
    assert driver.step("replace", second)["outcome"] == "replaced"


def test_observe_mode_touches_nothing_and_says_what_it_would_have_done(driver: Driver) -> None:
    driver.setting("MODE", "observe")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.play(incident, "locate")
    assert driver.world.incidents.get(incident.id).state is State.OBSERVED
    assert driver.world.quarantine.mode is Mode.OBSERVE and not driver.world.quarantine.rows
    assert not driver.world.kubernetes.nodes[NODE].unschedulable and not driver.world.kubernetes.evicted
    ((_, subject, body),) = driver.world.mail.sent
    assert NODE in subject and "would have done 'isolate'" in " ".join(body.split())


def test_a_mode_lowered_to_observe_after_the_cordon_does_not_claim_that_nothing_was_touched(
    driver: Driver,
) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.play(incident, "locate", stop="decide")
    driver.world.controls.control = Control(Mode.OBSERVE, kill_switch=False)
    driver.play(incident, "decide")
    closed = driver.world.incidents.get(incident.id)
    assert closed.state is State.HANDED_TO_HUMAN and "stays held" in closed.human_reason


def test_contain_mode_cordons_and_hands_over(driver: Driver) -> None:
    driver.setting("MODE", "contain")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.play(incident, "locate")
    assert driver.world.incidents.get(incident.id).state is State.HANDED_TO_HUMAN
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    assert not driver.world.approvals.rows


@pytest.mark.parametrize(
    ("finding", "row"),
    [
        (Finding(FindingKind.SOFTWARE, involved=builder.places()[2:4]), "S1"),
        (Finding(FindingKind.NONFINITE, reproduced=True, involved=builder.places()[3:4]), "N0"),
    ],
)
def test_rows_that_blame_no_node_go_to_a_human_and_cordon_nothing(
    driver: Driver, finding: Finding, row: str
) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(finding))
    driver.play(incident, "locate")
    incident = driver.world.incidents.get(incident.id)
    assert (incident.state, incident.decision_row) == (State.HANDED_TO_HUMAN, row)
    assert not any(n.unschedulable for n in driver.world.kubernetes.nodes.values())
    assert driver.world.quarantine.state(f"job#{builder.JOB.uid}") == "released"
    assert len(driver.world.mail.sent) == 1


def test_weights_without_a_majority_cordon_those_involved(driver: Driver) -> None:
    driver.register()
    involved = builder.places()[2:6]
    (incident,) = driver.alarm(builder.alarm(Finding(FindingKind.WEIGHTS, involved=involved)))
    driver.play(incident, "locate")
    assert driver.world.incidents.get(incident.id).decision_row == "W2"
    cordoned = [n.name for n in driver.world.kubernetes.nodes.values() if n.unschedulable]
    assert cordoned == [f"hyperpod-{i}" for i in builder.INSTANCES[1:]]
    assert not driver.world.kubernetes.evicted


def test_more_nodes_than_bad_gpus_can_explain_blame_nobody(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(0), builder.culprit(2), builder.culprit(4)))
    driver.play(incident, "locate")
    assert driver.world.incidents.get(incident.id).decision_row == "S1"
    assert not any(n.unschedulable for n in driver.world.kubernetes.nodes.values())


def test_a_failed_step_is_told_to_a_human_with_its_error(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.step(
        "request_approval", incident, notice="human", seen={"Error": "States.Timeout", "Cause": "locate"}
    )
    assert "States.Timeout" in driver.world.mail.sent[0][2]
    driver.play(incident, "resume")
    assert driver.world.incidents.get(incident.id).state is State.HANDED_TO_HUMAN


def test_a_retried_notice_sends_no_second_mail(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    for _ in range(2):
        driver.step("request_approval", incident, notice="human", seen={"story": "why"})
    assert len(driver.world.mail.sent) == 1


@pytest.mark.parametrize(("kind", "moved"), [("culprit", True), ("weights", False)])
def test_the_mail_says_what_was_contained_and_no_more(driver: Driver, kind: str, moved: bool) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(getattr(builder, kind)(3)))
    driver.until_asked(incident)
    body = " ".join(driver.world.mail.sent[-1][2].split())
    assert "It is cordoned" in body
    assert ("moved off it" in body) is moved
