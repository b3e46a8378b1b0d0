"""What the reconciler asks of Step Functions and CloudWatch, by botocore's stubber. No sockets."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lambdas.adapters.cloudwatch import CloudWatch
from lambdas.adapters.eventbus import EventBus
from lambdas.adapters.stepfunctions import Executions
from lambdas.domain.errors import RefusedError, UnavailableError
from training_agent.contract import Metric

from .conftest import Stubs

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
MACHINE = "arn:aws:states:us-east-1:123456789012:stateMachine:IncidentWorkflow-1"


def test_an_execution_is_found_by_its_name(stub: Stubs) -> None:
    arn = "arn:aws:states:us-east-1:123456789012:execution:IncidentWorkflow-1:abc-1"
    answer = {"executionArn": arn, "stateMachineArn": MACHINE, "status": "TIMED_OUT", "startDate": NOW}
    stub("stepfunctions").add_response("describe_execution", answer, {"executionArn": arn})
    assert Executions(MACHINE).status("abc-1") == "TIMED_OUT"


def test_an_execution_that_never_was_is_none_and_a_refusal_is_not(stub: Stubs) -> None:
    states = stub("stepfunctions")
    states.add_client_error("describe_execution", "ExecutionDoesNotExist")
    states.add_client_error("describe_execution", "AccessDeniedException")
    assert Executions(MACHINE).status("abc-1") is None
    with pytest.raises(RefusedError):
        Executions(MACHINE).status("abc-1")


def test_numbers_carry_the_cluster_and_nothing_else(stub: Stubs) -> None:
    expected = {
        "Namespace": "TrainingSDC",
        "MetricData": [
            {"MetricName": "breaker_open", "Dimensions": [{"Name": "Cluster", "Value": "demo"}], "Value": 1.0}
        ],
    }
    stub("cloudwatch").add_response("put_metric_data", {}, expected)
    CloudWatch("demo").put({"breaker_open": 1})


def test_heartbeats_are_read_over_all_pages_and_by_job(stub: Stubs) -> None:
    numbers = stub("cloudwatch")
    minutes = [NOW - timedelta(minutes=n) for n in range(4)]
    seen = {"Id": "q1", "Timestamps": minutes, "Values": [0.0, 3.0, 0.0, 1.0]}
    numbers.add_response(
        "get_metric_data",
        {"MetricDataResults": [{"Id": "q0", "Timestamps": [], "Values": []}], "NextToken": "more"},
    )
    numbers.add_response("get_metric_data", {"MetricDataResults": [seen]})
    since = NOW - timedelta(minutes=10)
    found = CloudWatch("demo").jobs_with(Metric.HEARTBEAT, ("silent", "alive"), since, NOW)
    assert found == {"alive": minutes[1]}


def test_whether_anybody_put_a_metric_is_asked_of_the_clusters_own_series(stub: Stubs) -> None:
    numbers, of_cluster = stub("cloudwatch"), [{"Name": "Cluster", "Value": "demo"}]
    metrics = (Metric.REPLAY_MISMATCH, Metric.NONFINITE_GRAD)
    queries = [
        {
            "Id": f"q{i}",
            "MetricStat": {
                "Metric": {
                    "Namespace": "TrainingSDC", "MetricName": metric.value, "Dimensions": of_cluster,
                },
                "Period": 60,
                "Stat": "Sum",
            },
            "ReturnData": True,
        }
        for i, metric in enumerate(metrics)
    ]  # fmt: skip
    since = NOW - timedelta(minutes=20)
    answer = {"MetricDataResults": [
        {"Id": f"q{i}", "Timestamps": [NOW], "Values": [value]} for i, value in enumerate((0.0, 2.0))
    ]}  # fmt: skip
    expected = {"MetricDataQueries": queries, "StartTime": since, "EndTime": NOW}
    numbers.add_response("get_metric_data", answer, expected)
    assert CloudWatch("demo").above_zero(metrics, since, NOW) == {Metric.NONFINITE_GRAD}


def test_a_drill_that_the_bus_did_not_take_is_an_error(stub: Stubs) -> None:
    failed = {"FailedEntryCount": 1, "Entries": [{"ErrorCode": "InternalFailure"}]}
    stub("events").add_response("put_events", failed)
    with pytest.raises(UnavailableError):
        EventBus("bus").alarm("{}")
