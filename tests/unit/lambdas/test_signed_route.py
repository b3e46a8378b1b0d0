"""The signed route: the same decision by a caller whom IAM knows, and the breaker's way to be closed."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from lambdas import approval_api
from lambdas.domain.approval import Action, Answer, ApprovalState, Fact
from lambdas.domain.incident import Incident, State
from tests.events import builder
from training_agent.contract import Verdict

from .drive import CONTEXT, Driver
from .fakes import START

SUSPECT = builder.INSTANCES[1]
CALLER = "arn:aws:sts::123456789012:assumed-role/Operators/alex"


def call(
    route: str, incident_id: str = "", body: Any = None, caller: str | None = CALLER
) -> tuple[int, dict[str, Any]]:
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route,
        "pathParameters": {"incident_id": incident_id} if incident_id else None,
        "requestContext": {"authorizer": {"iam": {"userArn": caller}}} if caller else {},
        "headers": {"x-forwarded-user": "arn:aws:iam::1:user/forged"},
        "isBase64Encoded": body is not None,
    }
    if body is not None:
        event["body"] = base64.b64encode(json.dumps(body).encode()).decode()
    answer = approval_api.handle(event, CONTEXT)
    assert answer["headers"]["cache-control"] == "no-store"
    return answer["statusCode"], json.loads(answer["body"])


def decision(incident: Incident, **body: str) -> tuple[int, dict[str, Any]]:
    """Answer the incident's first question, of a replacement, unless `body` says otherwise."""
    named = {"question": f"{incident.id}-1", "action": "replace"}
    given = {"decision": "approve", "reason": "seen the evidence", **named, **body}
    return call("POST /incidents/{incident_id}/decision", incident.id, given)


@pytest.fixture
def asked(driver: Driver) -> Incident:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.until_asked(incident)
    return incident


def test_a_signed_decision_records_the_caller(driver: Driver, asked: Incident) -> None:
    status, answer = decision(asked)
    assert (status, answer["result"]) == (200, "delivered")
    (row,) = driver.world.approvals.rows.values()
    assert (row.answer, row.decided_by, row.state) == (Answer.APPROVE, CALLER, ApprovalState.DELIVERED)
    assert driver.step("replace", asked)["outcome"] == "replaced"


def test_who_decides_by_the_route_sees_all_facts_also_those_of_one_name(
    driver: Driver, asked: Incident
) -> None:
    """Two findings are two lines "Evidence", and of two audits the one that failed is not to be hidden."""
    (question,) = driver.world.approvals.rows
    row = driver.world.approvals.rows[question]
    audits = (Fact("Targeted audit", "computed wrong again"), Fact("Targeted audit", "passed"))
    driver.world.approvals.rows[question] = replace(row, facts=(*row.facts, *audits))
    _, answer = call("GET /incidents/{incident_id}", asked.id)
    assert answer["approval"]["facts"]["Targeted audit"] == "computed wrong again; passed"


def test_a_signed_decision_counts_once_and_beside_the_link(driver: Driver, asked: Incident) -> None:
    assert driver.answer(driver.links()[0], "keep")["statusCode"] == 200
    status, answer = decision(asked)
    assert status == 409 and answer["approval"]["answer"] == "keep"


@pytest.mark.parametrize(
    "body",
    [
        {"decision": "destroy"},
        {"decision": ""},
        {"reason": "  "},
        {"instance_id": builder.INSTANCES[0]},
        {"question": ""},
        {"action": ""},
    ],
)
def test_an_incomplete_request_decides_nothing(driver: Driver, asked: Incident, body: dict[str, str]) -> None:
    assert decision(asked, **body)[0] == 400
    (row,) = driver.world.approvals.rows.values()
    assert row.state is ApprovalState.PENDING


@pytest.mark.parametrize("body", [{"question": "another-1"}, {"action": "deep_check"}])
def test_an_answer_to_another_question_decides_nothing(
    driver: Driver, asked: Incident, body: dict[str, str]
) -> None:
    status, answer = decision(asked, **body)
    assert status == 409 and answer["approval"]["question"] == f"{asked.id}-1"
    (row,) = driver.world.approvals.rows.values()
    assert row.state is ApprovalState.PENDING and not driver.world.callback.answers


