"""The agent's calls through real boto3 clients, validated by botocore, answered by moto in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from training_agent.cli.aws import Aws
from training_agent.clients import boto3_client
from training_agent.contract import Alarm, decode
from training_agent.quarantine import entries_of
from training_agent.quarantine_table import QuarantineTable, TableUnreadableError
from training_agent.report import StepChecks, job_reporter
from training_agent.spool import Spool

from .builders import a_registration, an_alarm, instance, settings_of


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield


def test_alarm_and_metrics_arrive(tmp_path: Path) -> None:
    events, queues = boto3.client("events"), boto3.client("sqs")
    events.create_event_bus(Name="sdc-bus")
    queue = queues.create_queue(QueueName="alarms")["QueueUrl"]
    arn = queues.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    pattern = json.dumps({"source": ["training.sdc"], "detail-type": ["SDC Alarm"]})
    events.put_rule(Name="alarms", EventBusName="sdc-bus", EventPattern=pattern)
    events.put_targets(Rule="alarms", EventBusName="sdc-bus", Targets=[{"Id": "queue", "Arn": arn}])

    reporter = job_reporter(settings_of(tmp_path), 0)
    reporter.started(a_registration())
    reporter.progress(10, StepChecks(True, True, 10, 10))
    reporter.alarm(an_alarm())
    reporter.close()

    (message,) = queues.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
    assert decode(Alarm, json.dumps(json.loads(message["Body"])["detail"])) == an_alarm()
    assert Spool(tmp_path / "spool").unsent() == ()
    metrics = boto3.client("cloudwatch").list_metrics(Namespace="TrainingSDC")["Metrics"]
    assert {m["MetricName"] for m in metrics} >= {
        "sdc_nonfinite_grad",
        "sdc_replay_mismatch",
        "sdc_divergent_tensors",
        "sdc_reduction_mismatch",
        "sdc_heartbeat",
        "sdc_audits_done",
        "sdc_audits_skipped",
        "sdc_last_pass_age_steps",
        "sdc_overhead_percent",
        "sdc_agent_dropped",
    }


def test_a_bus_that_does_not_exist_leaves_the_alarm_in_the_spool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_reporter(settings_of(tmp_path, event_bus="missing"), 0).alarm(an_alarm())
    assert Spool(tmp_path / "spool").unsent() == (an_alarm(),)
    assert "Not everything reaches AWS" in capsys.readouterr().out


def test_the_quarantine_table_is_read_row_by_row() -> None:
    client = boto3.client("dynamodb")
    client.create_table(
        TableName="quarantine",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "subject", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "subject", "KeyType": "HASH"}],
    )
    (entry,) = entries_of(an_alarm())
    held, released = f"instance#{instance(0)}", "gpu#GPU-1"
    client.put_item(TableName="quarantine", Item={"subject": {"S": held}, "state": {"S": "held"}})
    client.put_item(
        TableName="quarantine",
        Item={
            "subject": {"S": released},
            "state": {"S": "released"},
            "delivery_key": {"S": entry.delivery_key},
        },
    )
    client.put_item(TableName="quarantine", Item={"subject": {"S": "mode"}, "mode": {"S": "contain"}})
    table = QuarantineTable("quarantine", boto3_client)
    assert str(table.mode()) == "Mode.CONTAIN"
    rows = table.rows([held, released, "job#none"])
    assert set(rows) == {held, released}
    assert rows[held].held
    assert rows[released].releases(entry)


def test_a_missing_table_is_unreadable_not_empty() -> None:
    with pytest.raises(TableUnreadableError, match="quarantine table gone"):
        QuarantineTable("gone", boto3_client).mode()


def test_the_region_that_the_example_job_sets_is_the_one_that_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """boto3 reads AWS_DEFAULT_REGION alone: with AWS_REGION nothing was ever published."""
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert boto3_client("events").meta.region_name == "eu-north-1"
    assert Aws().client("events").meta.region_name == "eu-north-1"
    assert Aws("us-west-2").client("events").meta.region_name == "us-west-2"
