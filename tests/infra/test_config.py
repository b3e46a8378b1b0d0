"""Settings: what is refused, and with which sentence."""

from __future__ import annotations

import json

import pytest

from infra.config import Deployment, SettingsError, read_settings
from infra.synth import read_context
from training_agent.contract import Mode

GOOD = {
    "cluster_name": "prod",
    "cluster_arn": "arn:aws:sagemaker:eu-west-1:111122223333:cluster/abcdefghijkl",
    "eks_cluster_name": "prod-eks",
}


def test_the_first_mode_is_observe() -> None:
    assert read_settings(GOOD).mode is Mode.OBSERVE
    assert read_settings(read_context()).mode is Mode.OBSERVE


def test_strings_of_the_command_line_are_understood() -> None:
    settings = read_settings(
        {
            **GOOD,
            "approvers": "a@example.com, b@example.com",
            "mode": "replace",
            "approval_timeout_seconds": "60",
        }
    )
    assert settings.approvers == ("a@example.com", "b@example.com")
    as_json = read_settings({**GOOD, "approvers": '["a@example.com", "b@example.com"]'})
    assert as_json.approvers == settings.approvers  # JSON in a string was one address with brackets
    assert settings.approval_timeout_seconds == 60


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mod": "observe"}, "mod: there is no such setting"),
        ({"mode": "destroy"}, "mode: Input should be 'observe', 'contain' or 'replace' (got 'destroy')"),
        ({"mode": "replace"}, "name at least one approver"),
        ({"cluster_arn": "arn:aws:sagemaker:eu-west-1:1:cluster/x"}, "cluster_arn: "),
        ({"cluster_name": "-"}, "cluster_name: "),
        ({"approvers": ["nobody"]}, "'nobody' is no e-mail address"),
        ({"approvers": ["a@example.com", "a@example.com"]}, "an address stands in the list twice"),
        ({"training_service_accounts": "training"}, "'training' is no service account such as namespace/"),
        ({"training_service_accounts": ""}, "training_service_accounts: "),
        ({"replacements_per_day": 26}, "replacements_per_day: "),
        ({"vpc_subnet_ids": "subnet-0123456789abcdef0"}, "give both for a private Kubernetes endpoint"),
        ({"vpc_subnet_ids": "x", "vpc_security_group_ids": "sg-01234567"}, "'x' is no id such as subnet-"),
        ({"vpc_subnet_ids": "subnet-01234567", "vpc_security_group_ids": "x"}, "'x' is no id such as sg-"),
        ({"slack_channel_id": "C0123456789"}, "slack_workspace_id and slack_channel_id belong together"),
        ({"alarm_topic_arn": "oncall"}, "alarm_topic_arn: "),
        ({"alarm_topic_arn": "arn:aws:sns:us-east-1:111122223333:x"}, "the cluster's region eu-west-1"),
        (
            {"alarm_topic_arn": "arn:aws:sns:eu-west-1:111122223333:x", "operators": "a@example.com"},
            "leave alarm_topic_arn or them out",
        ),
        ({"replacement_method": "hammer"}, "replacement_method: Input should be 'api' or 'label'"),
        ({"telemetry_workspace": "https://x"}, "telemetry_workspace: "),
        ({"log_retention_days": 0}, "log_retention_days: "),
        (
            {"python_version": "3.9"},
            'python_version: should be a version that Lambda runs, in quotes: "3.11"',
        ),
        ({"python_version": 3.12}, "in quotes"),
        ({"cluster_name": "prod-"}, "cluster_name: should be HyperPod's name of the cluster"),
        ({"cluster_arn": "arn:aws:eks:eu-west-1:111122223333:cluster/prod"}, "of `aws sagemaker describe-"),
        ({"eks_cluster_name": "arn:aws:eks:eu-west-1:1:cluster/prod"}, "neither its ARN nor HyperPod's name"),
        ({"stack_name": "1st"}, "stack_name: should be letters, digits and dashes, beginning with a letter"),
        ({"telemetry_workspace": "arn:aws:aps:x:1:workspace/ws-01234567"}, "should be the id of an Amazon"),
        ({"alarm_topic_arn": "arn:aws:sns:eu-west-1:111122223333:x.fifo"}, "the ARN of a standard SNS topic"),
        ({"slack_workspace_id": "https://x.slack.com", "slack_channel_id": "C01234567"}, "such as T0123456"),
        ({"log_level": "debug"}, "log_level: should be DEBUG, INFO, WARNING or ERROR"),
        ({"approvers": '["a@example.com"'}, "is no JSON list"),
        ({"approvers": "a@example.com;b@example.com"}, "is no e-mail address"),
        ({"approvers": ['"a@example.com"']}, "is no e-mail address"),
        ({"approval_timeout_seconds": "8h"}, "approval_timeout_seconds: Input should be a valid integer"),
        ({"eks_access_entries": "maybe"}, "eks_access_entries: Input should be a valid boolean"),
        ({"architecture": "amd64"}, "architecture: Input should be 'arm64' or 'x86_64' (got 'amd64')"),
        ({"reserved_concurrency": 0}, "reserved_concurrency: Input should be greater than or equal to 1"),
    ],
)
def test_a_bad_setting_is_refused_with_its_name_and_the_remedy(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({**GOOD, **change})
    assert sentence in str(refused.value)
    assert "cdk.json" in str(refused.value)


def test_the_stack_goes_where_the_cluster_is() -> None:
    settings = read_settings(GOOD)
    assert (settings.account, settings.region, settings.stack) == (
        "111122223333",
        "eu-west-1",
        "TrainingSdc-prod",
    )
    assert read_settings({**GOOD, "stack_name": "Mine"}).stack == "Mine"


def test_empty_strings_of_the_command_line_mean_none() -> None:
    empty = {"alarm_topic_arn": "", "telemetry_workspace": "", "operators": "", "vpc_subnet_ids": ""}
    settings = read_settings({**GOOD, **empty})
    assert settings.alarm_topic_arn is None
    assert settings.operators == settings.vpc_subnet_ids == ()


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(SettingsError, match="cluster_arn: missing"):
        read_settings({"cluster_name": "prod", "eks_cluster_name": "prod-eks"})


def test_the_sample_cluster_cannot_be_deployed() -> None:
    with pytest.raises(SettingsError, match=r"still the sample of cdk\.json"):
        read_settings(read_context({"bundle": True}))


def test_flags_of_cdk_are_left_to_cdk() -> None:
    assert isinstance(read_settings({**GOOD, "@aws-cdk/core:x": True, "aws:cdk:y": []}), Deployment)


def test_without_the_cli_nothing_is_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDK_CONTEXT_JSON", raising=False)
    assert read_context()["bundle"] is False
    monkeypatch.setenv("CDK_CONTEXT_JSON", json.dumps({"cluster_name": "other"}))
    assert "bundle" not in read_context()
    assert read_context()["cluster_name"] == "other"


def test_a_broken_context_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDK_CONTEXT_JSON", "{")
    with pytest.raises(SettingsError, match="CDK_CONTEXT_JSON cannot be read"):
        read_context()