@pytest.mark.parametrize(
    ("question", "action"), [("{}-1", "deep_check"), ("{}-1", "replace"), ("{}-2", "deep_check")]
)
def test_a_signed_yes_to_the_check_is_none_to_the_replacement_that_is_asked_next(
    driver: Driver, question: str, action: str
) -> None:
    """Both are of one instance; between two mails, or between showing and sending, the question changes."""
    cluster = driver.world.cluster
    cluster.facts = replace(cluster.facts, node_recovery="Automatic")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.TRANSIENT)))
    driver.until_asked(incident)
    driver.alarm(builder.alarm(builder.culprit(3), step=40))
    (second,) = (i for i in driver.world.incidents.rows.values() if i.id != incident.id)
    assert driver.step("locate", second)["outcome"] == "joined"
    assert decision(incident, action="deep_check")[0] == 200
    driver.play(incident, "approval_answered", stop="request_approval")
    driver.ask(incident, "second")
    asked = driver.world.incidents.get(incident.id)
    assert (asked.asking, asked.approval_id) == (Action.REPLACE, f"{incident.id}-2")
    assert decision(incident, question=question.format(incident.id), action=action)[0] == 409
    assert driver.world.approvals.rows[f"{incident.id}-2"].state is ApprovalState.PENDING
    assert decision(incident, question=f"{incident.id}-2")[0] == 200


def test_without_a_caller_from_the_authorizer_nothing_is_answered(driver: Driver, asked: Incident) -> None:
    for route in ("GET /incidents", "GET /incidents/{incident_id}", "POST /breaker"):
        assert call(route, asked.id, {"reason": "x"}, caller=None)[0] == 403
    assert call("POST /incidents/{incident_id}/decision", asked.id, {}, caller="")[0] == 403


def test_get_shows_and_never_changes(driver: Driver, asked: Incident) -> None:
    before = repr((driver.world.approvals.__dict__, driver.world.incidents.rows))
    status, listed = call("GET /incidents")
    assert status == 200 and [i["incident_id"] for i in listed["incidents"]] == [asked.id]
    status, shown = call("GET /incidents/{incident_id}", asked.id)
    assert shown["approval"]["facts"]["Instance"] == SUSPECT
    assert shown["approval"]["answers"] == ["approve", "keep", "release"]
    assert "token" not in json.dumps(shown)
    assert repr((driver.world.approvals.__dict__, driver.world.incidents.rows)) == before


def test_an_unknown_incident_is_not_found(driver: Driver) -> None:
    assert call("GET /incidents/{incident_id}", "nobody")[0] == 404
    assert call("POST /incidents/{incident_id}/decision", "nobody", {})[0] == 404
    assert call("DELETE /incidents")[0] == 404


def test_it_works_with_links_switched_off(driver: Driver) -> None:
    driver.setting("APPROVAL_LINKS", "false")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.play(incident, "locate", stop="request_approval")
    driver.world.callback.waiting.add("token")
    driver.step("request_approval", incident, task_token="token")
    assert not driver.links()
    assert decision(incident, decision="keep")[0] == 200
    driver.play(incident, "approval_answered")
    assert driver.world.incidents.get(incident.id).state is State.REJECTED_KEPT


def test_the_breaker_is_closed_by_a_known_caller_with_a_reason(driver: Driver) -> None:
    assert call("POST /breaker", body={"reason": "x"})[0] == 409
    driver.world.controls.open_breaker("over budget", "x", START)
    assert call("POST /breaker", body={"reason": " "})[0] == 400
    assert call("POST /breaker", body=["reason"])[0] == 400
    assert driver.world.controls.breaker().open
    assert call("POST /breaker", body={"reason": "two bad nodes, both seen"})[0] == 200
    assert driver.world.controls.breaker_closed_by == [(CALLER, "two bad nodes, both seen")]
