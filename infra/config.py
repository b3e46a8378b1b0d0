"""Deployment settings, validated before anything is built.

In: the context of cdk.json and of `-c key=value` (JSON values or strings). Out: one frozen `Deployment`.
Next: `stack.py`. CDK's own flags (names with ":" or "/") are left to CDK.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from training_agent.contract import Mode

SAMPLE_ACCOUNT = "123456789012"  # of the cluster ARN that cdk.json comes with; nobody can deploy to it


class SettingsError(ValueError):
    """Nothing can be built; the message says for each setting what is wrong and where to change it."""


class Architecture(str, Enum):
    """Processor of the functions; the bundle holds compiled wheels for it."""

    ARM64 = "arm64"
    X86_64 = "x86_64"


class Deployment(BaseModel):
    """Everything an operator chooses. One stack guards one HyperPod cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stack_name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,99}$")] = "TrainingSdc"
    cluster_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})$")]
    cluster_arn: Annotated[
        str, Field(pattern=r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:cluster/[a-z0-9]{12}$")
    ]
    eks_cluster_name: Annotated[str, Field(pattern=r"^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$")]
    eks_access_entries: bool = False  # needs authentication mode API or API_AND_CONFIG_MAP
    approvers: tuple[str, ...] = ()  # e-mail addresses; each confirms its own subscription
    alarm_topic_arn: str | None = None  # where alarms on the pipeline itself go

    mode: Mode = Mode.OBSERVE  # the control table can lower it, never raise it
    approval_timeout_seconds: Annotated[int, Field(ge=1, le=7 * 86400)] = 8 * 3600
    max_alarm_age_seconds: Annotated[int, Field(ge=60, le=86400)] = 3600
    replacements_per_day: Annotated[int, Field(ge=0, le=25)] = 1  # absolute cap in 24 h
    replacement_budget_percent: Annotated[int, Field(ge=1, le=100)] = 5  # of the Running nodes of the group
    replacements_per_hour: Annotated[int, Field(ge=0, le=25)] = 1
    deep_check_enabled: bool = False

    architecture: Architecture = Architecture.ARM64
    python_version: Annotated[str, Field(pattern=r"^3\.1[2-4]$")] = "3.12"
    log_retention_days: Annotated[int, Field(ge=1)] = 90
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    bundle: bool = True  # false: functions without their packages, for tests and the local cloud only

    @field_validator("approvers", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """`-c approvers=a@example.com,b@example.com` arrives as one string."""
        return (
            [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        )

    @field_validator("approvers")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            if not re.fullmatch(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+", address):
                raise ValueError(f"{address!r} is no e-mail address")
        if len(set(value)) != len(value):
            raise ValueError("an approver stands in the list twice")
        return value

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
    return f"{name}: {what} (got {problem['input']!r})" if problem["loc"] else what
