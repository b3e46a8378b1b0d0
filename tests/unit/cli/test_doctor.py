"""`sdc doctor`: each check red and green, and never green without having looked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lambdas.domain.telemetry import Measure
from training_agent.cli import doctor, doctor_job
from training_agent.cli.checks import Check, Status
from training_agent.cli.deployment import Deployment
from training_agent.cli.doctor import DCGM_METRICS, Subject, examine
from training_agent.cli.failures import CannotAskError

from .fakes import FakeAws

OUTPUTS = {
    name: name.lower()
    for name in (
        "EventBusName", "StateMachineArn", "ControlTableName", "QuarantineTableName", "ApprovalTopicArn",
        "ClusterName", "TelemetryUrl",
    )
}  # fmt: skip
READY: dict[tuple[str, str], Any] = {
    ("sts", "get_caller_identity"): {"Arn": "arn:aws:sts::1:assumed-role/Ops/alex"},
    ("dynamodb", "get_item"): {},
    ("events", "describe_event_bus"): {},
    ("stepfunctions", "describe_state_machine"): {"status": "ACTIVE"},
    ("sns", "list_subscriptions_by_topic"): {
        "Subscriptions": [{"Protocol": "email", "Endpoint": "a@b.c", "SubscriptionArn": "arn:aws:sns:x"}]
    },
    ("sagemaker", "describe_cluster"): {
        "ClusterStatus": "InService",
        "NodeRecovery": "None",
        "InstanceGroups": [{"InstanceGroupName": "gpu", "OnStartDeepHealthChecks": ["InstanceStress"]}],
    },
}
SERIES = {"data": {"result": [{"metric": {"__name__": m}} for m in DCGM_METRICS]}}


def look(calls: dict[tuple[str, str], Any], *, env: Any = None, telemetry: Any = SERIES) -> dict[str, Check]:
    aws = FakeAws({**READY, **calls}, telemetry=telemetry)
    subject = Subject(env or {}, aws, lambda: Deployment("stack t", OUTPUTS))
    found = examine(subject, ("account", "people", "cluster"), (), lambda text: None)
    return {c.name: c for c in found}


def test_everything_ready_has_no_failed_check() -> None:
    found = look({})
    assert {c.status for c in found.values()} == {Status.OK, Status.NOTE}
    assert "stress-tested" in found["on-start-checks"].found
    assert "only labels" in found["node-recovery"].found


@pytest.mark.parametrize(
    ("calls", "name", "says"),
    [
        ({("sts", "get_caller_identity"): "ExpiredToken"}, "credentials", "Log in"),
        ({("dynamodb", "get_item"): "AccessDeniedException"}, "quarantine", "dynamodb:GetItem"),
        ({("stepfunctions", "describe_state_machine"): {"status": "DELETING"}}, "workflow", "Deploy"),
        ({("events", "describe_event_bus"): "ResourceNotFoundException"}, "pipeline", "Check the name"),
        ({("sns", "list_subscriptions_by_topic"): {"Subscriptions": []}}, "approvers", "approvers"),
        (
            {
                ("sns", "list_subscriptions_by_topic"): {
                    "Subscriptions": [
                        {"Protocol": "email", "Endpoint": "a@b.c", "SubscriptionArn": "PendingConfirmation"}
                    ]
                }
            },
            "approvers",
            "confirms",
        ),
        ({("sagemaker", "describe_cluster"): "ResourceNotFound"}, "cluster", "Check the name"),
    ],
)  # fmt: skip
def test_what_is_not_ready_fails_with_a_remedy(calls: Any, name: str, says: str) -> None:
    check = look(calls)[name]
    assert check.status is Status.FAILED
    assert says in check.remedy


def test_missing_advanced_dcgm_metrics_are_named() -> None:
    check = look({}, telemetry={"data": {"result": SERIES["data"]["result"][:2]}})["telemetry"]
    assert check.status is Status.FAILED
    assert "DCGM_FI_DEV_PCIE_REPLAY_COUNTER" in check.found and "advanced" in check.remedy


def test_doctor_asks_for_the_metrics_that_confirm_reads() -> None:
    assert {m.value for m in Measure} == set(DCGM_METRICS)


def test_a_job_that_publishes_on_another_bus_is_found_out() -> None:
    check = look({}, env={"SDC_EVENT_BUS": "elsewhere"})["event-bus"]
    assert check.status is Status.FAILED and "elsewhere" in check.found


def test_without_a_deployment_no_check_is_green() -> None:
    def none() -> Deployment:
        raise CannotAskError("No deployment is named.", "Give --stack NAME.")

    subject = Subject({}, FakeAws(READY), none)
    found = list(examine(subject, ("account", "people", "cluster"), ("credentials",), lambda text: None))
    assert {c.status for c in found if c.name != "credentials"} == {Status.FAILED}


def test_a_shared_folder_is_told_from_a_node_local_one(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    real = os.path.realpath(tmp_path)
    env = {"SDC_SHARED_DIR": str(tmp_path)}
    for kind, status in (("lustre", Status.OK), ("ext4", Status.FAILED), ("overlay", Status.FAILED)):
        mounts.write_text(f"x / ext4 rw 0 0\nx {real} {kind} rw 0 0\n")
        assert doctor_job.shared_folder(env, mounts).status is status
    assert doctor_job.shared_folder(env, tmp_path / "none").status is Status.NOTE
    assert doctor_job.shared_folder({}, mounts).status is Status.FAILED
    assert doctor_job.shared_folder({"SDC_SHARED_DIR": str(mounts)}, mounts).status is Status.FAILED
    assert not list(tmp_path.glob(".sdc-doctor*"))


@pytest.mark.parametrize(
    ("node", "status"),
    [("", Status.FAILED), ("worker-1", Status.FAILED), ("hyperpod-i-0123456789abcdef0", Status.OK)],
)
def test_a_node_must_name_an_instance(node: str, status: Status) -> None:
    assert doctor_job.node_name({"NODE_NAME": node} if node else {}).status is status


def test_every_failed_check_of_the_job_has_a_remedy() -> None:
    subject = Subject({}, FakeAws(), lambda: Deployment("t"))
    failed = [c for c in doctor.job(subject) if c.status is Status.FAILED]
    assert [c.name for c in failed] == ["node-name", "job-identity", "shared-folder"]
    assert all(c.remedy for c in failed)
