"""Where the Step Functions console shows an execution, from its ARN. Pure; used by mails, page and `sdc`."""

from __future__ import annotations

import re

_EXECUTION = re.compile(r"arn:(aws|aws-cn|aws-us-gov):states:([a-z0-9-]+):[0-9]{12}:execution:[\w:.-]{1,200}")
_HOSTS = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
}


def console_url(execution: str) -> str:
    """Its page in the console; "" for what is no execution's ARN."""
    found = _EXECUTION.fullmatch(execution)
    if found is None:
        return ""
    partition, region = found.groups()
    return (
        f"https://{region}.{_HOSTS[partition]}/states/home?region={region}#/v2/executions/details/{execution}"
    )
