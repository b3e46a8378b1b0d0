"""The tasks of the state machine: one Lambda call each, bounded in time, retried on named errors only.

In: one function per step. Out: task states for `workflow.py`. A task's payload names the incident that
the execution was started with, never what an earlier answer says; its output is the step's own answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from aws_cdk import aws_stepfunctions_tasks as tasks
from constructs import Construct

from .functions import FUNCTIONS

EXECUTION = {"execution": sfn.JsonPath.string_at("$$.Execution.Id")}  # for a link to the console
INCIDENT = {"incident_id": sfn.JsonPath.string_at("$$.Execution.Input.incident_id")}
RETRYABLE = ("ThrottledError", "ConflictError", "UnavailableError")  # classes of lambdas.domain.errors
NEVER_RAN = ("Lambda.TooManyRequestsException", "Lambda.ServiceException")  # steps are safe to call again
MARGIN_S = 15  # a task outlives its function, so that the function's own error is what is caught


class Tasks:
    """Makes the task states of one state machine."""

    def __init__(self, scope: Construct, functions: Mapping[str, lambda_.Function]) -> None:
        self._scope = scope
        self._functions = functions

    def step(
        self,
        state: str,
        function: str | None = None,
        *,
        payload: Mapping[str, Any] | None = None,
        retry: bool = True,
        comment: str | None = None,
    ) -> tasks.LambdaInvoke:
        """A task whose output is the step's own answer."""
        name = function or state
        task = tasks.LambdaInvoke(
            self._scope,
            state,
            lambda_function=self._functions[name],
            payload=sfn.TaskInput.from_object({**INCIDENT, **(payload or {})}),
            payload_response_only=True,
            retry_on_service_exceptions=False,
            task_timeout=sfn.Timeout.duration(cdk.Duration.seconds(FUNCTIONS[name].timeout_s + MARGIN_S)),
            comment=comment or FUNCTIONS[name].purpose,
        )
        if retry:
            _retry(task)
        return task

    def tell(self, state: str, payload: dict[str, Any], comment: str) -> tasks.LambdaInvoke:
        """A further task of the function that speaks to humans; it keeps no task token."""
        return self.step(state, "request_approval", payload=payload, comment=comment)

    def approval(self) -> tasks.LambdaInvoke:
        """Mails the link and waits until somebody decides or the approval expires."""
        task = tasks.LambdaInvoke(
            self._scope,
            "request_approval",
            lambda_function=self._functions["request_approval"],
            payload=sfn.TaskInput.from_object(
                {**INCIDENT, **EXECUTION, "task_token": sfn.JsonPath.task_token}
            ),
            integration_pattern=sfn.IntegrationPattern.WAIT_FOR_TASK_TOKEN,
            retry_on_service_exceptions=False,
            task_timeout=sfn.Timeout.at("$.patience_seconds"),
            comment="waits for a human, who decides behind the mailed link",
        )
        _retry(task)
        return task


def _retry(task: tasks.LambdaInvoke) -> None:
    task.add_retry(
        errors=[*RETRYABLE, *NEVER_RAN],
        interval=cdk.Duration.seconds(2),
        backoff_rate=2,
        max_attempts=5,
        max_delay=cdk.Duration.seconds(60),
        jitter_strategy=sfn.JitterType.FULL,
    )
