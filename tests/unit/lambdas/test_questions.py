"""What a human is asked for (a replacement, a deep check, a held job), and what each answer leads to."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lambdas.domain.approval import Action, Answer, ApprovalState
from lambdas.domain.errors import RefusedError
from lambdas.domain.incident import CheckResult, Incident, State
from lambdas.domain.world import ClusterFacts
from tests.events import builder
from training_agent.contract import Finding, FindingKind, Verdict, job_subject

from .drive import Driver
from .fakes import START

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"
JOB = job_subject(builder.JOB.uid)
PATIENCE = 7200


@pytest.fixture
def transient(driver: Driver) -> Incident:
    """A transient verdict in a cluster that replaces nodes by itself."""
    driver.world.cluster.facts = ClusterFacts("Automatic", {})
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.TRANSIENT)))
    return incident


@pytest.fixture
def held(driver: Driver) -> Incident:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(Finding(FindingKind.REDUCED)))
    return incident


# a deep health check under NodeRecovery Automatic


def test_a16_no_check_before_it_is_approved_and_the_mail_says_what_it_may_do(
    driver: Driver, transient: Incident
) -> None:
    link = driver.until_asked(transient)
    assert driver.world.cluster.calls == []
    (row,) = driver.world.approvals.rows.values()
    assert (row.action, row.instance_id) == (Action.DEEP_CHECK, SUSPECT)
    text = " ".join(driver.world.mail.sent[0][2].split())
    assert "the check itself may reboot or replace the node" in text
    page = driver.browse(link)["body"]
    assert "Run a deep health check" in page and "may reboot or replace" in page


def test_an_approved_check_is_started_once_and_a_pass_releases(driver: Driver, transient: Incident) -> None:
    driver.answer(driver.until_asked(transient))
    assert driver.world.callback.answers[0][1]["outcome"] == "check_approved"

    def on_state(state: str) -> None:
        if state == "confirm" and driver.world.cluster.calls:
            driver.world.cluster.set_status(SUSPECT, "Running")
        if state == "resume" and not driver.world.kubernetes.nodes[NODE].unschedulable:
            driver.job_returns()

    driver.on_state = on_state  # type: ignore[method-assign]
    assert driver.play(transient, "approval_answered") == "closed"
    assert driver.world.cluster.calls == [("check", SUSPECT)]
    assert driver.world.cluster.checks == [("InstanceStress",)]
    assert driver.world.incidents.get(transient.id).state is State.RELEASED


def test_a_failed_check_asks_for_the_replacement_with_a_question_of_its_own(
    driver: Driver, transient: Incident
) -> None:
    driver.answer(driver.until_asked(transient))
    looks = 0

    def on_state(state: str) -> None:
        nonlocal looks
        looks += state == "confirm"
        if looks > 1:
            driver.world.cluster.set_status(SUSPECT, "Running")
            label = {"sagemaker.amazonaws.com/deep-health-check-status": "Failed"}
            driver.world.kubernetes.change(NODE, labels=label)

    driver.on_state = on_state  # type: ignore[method-assign]
    assert driver.play(transient, "approval_answered", stop="request_approval") == "request_approval"
    assert driver.step("replace", transient)["outcome"] == "human"  # the check's approval replaces nothing
    assert driver.world.cluster.calls == [("check", SUSPECT)]


def test_a_check_that_replaced_the_node_is_the_end_and_nothing_is_replaced_again(
    driver: Driver, transient: Incident
) -> None:
    driver.answer(driver.until_asked(transient))

    def on_state(state: str) -> None:
        if driver.world.cluster.calls:
            driver.world.cluster.members.pop(SUSPECT, None)

    driver.on_state = on_state  # type: ignore[method-assign]
    driver.play(transient, "approval_answered")
    assert driver.world.incidents.get(transient.id).state is State.REPLACED_BY_HYPERPOD
    assert driver.world.cluster.calls == [("check", SUSPECT)]


@pytest.mark.parametrize(
    ("decision", "end"), [("keep", State.REJECTED_KEPT), ("release", State.REJECTED_RELEASED)]
)
def test_a_rejected_check_is_not_run(driver: Driver, transient: Incident, decision: str, end: State) -> None:
    driver.answer(driver.until_asked(transient), decision)
    driver.job_returns()
    driver.play(transient, "approval_answered")
    assert driver.world.incidents.get(transient.id).state is end
    assert driver.world.cluster.calls == []


def test_silence_is_no_consent_to_a_check(driver: Driver, transient: Incident) -> None:
    driver.until_asked(transient)
    driver.play(transient, "approval_timed_out")
    assert driver.world.incidents.get(transient.id).state is State.EXPIRED
    assert driver.world.cluster.calls == []


def test_an_approval_that_expired_before_the_check_began_starts_none_and_is_asked_for_again(
    driver: Driver, transient: Incident
) -> None:
    driver.answer(driver.until_asked(transient))
    driver.world.clock.at = START + timedelta(hours=3)
    assert driver.until_asked_from(transient, "approval_answered")
    assert driver.world.cluster.calls == []
    assert driver.world.incidents.get(transient.id).asks == 2


def test_a_forged_outcome_starts_no_check(driver: Driver, transient: Incident) -> None:
    """T11: a stolen task token may claim "check_approved"; the row is still pending."""
    driver.until_asked(transient)
    assert driver.step("confirm", transient)["outcome"] == "confirmed"
    assert driver.world.cluster.calls == []
    assert driver.world.incidents.get(transient.id).deep_check.result is CheckResult.NEEDS_APPROVAL


def test_a_check_over_several_nodes_is_a_command_for_the_human(driver: Driver) -> None:
    driver.register()
    involved = builder.places()[2:6]
    (incident,) = driver.alarm(builder.alarm(Finding(FindingKind.WEIGHTS, involved=involved)))
    driver.play(incident, "locate")
    assert driver.world.cluster.calls == []
    text = " ".join(driver.world.mail.sent[-1][2].split())
    assert "aws sagemaker start-cluster-health-check" in text and "InstanceConnectivity" in text


def test_a_superseded_check_is_no_result(driver: Driver, transient: Incident) -> None:
    driver.answer(driver.until_asked(transient))
    driver.world.cluster.start_health_check = lambda *_: None  # type: ignore[method-assign]
    driver.world.cluster.superseded = True
    driver.play(transient, "approval_answered")
    closed = driver.world.incidents.get(transient.id)
    assert closed.state is State.HANDED_TO_HUMAN and "superseded" in closed.human_reason
    assert driver.world.kubernetes.nodes[NODE].unschedulable


# a held job


def test_a_held_job_is_let_go_by_a_human_and_by_nobody_else(driver: Driver, held: Incident) -> None:
    link = driver.until_asked(held)
    assert driver.world.quarantine.state(JOB) == "held"
    assert "Let the held job go?" in driver.browse(link)["body"]
    assert driver.answer(link, typed=builder.JOB.uid[-6:])["statusCode"] == 200
    driver.job_returns()
    assert driver.play(held, "approval_answered") == "closed"
    assert driver.world.incidents.get(held.id).state is State.RELEASED
    assert driver.world.quarantine.state(JOB) == "released"
    assert not any(n.unschedulable for n in driver.world.kubernetes.nodes.values())


@pytest.mark.parametrize(("answer", "end"), [("keep", State.REJECTED_KEPT), (None, State.EXPIRED)])
def test_a_held_job_stays_held_without_a_yes(
    driver: Driver, held: Incident, answer: str | None, end: State
) -> None:
    link = driver.until_asked(held)
    if answer:
        driver.answer(link, answer, typed=builder.JOB.uid[-6:])
    driver.play(held, "approval_answered" if answer else "approval_timed_out")
    assert driver.world.incidents.get(held.id).state is end
    assert driver.world.quarantine.state(JOB) == "held"


def test_a_held_job_has_no_second_way_to_be_released(driver: Driver, held: Incident) -> None:
    link = driver.until_asked(held)
    assert driver.answer(link, "release", typed=builder.JOB.uid[-6:])["statusCode"] == 400


def test_the_mail_of_r1_gives_the_command_for_all_nodes_of_the_job(driver: Driver, held: Incident) -> None:
    driver.until_asked(held)
    assert "MultiNodeTrainingValidation" in driver.world.mail.sent[-1][2]


def test_a_forged_release_of_a_held_job_does_nothing(driver: Driver, held: Incident) -> None:
    driver.until_asked(held)
    driver.play(held, "resume")
    assert driver.world.quarantine.state(JOB) == "held"
    assert driver.world.incidents.get(held.id).state is State.HANDED_TO_HUMAN


# who is asked, who answered


def test_each_approver_has_a_link_of_his_own_and_the_decider_is_known(driver: Driver) -> None:
    driver.world.mail.confirmed = ("a@example.com", "b@example.com")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.until_asked(incident)
    first, second = driver.links()
    assert first != second
    assert driver.answer(second)["statusCode"] == 200
    (row,) = driver.world.approvals.rows.values()
    assert (row.answer, row.decided_by) == (Answer.APPROVE, "b@example.com")
    assert driver.answer(first, "release")["statusCode"] == 410  # one decision, whoever was faster


def test_the_decision_is_told_to_everybody_once(driver: Driver) -> None:
    driver.world.mail.confirmed = ("a@example.com", "b@example.com")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.until_asked(incident)
    driver.answer(driver.links()[1], reason="three GPUs agree")
    driver.world.mail.sent.clear()
    for _ in range(2):
        assert driver.step("request_approval", incident, answered=True)["outcome"] == "approved"
    assert [to for to, _, _ in driver.world.mail.sent] == ["a@example.com", "b@example.com"]
    text = " ".join(driver.world.mail.sent[0][2].split())
    assert "b@example.com answered 'approve' to: Replace node" in text
    assert "Reason: three GPUs agree" in text


def test_t11_a_callback_without_a_recorded_answer_goes_to_a_human(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.until_asked(incident)
    assert driver.step("request_approval", incident, answered=True)["outcome"] == "human"
    (row,) = driver.world.approvals.rows.values()
    assert row.state is ApprovalState.PENDING


def test_links_can_be_switched_off(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    link = driver.until_asked(incident)
    driver.setting("APPROVAL_LINKS", "false")
    assert driver.browse(link)["statusCode"] == 404 and driver.answer(link)["statusCode"] == 404
    (second,) = driver.alarm(builder.alarm(builder.culprit(0)))
    assert driver.until_asked(second) == link  # no new one was mailed
    assert f"/incidents/{second.id}/decision" in driver.world.mail.sent[-1][2]
    assert len(driver.world.approvals.links) == 1


# a reminder at half time


def half_time(driver: Driver) -> Incident:
    driver.world.mail.confirmed = ("a@example.com", "b@example.com")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.until_asked(incident)
    driver.world.clock.at += timedelta(seconds=PATIENCE / 2)
    return incident


def test_the_first_wait_is_half_as_long_as_the_question_stands(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.play(incident, "locate", stop="decide")
    assert driver.step("decide", incident)["patience_seconds"] == PATIENCE / 2


def test_at_half_time_everybody_is_reminded_once_and_the_wait_goes_on(driver: Driver) -> None:
    incident = half_time(driver)
    first = driver.links()
    driver.world.mail.sent.clear()
    answer = driver.step("request_approval", incident, timed_out=True)
    assert (answer["outcome"], answer["patience_seconds"]) == ("reminded", PATIENCE / 2)
    assert [to for to, _, _ in driver.world.mail.sent] == ["a@example.com", "b@example.com"]
    assert all("reminder" in subject for _, subject, _ in driver.world.mail.sent)
    assert not set(first) & set(driver.links())
    assert driver.step("request_approval", incident, timed_out=True)["outcome"] == "reminded"  # a retry
    assert len(driver.world.mail.sent) == 2
    assert driver.ask(incident, "token-2") == ""  # nobody is asked a second time


@pytest.mark.parametrize("which", ["of the question", "of the reminder"])
def test_links_of_question_and_reminder_decide_once_together(driver: Driver, which: str) -> None:
    incident = half_time(driver)
    old = driver.links()[0]
    driver.step("request_approval", incident, timed_out=True)
    new = driver.links()[-1]
    driver.ask(incident, "token-2")
    used, other = (old, new) if which == "of the question" else (new, old)
    assert driver.answer(used)["statusCode"] == 200
    assert driver.world.callback.answers[-1][0] == "token-2"  # the one that waits now
    assert driver.answer(other, "release")["statusCode"] == 410


def test_after_the_reminder_silence_is_still_no_consent(driver: Driver) -> None:
    incident = half_time(driver)
    assert driver.play(incident, "approval_timed_out") == "closed"
    assert driver.world.incidents.get(incident.id).state is State.EXPIRED


def test_a_reminder_that_cannot_be_sent_ends_nothing(driver: Driver) -> None:
    incident = half_time(driver)

    def broken(*_: str) -> None:
        raise RefusedError("Publish: no", "Denied")

    driver.world.mail.send = broken  # type: ignore[method-assign]
    answer = driver.step("request_approval", incident, timed_out=True)
    assert answer["outcome"] == "reminded" and "could not be sent" in answer["story"]


def test_an_answer_that_came_before_the_reminder_is_taken_and_nobody_is_reminded(driver: Driver) -> None:
    incident = half_time(driver)
    driver.world.callback.waiting.clear()
    driver.answer(driver.links()[0])
    driver.world.mail.sent.clear()
    assert driver.step("request_approval", incident, timed_out=True)["outcome"] == "approved"
    assert not [s for _, s, _ in driver.world.mail.sent if "reminder" in s]
