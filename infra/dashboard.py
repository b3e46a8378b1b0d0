"""The dashboard that an operator wants open, on cdk-monitoring-constructs.

In: the cluster's name, the state machine, the queues, all alarms. Out: one CloudWatch dashboard. Per job:
audits, age of the last pass, what the checks cost, heartbeats, what the agent dropped; incidents by state,
open and ended; time to contain, approve, replace. Jobs come and go, so they are found by search, never
listed. `tests/infra/test_dashboard.py` holds that each metric here is put by somebody, and each put here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aws_cdk as cdk
import cdk_monitoring_constructs as cm
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from lambdas.domain.incident import State
from lambdas.steps.outcome import ENDED_IN
from lambdas.steps.reconcile import IN_STATE
from training_agent.contract.names import METRIC_NAMESPACE, Metric

from .config import Deployment

PERIOD_S = 300
PER_JOB = (
    ("Alarms: non-finite gradients", Metric.NONFINITE_GRAD, "Maximum"),
    ("Alarms: replay mismatches", Metric.REPLAY_MISMATCH, "Maximum"),
    ("Alarms: divergent tensors", Metric.DIVERGENT_TENSORS, "Maximum"),
    ("Alarms: checksum of a reduction", Metric.REDUCTION_MISMATCH, "Maximum"),
    ("Audits done", Metric.AUDITS_DONE, "Sum"),
    ("Audits skipped (or replays off)", Metric.AUDITS_SKIPPED, "Sum"),
    ("Layer audits done", Metric.LAYER_AUDITS_DONE, "Sum"),
    ("Layer audits skipped", Metric.LAYER_AUDITS_SKIPPED, "Sum"),
    ("Steps since the last passed audit", Metric.LAST_PASS_AGE_STEPS, "Maximum"),
    ("Steps between audits", Metric.AUDIT_EVERY_STEPS, "Maximum"),
    ("Percent of the time inside replays and weight checks", Metric.OVERHEAD_PERCENT, "Maximum"),
    ("Heartbeats", Metric.HEARTBEAT, "Sum"),
    ("Messages that the agent dropped", Metric.DROPPED_MESSAGES, "Sum"),
)
OF_INCIDENTS = ("incidents_open", "oldest_open_incident_seconds", "jobs_without_heartbeat", "breaker_open")
BY_STATE = tuple(IN_STATE + state.value.lower() for state in State if not state.terminal)
ENDED = tuple(ENDED_IN + state.value.lower() for state in State if state.terminal)
ARRIVALS = ("AlarmsReceived", "IncidentsOpened", "AlarmsRejected")  # of `ingest`
LEFT_BEHIND = (
    "incidents_without_progress", "incidents_abandoned", "unknown_outcomes", "cordons_without_incident",
    "alarms_without_incident", "decisions_delivered", "approvers_without_confirmation",
)  # fmt: skip
RECONCILER = ("reconcile_done", "reconcile_failed_looks")
DURATIONS = ("seconds_to_contain", "seconds_to_approve", "seconds_to_replace")
OF_INGEST = {"service": "ingest"}  # powertools' own dimension
OF_ALL_INCIDENTS: tuple[tuple[str, tuple[str, ...], str, dict[str, str]], ...] = (
    ("Open", OF_INCIDENTS[:1], "Maximum", {}),
    ("Open, by state", BY_STATE, "Maximum", {}),
    ("Ended, by state", ENDED, "Sum", {}),
    ("What waits", OF_INCIDENTS[1:], "Maximum", {}),
    ("Seconds to contain, approve, replace", DURATIONS, "Average", {}),
    ("Events that came", ARRIVALS, "Sum", OF_INGEST),
    ("Left behind, or found by the reconciler", LEFT_BEHIND, "Maximum", {}),
    ("The reconciler itself", RECONCILER, "Maximum", {}),
)


class Dashboard(Construct):
    """One page: alarms on top, then jobs, incidents, and the machinery below."""

    def __init__(
        self,
        scope: Construct,
        config: Deployment,
        machine: sfn.StateMachine,
        functions: Sequence[lambda_.Function],
        queues: Sequence[sqs.Queue],
        alarms: Sequence[cloudwatch.Alarm],
    ) -> None:
        super().__init__(scope, "Dashboard")
        self._cluster = config.cluster_name
        name = f"TrainingSdc-{config.cluster_name}"
        self._facade = cm.MonitoringFacade(
            self,
            "Facade",
            metric_factory_defaults=cm.MetricFactoryDefaults(
                namespace=METRIC_NAMESPACE, period=cdk.Duration.seconds(PERIOD_S)
            ),
            alarm_factory_defaults=cm.AlarmFactoryDefaults(alarm_name_prefix=name, actions_enabled=False),
            dashboard_factory=cm.DefaultDashboardFactory(
                self, "Factory", dashboard_name_prefix=name, create_summary_dashboard=False
            ),
        )
        self._facade.add_large_header(f"Silent data corruption on {config.cluster_name}")
        self._facade.add_widget(cloudwatch.AlarmStatusWidget(alarms=list(alarms), width=24, height=4))
        self._jobs()
        self._incidents()
        self._machinery(machine, functions, queues)

    def _jobs(self) -> None:
        self._facade.add_medium_header("Jobs")
        for title, metric, statistic in PER_JOB:
            search = (
                f'SEARCH(\'{{{METRIC_NAMESPACE},Cluster,Job}} MetricName="{metric.value}" '
                f"Cluster=\"{self._cluster}\"', '{statistic}', {PERIOD_S})"
            )
            found = cloudwatch.MathExpression(
                expression=search, label="", using_metrics={}, period=cdk.Duration.seconds(PERIOD_S)
            )
            self._facade.add_widget(cloudwatch.GraphWidget(title=title, left=[found], width=8, height=5))

    def _incidents(self) -> None:
        self._facade.add_medium_header("Incidents")
        for title, names, statistic, more in OF_ALL_INCIDENTS:
            lines = [self._own(name, statistic, more) for name in names]
            self._facade.add_widget(cloudwatch.GraphWidget(title=title, left=lines, width=8, height=5))

    def _machinery(
        self, machine: sfn.StateMachine, functions: Sequence[lambda_.Function], queues: Sequence[sqs.Queue]
    ) -> None:
        self._facade.add_medium_header("Machinery")
        self._facade.monitor_step_function(state_machine=machine)
        for function in functions:
            self._facade.monitor_lambda_function(lambda_function=function)
        for queue in queues:
            self._facade.monitor_sqs_queue(queue=queue)

    def _own(self, name: str, statistic: str, more: Mapping[str, str]) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace=METRIC_NAMESPACE,
            metric_name=name,
            dimensions_map={"Cluster": self._cluster, **more},
            statistic=statistic,
            period=cdk.Duration.seconds(PERIOD_S),
        )
