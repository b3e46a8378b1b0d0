"""A question that is asked no more says so behind its links: a newer one stands, or the node changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lambdas.domain.approval import ApprovalState
from lambdas.domain.errors import UnavailableError
from lambdas.domain.incident import Incident, State
from tests.events import builder
from training_agent.contract import Verdict, console_url

from .drive import Driver
from .looks import look

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"
EXECUTION = "arn:aws:states:us-east-1:123456789012:execution:IncidentWorkflow:abc-1"


@pytest.fixture
def incident(driver: Driver) -> Incident:
    driver.register()
    (opened,) = driver.alarm(builder.alarm(builder.culprit(3)))
    return opened


def page(driver: Driver, link: str) -> str:
    answer = driver.browse(link)
    assert answer["statusCode"] == 410
    return str(answer["body"])


def vanishes(driver: Driver) -> None:
    driver.world.cluster.swap(SUSPECT)


def launched_again(driver: Driver) -> None:
    members = driver.world.cluster.members
    members[SUSPECT] = replace(members[SUSPECT], launch_time="2026-01-01T00:10:20.000000Z")


CHANGES = [vanishes, launched_again]


@pytest.mark.parametrize("changes", CHANGES)
def test_hyperpod_replaced_the_node_while_a_person_was_asked(
    driver: Driver, incident: Incident, changes: Callable[[Driver], None]
) -> None:
    link = driver.until_asked(incident)
    changes(driver)
    look(driver)
    assert "Nothing is asked any more" in page(driver, link)
    assert driver.answer(link)["statusCode"] == 410
    assert [token for token, _ in driver.world.callback.answers] == [f"token-{incident.id}"]
    driver.play(incident, "approval_answered")
    ended = driver.world.incidents.get(incident.id)
    assert ended.state is State.WORLD_CHANGED and SUSPECT in ended.human_reason
    assert driver.world.cluster.calls == [] and not driver.world.incidents.gates
    assert "the node has changed" in driver.world.mail.sent[-1][1]


def test_a_closed_question_that_was_not_delivered_is_at_the_next_look(
    driver: Driver, incident: Incident
) -> None:
    driver.until_asked(incident)
    vanishes(driver)
    driver.world.callback.error = UnavailableError("no answer")
    look(driver)
    driver.world.callback.error = None
    look(driver)
    assert len(driver.world.callback.answers) == 1
    assert look(driver)["decisions_delivered"] == 0


def test_a_closed_question_counts_when_its_time_is_over_before_it_is_delivered(
    driver: Driver, incident: Incident
) -> None:
    driver.until_asked(incident)
    vanishes(driver)
    driver.world.callback.error = UnavailableError("no answer")
    look(driver)
    driver.play(incident, "approval_timed_out")
    assert driver.world.incidents.get(incident.id).state is State.WORLD_CHANGED


def test_a_node_that_stands_and_a_drill_are_asked_about_on(driver: Driver, incident: Incident) -> None:
    driver.until_asked(incident)
    look(driver)
    rows = driver.world.incidents.rows
    rows[incident.id] = replace(rows[incident.id], synthetic=True)
    vanishes(driver)
    look(driver)
    (row,) = driver.world.approvals.rows.values()
    assert row.state is ApprovalState.PENDING and not driver.world.callback.answers


def test_an_answer_that_was_recorded_first_counts(driver: Driver, incident: Incident) -> None:
    link = driver.until_asked(incident)
    driver.world.callback.error = UnavailableError("no answer")
    driver.answer(link, "keep")
    vanishes(driver)
    driver.world.callback.error = None
    assert look(driver)["decisions_delivered"] == 1
    driver.play(incident, "approval_answered")
    assert driver.world.incidents.get(incident.id).state is State.REJECTED_KEPT


def test_the_links_of_an_older_question_say_that_a_newer_one_stands(
    driver: Driver, incident: Incident
) -> None:
    """Approved, then decided again on new evidence: the old link does not say that the node is replaced."""
    old = driver.until_asked(incident)
    driver.answer(old)
    (second,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.UNATTRIBUTABLE), step=40))
    driver.play(second, "locate")
    rows = driver.world.incidents.rows
    rows[incident.id] = replace(rows[incident.id], state=State.REPLACING).again()
    assert "Already approved" in page(driver, old)
    new = driver.until_asked_from(rows[incident.id], "contain")
    assert new and new != old
    assert "A newer question" in page(driver, old) and driver.browse(new)["statusCode"] == 200
    assert driver.answer(old)["statusCode"] == 410
    states = [row.state for _, row in sorted(driver.world.approvals.rows.items())]
    assert states == [ApprovalState.SUPERSEDED, ApprovalState.PENDING]


def test_a_question_whose_incident_went_to_a_human_is_asked_no_more(
    driver: Driver, incident: Incident
) -> None:
    link = driver.until_asked(incident)
    driver.step("request_approval", incident, notice="human", seen={"Error": "X", "Cause": "y"})
    assert "Nothing is asked any more" in page(driver, link)


def test_mail_and_page_lead_to_the_execution(driver: Driver, incident: Incident) -> None:
    driver.play(incident, "locate", stop="request_approval")
    driver.world.callback.waiting.add("token")
    driver.step("request_approval", incident, task_token="token", execution=EXECUTION)
    url = console_url(EXECUTION)
    assert url.endswith(EXECUTION) and url in driver.world.mail.sent[-1][2]
    assert f'href="{url}"' in driver.browse(driver.links()[-1])["body"]
    driver.step("request_approval", incident, notice="human", seen={}, execution=EXECUTION)
    assert url in driver.world.mail.sent[-1][2]


@pytest.mark.parametrize(
    ("arn", "url"),
    [
        (EXECUTION, "https://us-east-1.console.aws.amazon.com/states/home?region=us-east-1#/v2/executions/"),
        (EXECUTION.replace("aws", "aws-cn", 1), "https://us-east-1.console.amazonaws.cn/states/home"),
        ("", ""),
        ("https://evil.example.com/", ""),
        (EXECUTION + '"><script>', ""),
    ],
)
def test_only_an_executions_arn_becomes_a_link(arn: str, url: str) -> None:
    assert console_url(arn).startswith(url) and bool(console_url(arn)) is bool(url)
