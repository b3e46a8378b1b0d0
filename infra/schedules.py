"""What runs by the clock: the reconciler every five minutes, a fire drill every week.

In: the two functions. Out: schedules on the default bus, each with a retry policy and a dead-letter queue.
The rules invoke asynchronously, so that the functions have a dead-letter queue for their own failures as
well.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from .logical_ids import fix

RECONCILE = events.Schedule.rate(cdk.Duration.minutes(5))
DRILL = events.Schedule.cron(
    week_day="TUE", hour="9", minute="0"
)  # UTC, in working hours: somebody should answer


class Schedules(Construct):
    """One rule for each function that the clock calls."""

    def __init__(self, scope: Construct, dead: sqs.Queue) -> None:
        super().__init__(scope, "Schedules")
        self._dead = dead

    def reconcile(self, function: lambda_.Function) -> None:
        """Heartbeats, stuck incidents, unknown outcomes, undelivered decisions."""
        self._rule("ReconcileSchedule", RECONCILE, function, enabled=True, late=cdk.Duration.minutes(5))

    def drill(self, function: lambda_.Function, *, enabled: bool) -> None:
        """A synthetic incident walks the whole path and can never replace."""
        self._rule("DrillSchedule", DRILL, function, enabled=enabled, late=cdk.Duration.hours(1))

    def _rule(
        self,
        name: str,
        when: events.Schedule,
        function: lambda_.Function,
        *,
        enabled: bool,
        late: cdk.Duration,
    ) -> None:
        rule = events.Rule(
            self, name, schedule=when, enabled=enabled, description=f"Calls {function.node.id}"
        )
        rule.add_target(
            targets.LambdaFunction(
                function, dead_letter_queue=self._dead, max_event_age=late, retry_attempts=2
            )
        )
        fix(rule, name)
