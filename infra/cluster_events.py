"""What others say about the cluster, on the account's default bus: HyperPod, CloudWatch, Step Functions.

In: HyperPod's node health and state events, the alarms on the agent's metrics, executions of our machine
that ended badly. Out: one queue for `reconcile`, delivered five minutes late: by then the agent's own event
has opened an incident, or it never will, which is for people. HyperPod and CloudWatch never put on a custom
bus.
"""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from .config import Deployment
from .encryption import Encryption
from .logical_ids import fix
from .queues import dead_letters, queue, to_queue
from .triggers import Inlet

LATE = cdk.Duration.minutes(5)
HYPERPOD = (
    "SageMaker HyperPod Cluster Node Health Event",
    "SageMaker HyperPod Cluster State Change",
    "SageMaker HyperPod Cluster Event",
)
ENDED_BADLY = ("FAILED", "TIMED_OUT", "ABORTED")


class ClusterEvents(Construct):
    """Rules on the default bus and the queue behind them."""

    def __init__(self, scope: Construct, config: Deployment, encryption: Encryption) -> None:
        super().__init__(scope, "ClusterEvents")
        dead = dead_letters(self, "ClusterEventDeadLetters", encryption.key)
        self.inlet = Inlet(queue(self, "ClusterEventQueue", encryption.key, dead, delay=LATE), dead)
        self._rule(
            "HyperPodRule",
            events.EventPattern(
                source=["aws.sagemaker"], detail_type=list(HYPERPOD), resources=[config.cluster_arn]
            ),
            f"What HyperPod says about {config.cluster_name}",
        )

    def listen_to_alarms(self, alarms: Sequence[cloudwatch.Alarm]) -> None:
        """The agent's metrics fired: is there an incident?"""
        self._rule(
            "AgentAlarmRule",
            events.EventPattern(
                source=["aws.cloudwatch"],
                detail_type=["CloudWatch Alarm State Change"],
                resources=[alarm.alarm_arn for alarm in alarms],
                detail={"state": {"value": ["ALARM"]}},
            ),
            "A metric of the agent fired",
        )

    def listen_to_executions(self, machine: sfn.StateMachine) -> None:
        """The outer net: `States.Runtime` and the execution's own timeout pass every Catch."""
        self._rule(
            "ExecutionRule",
            events.EventPattern(
                source=["aws.states"],
                detail_type=["Step Functions Execution Status Change"],
                detail={"stateMachineArn": [machine.state_machine_arn], "status": list(ENDED_BADLY)},
            ),
            "An execution ended without closing its incident",
        )

    def _rule(self, name: str, pattern: events.EventPattern, description: str) -> None:
        rule = events.Rule(self, name, event_pattern=pattern, description=description)
        to_queue(rule, self.inlet.queue, self.inlet.dead_letters)
        fix(rule, name)
