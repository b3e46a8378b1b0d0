"""The incident's state machine. The last expression of `_flow` reads as the flow.

In: one function per step. Out: the state machine, started by `ingest` with `{"incident_id": ...}`.
Each step answers {incident_id, outcome, story, wait_seconds, patience_seconds, ...}; a choice reads the
outcome, and whatever it does not know goes to a human. The incident's id always comes from the execution's
own input: no answer, least of all the callback of an approval, can turn the flow to another incident.
"""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from .config import Deployment
from .log_groups import log_group, vended
from .logical_ids import fix
from .tasks import EXECUTION, Tasks

ANYTHING_ELSE = "anything else"
NOTICE = {
    **EXECUTION,
    "notice": "human",
    "seen": sfn.JsonPath.entire_payload,
}  # the last answer, or {Error, Cause}
LOG_DELIVERY = (
    "logs:CreateLogDelivery", "logs:GetLogDelivery", "logs:UpdateLogDelivery", "logs:DeleteLogDelivery",
    "logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:DescribeResourcePolicies",
    "logs:DescribeLogGroups",
)  # fmt: skip
TRACING = (
    "xray:PutTraceSegments", "xray:PutTelemetryRecords",
    "xray:GetSamplingRules", "xray:GetSamplingTargets",
)  # fmt: skip
LONGEST_INCIDENT = cdk.Duration.days(14)  # outer net: waits are bounded by the steps themselves


