"""Step Functions: start one named execution; answer the one that waits."""

from __future__ import annotations

import json

from botocore.exceptions import ClientError

from ..domain.errors import CallbackGoneError
from .aws import client, code_of, translated

_GONE = frozenset({"TaskDoesNotExist", "TaskTimedOut", "InvalidToken"})


class StateMachine:
    """Implements `ports.Workflow`."""

    def __init__(self, arn: str) -> None:
        self._arn = arn

    def start(self, incident_id: str, name: str) -> None:
        """The input is the incident id only; an execution of this name, running or closed, is success."""
        with translated(f"StartExecution {name}"):
            try:
                client("stepfunctions").start_execution(
                    stateMachineArn=self._arn, name=name, input=json.dumps({"incident_id": incident_id})
                )
            except ClientError as e:
                if code_of(e) != "ExecutionAlreadyExists":
                    raise


class Executions:
    """Implements `ports.Executions`."""

    def __init__(self, machine_arn: str) -> None:
        self._prefix = machine_arn.replace(":stateMachine:", ":execution:", 1)

    def status(self, name: str) -> str | None:
        with translated(f"DescribeExecution {name}"):
            try:
                answer = client("stepfunctions").describe_execution(executionArn=f"{self._prefix}:{name}")
            except ClientError as e:
                if code_of(e) == "ExecutionDoesNotExist":
                    return None
                raise
        return str(answer["status"])


class TaskCallback:
    """Implements `ports.Callback`."""

    def succeed(self, task_token: str, output: dict[str, object]) -> None:
        with translated("SendTaskSuccess"):
            try:
                client("stepfunctions").send_task_success(taskToken=task_token, output=json.dumps(output))
            except ClientError as e:
                if code_of(e) in _GONE:
                    raise CallbackGoneError(f"the execution no longer waits ({code_of(e)})") from None
                raise
