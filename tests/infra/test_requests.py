"""Each request of the handlers is allowed, each permission is asked for, and the must-nots are denied.

The recording is of the workflow tests (`tests/deploy/recording.py`); `make validate` asks the same of a
simulator that is not ours.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import botocore.session
import pytest
from botocore.validate import ParamValidator

from emulator.iam import Request, allowing, requests_of
from tests.deploy import deployed, recording
from tests.deploy.must_not import MUST_NOT, TRAINING
from tests.infra.reading import as_list

RECORDED = recording.load()
BY_LAMBDA = "the Lambda service calls it with the function's role"
UNUSED = {  # allowed, and asked for by no handler in the workflow tests: function, action -> reason
    ("Resume", "dynamodb:PutItem"): "the breaker, over a replacement whose end was not seen",
    ("Reconcile", "dynamodb:PutItem"): "the breaker, over an abandoned replacement whose end was not seen",
    (
        "Resume",
        "dynamodb:GetItem",
    ): "the quarantine row, when a release met another holder and was not the last",
    ("Locate", "dynamodb:DeleteItem"): "gives back the gates it took when another incident holds one of them",
    ("*", "logs:CreateLogStream"): BY_LAMBDA,
    ("*", "logs:PutLogEvents"): BY_LAMBDA,
    ("*", "sqs:*"): BY_LAMBDA + ": it polls the queue, or sends the event of a failed call",
    ("Confirm", "dynamodb:GetItem"): "the approval of a deep check, under NodeRecovery Automatic",
    ("Verify", "eks:DescribeCluster"): "pods that wait for a node, on groups that Karpenter scales",
    ("Verify", "dynamodb:PutItem"): "opens the breaker when a replacement never ends",
    ("ReplaceByLabel", "dynamodb:DeleteItem"): "frees the lock when HyperPod refused",
    ("Workflow", "*"): "Step Functions calls it: the functions of the definition, its log and its trace",
    (TRAINING, "*"): "the agent calls it, from the training pods",
}


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, deployed.Statements]:
    return deployed.roles(tmp_path_factory.mktemp("assemblies"))


def name_of(recorded: recording.Recorded) -> str:
    return recorded.function.removesuffix("Function")


def test_every_function_is_recorded(roles: dict[str, deployed.Statements]) -> None:
    assert {name_of(r) for r in RECORDED} == roles.keys() - {"Workflow", TRAINING}


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: f"{r.function}-{r.request.action}")
def test_what_a_handler_asks_for_its_role_allows(
    roles: dict[str, deployed.Statements], recorded: recording.Recorded
) -> None:
    assert allowing(roles[name_of(recorded)], recorded.request) is not None, recorded.request


def test_the_recorded_parameters_are_what_botocore_s_models_take() -> None:
    session = botocore.session.get_session()
    for recorded in RECORDED:
        model = session.get_service_model(recorded.service).operation_model(recorded.operation)
        report = ParamValidator().validate(dict(recorded.parameters), model.input_shape)
        assert not report.has_errors(), (recorded.key, report.generate_report())


def test_the_recorded_parameters_ask_for_the_recorded_permissions() -> None:
    """The request is derived from the parameters, not noted beside them."""
    session = botocore.session.get_session()
    for recorded in RECORDED:
        signing = session.get_service_model(recorded.service).signing_name
        asked = {r.action for r in requests_of(signing, recorded.operation, recorded.parameters)}
        assert recorded.request.action in asked


def test_each_permission_is_used_or_has_a_reason(roles: dict[str, deployed.Statements]) -> None:
    used = {(name_of(r), r.request.action, r.request.resource) for r in RECORDED}
    idle = [
        (name, action, resource)
        for name, statements in roles.items()
        for statement in statements
        for action in as_list(statement["Action"])
        for resource in as_list(statement["Resource"])
        if not any(n == name and a == action and fnmatchcase(r, resource) for n, a, r in used)
    ]
    without = [
        (name, action, resource)
        for name, action, resource in idle
        if not any(fnmatchcase(name, n) and fnmatchcase(action, a) for n, a in UNUSED)
    ]
    assert without == []
    for n, a in UNUSED:
        assert any(fnmatchcase(name, n) and fnmatchcase(action, a) for name, action, _ in idle), (n, a)


@pytest.mark.parametrize(("function", "request_"), MUST_NOT, ids=lambda v: getattr(v, "action", v))
def test_what_no_role_may_do_is_denied(
    roles: dict[str, deployed.Statements], function: str, request_: Request
) -> None:
    assert allowing(roles[function], request_) is None
