"""Log groups: all with the configured retention, and none that outlives the stack.

In: the configuration. Out: a `LogGroup` under a stable logical id, for a function or a service.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from .config import Deployment
from .logical_ids import fix

RETENTION = {
    7: logs.RetentionDays.ONE_WEEK,
    30: logs.RetentionDays.ONE_MONTH,
    90: logs.RetentionDays.THREE_MONTHS,
    180: logs.RetentionDays.SIX_MONTHS,
    365: logs.RetentionDays.ONE_YEAR,
    731: logs.RetentionDays.TWO_YEARS,
    1827: logs.RetentionDays.FIVE_YEARS,
}


def log_group(scope: Construct, id_: str, config: Deployment, name: str | None = None) -> logs.LogGroup:
    """One log group; CloudFormation names it where `name` is None."""
    group = logs.LogGroup(
        scope,
        id_,
        log_group_name=name,
        retention=retention(config),
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    return fix(group, id_)


def vended(kind: str, config: Deployment) -> str:
    """Name of a log group that a service, not a function, writes to.

    Each such group is added to one resource policy of the account, of 5,120 characters at most: in an account
    with many of them a deployment fails. Groups below /aws/vendedlogs/ are let in by their prefix (Step
    Functions, "Logging using CloudWatch Logs").
    """
    return f"/aws/vendedlogs/{kind}/{config.stack}"


def retention(config: Deployment) -> logs.RetentionDays:
    """Days as CloudWatch's own enumeration, which has no value for an arbitrary number."""
    for days, value in RETENTION.items():
        if days >= config.log_retention_days:
            return value
    return logs.RetentionDays.TEN_YEARS
