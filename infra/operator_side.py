"""What the `sdc` command line gets: where the pipeline stands, as outputs of the stack.

In: places, drill function. Out: outputs, read by `training_agent.cli.deployment` from CloudFormation or from
the file of `cdk deploy --outputs-file`. Names only: what a caller may do is the caller's own role.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from .config import Deployment
from .logical_ids import fix
from .places import Places


class OperatorSide(Construct):
    """Outputs for people at a terminal."""

    def __init__(
        self, scope: Construct, config: Deployment, known: Places, drill: lambda_.Function | None
    ) -> None:
        super().__init__(scope, "OperatorSide")
        variables = known.variables
        self._output("ClusterName", config.cluster_name, "the HyperPod cluster that this stack guards")
        self._output("ReviewUrl", variables["REVIEW_URL"], "--api of the sdc command line")
        self._output("StateMachineArn", variables["STATE_MACHINE_ARN"], "whose executions sdc show tells")
        self._output("IncidentTableName", variables["INCIDENT_TABLE"], "what sdc history reads")
        self._output("ControlTableName", variables["CONTROL_TABLE"], "kill switch, mode, breaker")
        self._output("ApprovalTopicArn", variables["APPROVAL_TOPIC_ARN"], "whose subscribers are approvers")
        if variables["TELEMETRY_URL"]:
            self._output("TelemetryUrl", variables["TELEMETRY_URL"], "the Prometheus workspace of confirm")
        if drill is not None:
            self._output("DrillFunctionName", drill.function_name, "what sdc drill calls")

    def _output(self, name: str, value: str, description: str) -> None:
        fix(cdk.CfnOutput(self, name, value=value, description=description), name)
