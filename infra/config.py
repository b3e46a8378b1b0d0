"""Deployment settings, validated before anything is built.

In: the context of cdk.json and of `-c key=value` (JSON values or strings). Out: one frozen `Deployment`.
Next: `stack.py`. CDK's own flags (names with ":" or "/") are left to CDK.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from training_agent.contract import Mode

SAMPLE_ACCOUNT = "123456789012"  # of the cluster ARN that cdk.json comes with; nobody can deploy to it


class SettingsError(ValueError):
    """Nothing can be built; the message says for each setting what is wrong and where to change it."""


class Architecture(str, Enum):
    """Processor of the functions; the bundle holds compiled wheels for it."""

    ARM64 = "arm64"
    X86_64 = "x86_64"


class Method(str, Enum):
    """How a node is replaced; the other one is not deployed."""

    API = "api"  # BatchReplaceClusterNodes
    LABEL = "label"  # the node label that HyperPod acts on; needs NodeRecovery Automatic


EXPECTED = {  # where a pattern alone would be what an operator gets to read
    "cluster_name": "HyperPod's name of the cluster: letters, digits and single dashes inside, at most 63",
    "cluster_arn": "the ClusterArn of `aws sagemaker describe-cluster`, such as "
    "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcdefghijkl; its last part is no name",
    "eks_cluster_name": "the name of the EKS cluster behind it, neither its ARN nor HyperPod's name",
    "stack_name": "letters, digits and dashes, beginning with a letter, or left out",
    "alarm_topic_arn": "the ARN of a standard SNS topic, such as arn:aws:sns:us-east-1:111122223333:oncall",
    "slack_workspace_id": "an id such as T0123456789, from the address of the workspace's web client",
    "slack_channel_id": "an id such as C0123456789, from the channel's details",
    "telemetry_workspace": "the id of an Amazon Managed Prometheus workspace, such as ws-0123456789abcdef",
    "python_version": 'a version that Lambda runs, in quotes: "3.11" to "3.14"',
    "log_level": "DEBUG, INFO, WARNING or ERROR",
}
Addresses = tuple[str, ...]
Ids = tuple[str, ...]
Accounts = tuple[str, ...]  # "namespace/name" of service accounts
TOPIC_ARN = r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$"


class Deployment(BaseModel):
    """Everything an operator chooses. One stack guards one HyperPod cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9](-*[A-Za-z0-9]){0,62}$")]
    cluster_arn: Annotated[
        str, Field(pattern=r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:cluster/[a-z0-9]{12}$")
    ]
    stack_name: Annotated[str, Field(pattern=r"^([A-Za-z][A-Za-z0-9-]{0,99})?$")] = ""  # "": by the cluster
    eks_cluster_name: Annotated[str, Field(pattern=r"^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$")]
    eks_access_entries: bool = False  # needs authentication mode API or API_AND_CONFIG_MAP
    vpc_subnet_ids: Annotated[Ids, Field(max_length=16)] = ()  # private Kubernetes endpoint: where it is seen
    vpc_security_group_ids: Annotated[Ids, Field(max_length=5)] = ()

    training_service_accounts: Annotated[Accounts, Field(min_length=1, max_length=20)] = (
        "training/training",
    )

    approvers: Addresses = ()  # each confirms its own subscription
    approval_links: bool = True  # false: decisions by the IAM-signed route only, mails carry no link
    alarm_topic_arn: Annotated[str | None, Field(pattern=TOPIC_ARN)] = None  # None: this stack makes a topic
    operators: Addresses = ()  # mailed by the stack's own alarm topic; none: the approvers are
    slack_workspace_id: Annotated[str | None, Field(pattern="^T[A-Z0-9]{4,30}$")] = None  # optional channel
    slack_channel_id: Annotated[str | None, Field(pattern="^[CG][A-Z0-9]{4,30}$")] = None

    mode: Mode = Mode.OBSERVE  # the control table can lower it, never raise it
    replacement_method: Method = Method.API
    telemetry_workspace: Annotated[str | None, Field(pattern=r"^ws-[0-9A-Za-z-]{8,60}$")] = None  # Prometheus
    approval_timeout_seconds: Annotated[int, Field(ge=1, le=7 * 86400)] = 8 * 3600
    max_alarm_age_seconds: Annotated[int, Field(ge=60, le=86400)] = 3600
    replacements_per_day: Annotated[int, Field(ge=0, le=25)] = 1  # absolute cap in 24 h
    replacement_budget_percent: Annotated[int, Field(ge=1, le=100)] = 5  # of the Running nodes of the group
    replacements_per_hour: Annotated[int, Field(ge=0, le=25)] = 1
    deep_check_enabled: bool = False
    heartbeat_timeout_seconds: Annotated[int, Field(ge=300, le=86400)] = 900  # a job silent for longer
    drill_enabled: bool = True  # a synthetic incident every week; it can never replace

    customer_managed_key: bool = True  # false: AWS's own keys; saves a dollar a month
    reserved_concurrency: Annotated[int | None, Field(ge=1, le=1000)] = None  # fails in small accounts
    architecture: Architecture = Architecture.ARM64
    python_version: Annotated[str, Field(pattern=r"^3\.1[1-4]$")] = "3.12"
    log_retention_days: Annotated[int, Field(ge=1, le=3653)] = 90
    archive_days: Annotated[int, Field(ge=1, le=3653)] = 30  # of the bus, for looking back
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    bundle: bool = True  # false: functions without their packages, for tests and the local cloud only

    @field_validator(
        "approvers", "operators", "vpc_subnet_ids", "vpc_security_group_ids", "training_service_accounts",
        mode="before",
    )  # fmt: skip
    @classmethod
    def _split(cls, value: Any) -> Any:
        """`-c approvers=a@example.com,b@example.com` arrives as one string, and so does a JSON list."""
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            try:
                return json.loads(value)
            except ValueError as error:
                raise ValueError(f"is no JSON list ({error}); a@example.com,b@example.com will do") from None
        return [part.strip() for part in value.split(",") if part.strip()]

    @field_validator(
        "alarm_topic_arn", "slack_workspace_id", "slack_channel_id", "telemetry_workspace", mode="before"
    )
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("approvers", "operators")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            if not re.fullmatch(r"[^@\s,;\[\]\"']+@[^@\s,;\[\]\"']+\.[^@\s,;\[\]\"']+", address):
                raise ValueError(f"{address!r} is no e-mail address")
        if len(set(value)) != len(value):
            raise ValueError("an address stands in the list twice")
        return value

    @field_validator("vpc_subnet_ids", "vpc_security_group_ids")
    @classmethod
    def _ids(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        prefix = "subnet" if info.field_name == "vpc_subnet_ids" else "sg"
        for one in value:
            if not re.fullmatch(rf"{prefix}-[0-9a-f]{{8}}([0-9a-f]{{9}})?", one):
                raise ValueError(f"{one!r} is no id such as {prefix}-0123456789abcdef0")
        return value

    @field_validator("training_service_accounts")
    @classmethod
    def _accounts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        label = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
        for one in value:
            if not re.fullmatch(rf"{label}/{label}(\.{label})*", one):
                raise ValueError(f"{one!r} is no service account such as namespace/name")
        return value

    @property
    def stack(self) -> str:
        """Name of the stack: one for each cluster, so that an account can have several."""
        return self.stack_name or f"TrainingSdc-{self.cluster_name}"

    @property
    def region(self) -> str:
        """Of the cluster; the stack is deployed there and nowhere else."""
        return self.cluster_arn.split(":")[3]

    @property
    def account(self) -> str:
        """Of the cluster."""
        return self.cluster_arn.split(":")[4]

    @property
    def in_vpc(self) -> bool:
        """The Kubernetes endpoint is private, so that functions which talk to it need a place in the VPC."""
        return bool(self.vpc_subnet_ids)

    @model_validator(mode="after")
    def _complete(self) -> Deployment:
        if bool(self.vpc_subnet_ids) != bool(self.vpc_security_group_ids):
            raise ValueError(
                "vpc_subnet_ids and vpc_security_group_ids belong together: give both for a private "
                "Kubernetes endpoint, or neither for a public one"
            )
        if bool(self.slack_workspace_id) != bool(self.slack_channel_id):
            raise ValueError("slack_workspace_id and slack_channel_id belong together: give both, or neither")
        if self.alarm_topic_arn and f":{self.region}:" not in self.alarm_topic_arn:
            raise ValueError(
                f"alarm_topic_arn: CloudWatch needs a topic of the cluster's region {self.region}"
            )
        if self.alarm_topic_arn and self.operators:
            raise ValueError(
                "operators are mailed by the stack's own topic: leave alarm_topic_arn or them out"
            )
        return self

    @model_validator(mode="after")
    def _deployable(self) -> Deployment:
        if self.mode is Mode.REPLACE and not self.approvers:
            raise ValueError(
                "mode replace waits for a human: name at least one approver, or use mode contain"
            )
        if self.bundle and f":{SAMPLE_ACCOUNT}:" in self.cluster_arn:
            raise ValueError("cluster_arn is still the sample of cdk.json: put the ARN of your cluster there")
        return self


def read_settings(context: Mapping[str, Any]) -> Deployment:
    """Validate `context`.

    Raises
    ------
    SettingsError
        With one line per setting: its name, what is wrong with it, and where it is set.
    """
    ours = {key: value for key, value in context.items() if ":" not in key and "/" not in key}
    try:
        return Deployment.model_validate(ours)
    except ValidationError as error:
        lines = [_sentence(problem) for problem in error.errors()]
    raise SettingsError(
        "The deployment settings cannot be used:\n  "
        + "\n  ".join(lines)
        + "\nChange them under `context` in cdk.json, or pass `-c name=value`."
    )


def _sentence(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"]) or "settings"
    if problem["type"] == "extra_forbidden":
        return f"{name}: there is no such setting (known: {', '.join(sorted(Deployment.model_fields))})"
    if problem["type"] == "missing":
        return f"{name}: missing"
    what = problem["msg"].removeprefix("Value error, ")
    if problem["type"] in ("string_pattern_mismatch", "string_type") and name in EXPECTED:
        what = f"should be {EXPECTED[name]}"
    return f"{name}: {what} (got {problem['input']!r})" if problem["loc"] else what
