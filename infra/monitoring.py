"""Alarms: on the metrics of the agent's checks, and on each way in which the pipeline itself can lose an
incident.

In: the state machine, the inlets, the operators' topic. Out: CloudWatch alarms, each with an action. Next:
`cluster_events.py` (the agent's alarms open an incident when no event did), `dashboard.py`, docs/operate.md.
An alarm watches one exact set of dimensions, so the agent's are watched by {Cluster}; jobs by the
reconciler.
"""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from lambdas.steps.notices import TO_NOBODY
from training_agent.contract.names import METRIC_NAMESPACE
from training_agent.report.metrics import NAMED

from .alarms import OF_THE_AGENT, OF_THE_RECONCILER, Watch
from .cluster_events import ClusterEvents
from .config import Deployment
from .logical_ids import fix
from .operators import Operators
from .triggers import Triggers

PERIOD = cdk.Duration.minutes(5)


class Monitoring(Construct):
    """One alarm for each way in which an incident can be missed or lost."""

    def __init__(
        self,
        scope: Construct,
        config: Deployment,
        operators: Operators,
        machine: sfn.StateMachine,
        triggers: Triggers,
        cluster_events: ClusterEvents,
    ) -> None:
        super().__init__(scope, "Monitoring")
        self._action = actions.SnsAction(operators.topic)
        self.alarms: list[cloudwatch.Alarm] = []
        self._cluster = {"Cluster": config.cluster_name}
        self.of_the_agent = [self._own(watch) for watch in OF_THE_AGENT]

        for name, metric, meaning in (
            ("ExecutionFailed", machine.metric_failed(period=PERIOD), "An incident was left open"),
            ("ExecutionTimedOut", machine.metric_timed_out(period=PERIOD), "An incident took too long"),
            ("ExecutionAborted", machine.metric_aborted(period=PERIOD), "An incident was stopped by hand"),
        ):
            self._alarm(Watch(name, "", meaning), metric)
        rejected = own_metric("AlarmsRejected", {**self._cluster, "service": "ingest"})
        self._alarm(Watch("AlarmsRejected", "", "An event was no valid alarm, or too old"), rejected)
        self._own(Watch("NobodyWasTold", TO_NOBODY, "A mail about an incident found no confirmed approver"))
        inlets = {
            "Alarm": triggers.alarms,
            "Registration": triggers.registrations,
            "ClusterEvent": cluster_events.inlet,
        }
        for name, inlet in inlets.items():
            waiting = inlet.dead_letters.metric_approximate_number_of_messages_visible(
                period=PERIOD, statistic="Maximum"
            )
            self._alarm(
                Watch(f"{name}DeadLettersWaiting", "", f"{name} events could not be processed"), waiting
            )

    def of_the_reconciler(self) -> None:
        """What only the reconciler can see; and an alarm for its own silence."""
        for watch in OF_THE_RECONCILER:
            self._own(watch)

    def _own(self, watch: Watch) -> cloudwatch.Alarm:
        return self._alarm(watch, own_metric(watch.metric, self._cluster, watch.statistic))

    def _alarm(self, watch: Watch, metric: cloudwatch.IMetric) -> cloudwatch.Alarm:
        alarm = cloudwatch.Alarm(
            self,
            watch.name,
            metric=metric,
            threshold=watch.threshold,
            comparison_operator=(
                cloudwatch.ComparisonOperator.LESS_THAN_OR_EQUAL_TO_THRESHOLD
                if watch.silence
                else cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD
            ),
            evaluation_periods=watch.periods,
            treat_missing_data=(
                cloudwatch.TreatMissingData.BREACHING
                if watch.silence
                else cloudwatch.TreatMissingData.NOT_BREACHING
            ),
            alarm_description=f"{watch.meaning}. What to do: docs/operate.md, {watch.name}",
        )
        alarm.add_alarm_action(self._action)
        self.alarms.append(alarm)
        return fix(alarm, watch.name)


def own_metric(
    name: str, dimensions: Mapping[str, str], statistic: str = "Sum", period: cdk.Duration = PERIOD
) -> cloudwatch.Metric:
    """A metric of our namespace."""
    return cloudwatch.Metric(
        namespace=METRIC_NAMESPACE,
        metric_name=name,
        dimensions_map=dict(dimensions),
        statistic=statistic,
        period=period,
    )


AGENT_METRICS = NAMED
assert {watch.metric for watch in OF_THE_AGENT} == {metric.value for metric in AGENT_METRICS}
