"""What people meet: the API's routes, who may call them, mails to approvers, the dashboard."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.infra.reading import of_type

Resources = dict[str, Any]


def test_only_the_page_is_public(resources: Resources) -> None:
    """GET, HEAD and POST behind the mailed link; everything else asks IAM."""
    routes = of_type(resources, "AWS::ApiGatewayV2::Route").values()
    public = {r["RouteKey"] for r in routes if r.get("AuthorizationType", "NONE") != "AWS_IAM"}
    assert public == {"GET /review/{secret}", "HEAD /review/{secret}", "POST /review/{secret}"}
    assert {r["RouteKey"] for r in routes} - public == {
        "GET /incidents", "GET /incidents/{incident_id}", "POST /incidents/{incident_id}/decision",
        "POST /incidents/{incident_id}/release", "POST /breaker",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("begins", "function"),
    [
        ("GET /review", "ApprovalShowFunction"),
        ("HEAD /review", "ApprovalShowFunction"),
        ("POST /review", "ApprovalDecideFunction"),
        ("GET /incidents", "ApprovalApiFunction"),
        ("POST /incidents", "ApprovalApiFunction"),
        ("POST /breaker", "ApprovalApiFunction"),
    ],
)
def test_a_route_leads_to_its_function(resources: Resources, begins: str, function: str) -> None:
    integrations = of_type(resources, "AWS::ApiGatewayV2::Integration")
    found = [
        r for r in of_type(resources, "AWS::ApiGatewayV2::Route").values() if r["RouteKey"].startswith(begins)
    ]
    assert found
    for route in found:
        behind = integrations[route["Target"]["Fn::Join"][1][1]["Ref"]]
        assert function in json.dumps(behind)
        assert behind["PayloadFormatVersion"] == "2.0"


def test_people_who_sign_may_call_these_routes_and_nothing_else(resources: Resources) -> None:
    (statement,) = resources["SignedApproverPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Action"] == "execute-api:Invoke"
    reached = {json.dumps(arn).split("$default/")[1].rstrip('"]}') for arn in statement["Resource"]}
    assert reached == {
        "GET/incidents",
        "GET/incidents/*",
        "POST/incidents/*/decision",
        "POST/incidents/*/release",
        "POST/breaker",
    }


def test_the_access_log_holds_no_link(resources: Resources) -> None:
    (stage,) = of_type(resources, "AWS::ApiGatewayV2::Stage").values()
    logged = set(json.loads(stage["AccessLogSettings"]["Format"]).values())
    assert not [name for name in logged if "path" in name.lower() or "query" in name.lower()]
    assert stage["DefaultRouteSettings"]["ThrottlingRateLimit"] <= 10


def test_an_approver_gets_only_mails_addressed_to_them(resources: Resources) -> None:
    (subscription,) = (
        item
        for item in of_type(resources, "AWS::SNS::Subscription").values()
        if item["TopicArn"] == {"Ref": "ApprovalTopic"}
    )
    assert subscription["Protocol"] == "email"
    assert subscription["FilterPolicy"] == {"approver": [subscription["Endpoint"]]}
