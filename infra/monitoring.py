"""Alarms on the pipeline itself: an execution that ended badly, an event that nobody could take.

In: the state machine and the inlets. Out: CloudWatch alarms, which act on `alarm_topic_arn` when it is set.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from .config import Deployment
from .logical_ids import fix
from .triggers import Triggers

PERIOD = cdk.Duration.minutes(5)


class Monitoring(Construct):
    """One alarm for each way in which an incident can be lost."""

    def __init__(
        self, scope: Construct, config: Deployment, machine: sfn.StateMachine, triggers: Triggers
    ) -> None:
        super().__init__(scope, "Monitoring")
        self._topic = (
            sns.Topic.from_topic_arn(self, "AlarmTopic", config.alarm_topic_arn)
            if config.alarm_topic_arn
            else None
        )
        self._above_zero("ExecutionFailed", machine.metric_failed(period=PERIOD), "An incident was left open")
        self._above_zero(
            "ExecutionTimedOut", machine.metric_timed_out(period=PERIOD), "An incident took too long"
        )
        self._above_zero("ExecutionAborted", machine.metric_aborted(period=PERIOD), "An incident was stopped")
        for name, inlet in (("Alarm", triggers.alarms), ("Registration", triggers.registrations)):
            waiting = inlet.dead_letters.metric_approximate_number_of_messages_visible(period=PERIOD)
            self._above_zero(f"{name}DeadLettersWaiting", waiting, f"{name} events could not be processed")

    def _above_zero(self, name: str, metric: cloudwatch.IMetric, meaning: str) -> None:
        alarm = fix(
            cloudwatch.Alarm(
                self,
                name,
                metric=metric,
                threshold=0,
                comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
                evaluation_periods=1,
                treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
                alarm_description=meaning,
            ),
            name,
        )
        if self._topic:
            alarm.add_alarm_action(actions.SnsAction(self._topic))
