"""A deep health check that another one replaced: told from others by the moment in which it was asked for."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from lambdas.adapters.sagemaker import HyperPod
from lambdas.domain.errors import ThrottledError, UnavailableError
from lambdas.domain.incident import CheckResult, Incident, State
from lambdas.steps.confirm import CHECK_LABEL
from tests.events import builder
from training_agent.contract import Verdict

from .conftest import Stubs
from .drive import Driver

ASKED = datetime(2026, 1, 1, tzinfo=timezone.utc)
OURS, OTHER = builder.INSTANCES[1], builder.INSTANCES[0]
NODE = f"hyperpod-{OURS}"
GROUP = "gpu"
Told = tuple[str, int, tuple[str, ...]]  # status, seconds after we asked, instances (none: the whole group)


def hyperpod_says(stub: Stubs, *told: Told, pages: int = 1, group: str = GROUP) -> None:
    """Operations, oldest first, and what each is about, as far as it is asked for."""
    listed = [
        {
            "OperationId": f"operation-{n:04d}",
            "ClusterArn": "arn:aws:sagemaker:us-east-1:123456789012:cluster/demo00000000",
            "Type": "DeepHealthCheck",
            "Status": status,
            "CreationTime": ASKED + timedelta(seconds=after),
        }
        for n, (status, after, _) in enumerate(told)
    ]
    sagemaker = stub("sagemaker")
    size = -(-len(listed) // pages) or 1
    asked = {
        "ClusterName": "demo", "Type": "DeepHealthCheck", "SortBy": "CreationTime", "SortOrder": "Ascending",
        "MaxResults": 100, "CreationTimeAfter": ASKED - timedelta(seconds=5),
    }  # fmt: skip
    for page in range(pages):
        operations = listed[page * size : (page + 1) * size]
        more: dict[str, Any] = {"NextToken": str(page + 1)} if page + 1 < pages else {}
        token = {"NextToken": str(page)} if page else {}
        sagemaker.add_response(
            "list_cluster_operations", {"ClusterOperationSummaries": operations, **more}, {**asked, **token}
        )
        for operation in operations:
            instances = told[listed.index(operation)][2]
            about: dict[str, Any] = {"InstanceGroupName": group, "DeepHealthChecks": ["InstanceStress"]}
            details = [about | ({"InstanceIds": list(instances)} if instances else {})]
            sagemaker.add_response(
                "describe_cluster_operation",
                {**operation, "DeepHealthCheckDetails": details},
                {"ClusterName": "demo", "OperationId": operation["OperationId"]},
            )
            if group == GROUP and (OURS in instances or not instances):
                return  # ours: nobody looks further


@pytest.mark.parametrize(
    ("told", "pages", "superseded"),
    [
        ([("Superseded", 1, (OURS,))], 1, True),
        ([("Done", 1, (OURS,))], 1, False),
        ([("InProgress", 1, (OURS,))], 1, False),
        ([("Done", 1, (OURS,)), ("Superseded", 600, (OTHER,))], 1, False),
        ([("InProgress", 1, (OURS,)), ("Superseded", 600, (OURS,))], 1, False),
        ([("Superseded", 1, (OURS,)), ("InProgress", 600, (OTHER,))], 1, True),
        ([("Superseded", 1, (OURS,)), ("Done", 600, (OURS,))], 1, True),
        ([("Superseded", -2, (OTHER,)), ("Done", 1, (OURS,))], 1, False),
        ([("Done", 1, (OTHER,)), ("Done", 2, (OTHER,)), ("Superseded", 3, (OURS, OTHER))], 3, True),
        ([("Superseded", 1, ())], 1, True),
        ([("Superseded", 1, (OTHER,))], 1, False),
        ([], 1, False),
    ],
    ids=[
        "ours superseded", "ours finished", "ours running",
        "ours older and finished, a foreign one superseded",
        "ours older and running, a later one on the same node superseded",
        "ours superseded, a foreign one newest", "ours superseded by one on the same node",
        "a foreign one just before ours", "ours on the third page", "ours as one of the whole group",
        "only a foreign one", "none",
    ],
)  # fmt: skip
def test_only_our_own_operation_says_that_our_check_was_superseded(
    stub: Stubs, told: list[Told], pages: int, superseded: bool
) -> None:
    hyperpod_says(stub, *told, pages=pages)
    assert HyperPod("demo").check_superseded(GROUP, OURS, ASKED) is superseded


def test_an_operation_of_another_group_is_not_ours(stub: Stubs) -> None:
    hyperpod_says(stub, ("Superseded", 1, ()), group="cpu")
    assert not HyperPod("demo").check_superseded(GROUP, OURS, ASKED)


def test_an_operation_list_that_is_not_there_tells_nothing(stub: Stubs) -> None:
    stub("sagemaker").add_client_error("list_cluster_operations", "UnknownOperationException")
    assert not HyperPod("demo").check_superseded(GROUP, OURS, ASKED)


@pytest.mark.parametrize(
    ("code", "error"), [("ThrottlingException", ThrottledError), ("ServiceUnavailable", UnavailableError)]
)
def test_an_operation_list_that_does_not_answer_now_is_asked_again(
    stub: Stubs, code: str, error: type[Exception]
) -> None:
    """A check that passed must not count because nobody could say that it was not ours."""
    stub("sagemaker").add_client_error("list_cluster_operations", code)
    with pytest.raises(error):
        HyperPod("demo").check_superseded(GROUP, OURS, ASKED)


@pytest.fixture
def checking(driver: Driver) -> Incident:
    """A transient verdict whose check runs."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.TRANSIENT)))
    driver.play(incident, "locate", stop="confirm")
    assert driver.step("confirm", incident)["outcome"] == "waiting"
    return incident


@pytest.mark.parametrize("label", ["Passed", "Failed"])
def test_the_label_of_the_check_that_took_its_place_neither_exonerates_nor_accuses(
    driver: Driver, checking: Incident, label: str
) -> None:
    """Seen running, and then somebody checked the node for something else: the label is of that check."""
    driver.world.cluster.superseded = True
    assert driver.step("confirm", checking)["outcome"] == "waiting"  # the other one still runs
    driver.world.kubernetes.change(NODE, labels={CHECK_LABEL: label})
    driver.world.cluster.set_status(OURS, "Running")
    assert driver.step("confirm", checking)["outcome"] == "confirmed"
    assert driver.world.incidents.get(checking.id).deep_check.result is CheckResult.SUPERSEDED
    assert driver.step("decide", checking)["outcome"] == "human"
    assert driver.world.kubernetes.nodes[NODE].unschedulable


def test_a_node_that_is_launched_again_under_its_check_is_not_judged_by_it(
    driver: Driver, checking: Incident
) -> None:
    """Rebooted by a person or by HyperPod: whatever passes there is not the node that was accused."""
    member = driver.world.cluster.members[OURS]
    driver.world.cluster.members[OURS] = replace(
        member, status="Running", launch_time="2026-01-01T00:10:20.000000Z"
    )
    driver.world.kubernetes.change(NODE, labels={CHECK_LABEL: "Passed"})
    assert driver.step("confirm", checking)["outcome"] == "human"
    driver.play(checking, "tell_human")
    ended = driver.world.incidents.get(checking.id)
    assert ended.state is State.WORLD_CHANGED and "launched again" in ended.human_reason
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    assert not driver.world.controls.locks