class IncidentWorkflow(Construct):
    """State machine, its role and its log."""

    def __init__(
        self, scope: Construct, config: Deployment, functions: Mapping[str, lambda_.Function]
    ) -> None:
        super().__init__(scope, "Workflow")
        self._functions = functions
        log = log_group(self, "WorkflowLog", config, vended("states", config))
        self.machine = fix(
            sfn.StateMachine(
                self,
                "IncidentWorkflow",
                definition_body=sfn.DefinitionBody.from_chainable(self._flow()),
                comment=(
                    "One incident of silent data corruption, from the alarm to a healthy cluster. The input "
                    "holds the incident's id: `sdc show ID` tells the same story, `sdc report ID` all of it"
                ),
                role=self._role(),
                timeout=LONGEST_INCIDENT,
                tracing_enabled=True,
                # Execution data would carry the task token of a waiting approval.
                logs=sfn.LogOptions(destination=log, level=sfn.LogLevel.ERROR, include_execution_data=False),
            ),
            "IncidentWorkflow",
        )

    def _flow(self) -> sfn.IChainable:
        make = Tasks(self, self._functions)
        locate, contain = make.step("locate"), make.step("contain")
        decide, confirm = make.step("decide"), make.step("confirm")
        request_approval = make.approval()
        # Whatever the callback says: the row decides, and it is read anew.
        approval_answered = make.tell(
            "approval_answered",
            {"answered": True},
            "reads what was decided; the callback itself decides nothing",
        )
        approval_timed_out = make.tell(
            "approval_timed_out", {"timed_out": True}, "reminds at half time; then silence, or just in time"
        )
        replace = make.step("replace", retry=False)  # the call has no client token: twice may be two nodes
        verify, resume = make.step("verify"), make.step("resume")
        tell_human = make.tell("tell_human", NOTICE, "tells the approvers why this one is theirs")
        tell_left_open = make.tell(
            "tell_left_open", NOTICE, "tells the approvers that it could not be closed"
        )
        joined = sfn.Succeed(self, "joined", comment="The evidence went to the incident that is open already")
        closed = sfn.Succeed(self, "closed", comment="It has ended; the answer of resume says how")
        left_open = sfn.Fail(self, "left_open", error="LeftOpen", cause="A human has to close this incident")

        request_approval.add_catch(approval_timed_out, errors=["States.Timeout"])
        for task in (
            locate,
            contain,
            decide,
            confirm,
            request_approval,
            approval_answered,
            approval_timed_out,
        ):
            task.add_catch(tell_human)
        verify.add_catch(tell_human)
        replace.add_catch(verify)  # it may have called before it died: verify tells by the effect's row
        resume.add_catch(tell_left_open)  # not tell_human: it leads back here, one mail a round
        for task in (tell_human, tell_left_open):
            task.add_catch(left_open)

        answers = {
            "approved": replace,
            "check_approved": confirm,
            "released": resume,
            "rejected_release": resume,
            "rejected_keep": resume,
            "expired": resume,
        }
        return self._story(
            (locate, {"located": contain, "joined": joined, "waiting": self._wait_before(locate)}),
            (contain, {"contained": decide}),
            (decide, {"confirm": confirm, "approve": request_approval, "release": resume}),
            (confirm, {"confirmed": decide, "waiting": self._wait_before(confirm)}),
            (request_approval, {ANYTHING_ELSE: approval_answered}),
            (approval_answered, answers),
            (approval_timed_out, {**answers, "reminded": request_approval}),
            (
                replace,
                {
                    "replaced": verify,
                    "busy": self._wait_before(replace),
                    "reopened": contain,
                    "drilled": resume,
                },
            ),
            (verify, {"verified": resume, "waiting": self._wait_before(verify)}),
            (tell_human, {ANYTHING_ELSE: resume}),
            (
                resume,
                {
                    "closed": closed,
                    "waiting": self._wait_before(resume),
                    "reopened": contain,
                    "halted": tell_human,  # and then it closes; this way is taken once
                    ANYTHING_ELSE: tell_left_open,
                },
            ),
            (tell_left_open, {ANYTHING_ELSE: left_open}),
            otherwise=tell_human,
        )

    def _story(
        self, *chapters: tuple[sfn.TaskStateBase, Mapping[str, sfn.IChainable]], otherwise: sfn.IChainable
    ) -> sfn.IChainable:
        """Connect each task to what follows its outcomes; the first chapter is the start."""
        for task, outcomes in chapters:
            fallback = outcomes.get(ANYTHING_ELSE, otherwise)
            known = {name: target for name, target in outcomes.items() if name != ANYTHING_ELSE}
            task.next(self._choice(task, known, fallback) if known else fallback)
        return sfn.Chain.start(chapters[0][0])

    def _choice(
        self, task: sfn.TaskStateBase, outcomes: Mapping[str, sfn.IChainable], otherwise: sfn.IChainable
    ) -> sfn.Choice:
        choice = sfn.Choice(self, f"after {task.node.id}")
        for outcome, target in outcomes.items():
            # An answer without an outcome would be States.Runtime, which no Catch catches on AWS; there every
            # operator but IsPresent fails so, those that only ask for a type included.
            is_there = sfn.Condition.is_present("$.outcome")
            choice.when(
                sfn.Condition.and_(is_there, sfn.Condition.string_equals("$.outcome", outcome)), target
            )
        return choice.otherwise(otherwise)

    def _wait_before(self, task: sfn.TaskStateBase) -> sfn.Wait:
        wait = sfn.Wait(self, f"wait before {task.node.id}", time=sfn.WaitTime.seconds_path("$.wait_seconds"))
        wait.next(task)
        return wait

    def _role(self) -> iam.IRole:
        """Invoke exactly the steps. The two wildcards below have no resource level in AWS."""
        statements = [
            iam.PolicyStatement(
                actions=["lambda:InvokeFunction"],
                resources=[function.function_arn for function in self._functions.values()],
            ),
            iam.PolicyStatement(actions=list(LOG_DELIVERY), resources=["*"]),
            iam.PolicyStatement(actions=list(TRACING), resources=["*"]),
        ]
        role = iam.Role(
            self,
            "WorkflowRole",
            description="Silent data corruption pipeline: the state machine",
            assumed_by=iam.ServicePrincipal("states.amazonaws.com"),
            inline_policies={"workflow": iam.PolicyDocument(statements=statements)},
        )
        return fix(role, "WorkflowRole").without_policy_updates()
