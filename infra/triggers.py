"""How events come in: bus -> rule -> queue -> function, with a dead-letter queue behind each hop.

In: events of the training pods. Out: `Triggers` (bus and queues); `feed` connects them to functions. Next:
the handlers `ingest` and `register`. A record that fails alone is redelivered alone (partial batches).
"""

from __future__ import annotations

from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from training_agent.contract.names import EVENT_SOURCE, DetailType

from .config import Deployment
from .logical_ids import fix

FUNCTION_TIMEOUT_S = 60  # of ingest and register
BATCH_SIZE = 10
RECEIVES_BEFORE_DEAD = 5


@dataclass(frozen=True)
class Inlet:
    """One kind of event on its way in."""

    queue: sqs.Queue
    dead_letters: sqs.Queue


class Triggers(Construct):
    """The dedicated bus, and one rule and queue for each detail-type that the pipeline listens to."""

    def __init__(self, scope: Construct, config: Deployment) -> None:
        super().__init__(scope, "Triggers")
        self.bus = fix(
            events.EventBus(
                self,
                "SdcBus",
                event_bus_name=f"training-sdc-{config.cluster_name}",
                description=f"Silent data corruption alarms of HyperPod cluster {config.cluster_name}",
            ),
            "SdcBus",
        )
        self.alarms = self._inlet("Alarm", DetailType.ALARM)
        self.registrations = self._inlet("Registration", DetailType.NODE_REGISTERED)

    def feed(self, inlet: Inlet, name: str, function: lambda_.Function) -> None:
        """Let `function` read `inlet`; its own role carries the permission to receive."""
        fix(
            lambda_.EventSourceMapping(
                self,
                f"{name}QueueMapping",
                target=function,
                event_source_arn=inlet.queue.queue_arn,
                batch_size=BATCH_SIZE,
                report_batch_item_failures=True,
            ),
            f"{name}QueueMapping",
        )

    def _inlet(self, name: str, detail_type: DetailType) -> Inlet:
        dead_letters = self._queue(f"{name}DeadLetters", retention=cdk.Duration.days(14))
        queue = self._queue(
            f"{name}Queue",
            retention=cdk.Duration.days(4),
            visibility_timeout=cdk.Duration.seconds(6 * FUNCTION_TIMEOUT_S),  # as AWS asks
            dead_letter_queue=sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=RECEIVES_BEFORE_DEAD),
        )
        rule = events.Rule(
            self,
            f"{name}Rule",
            event_bus=self.bus,
            event_pattern=events.EventPattern(source=[EVENT_SOURCE], detail_type=[detail_type.value]),
            description=f"{detail_type.value} events to the {name.lower()} queue",
        )
        rule.add_target(targets.SqsQueue(queue, dead_letter_queue=dead_letters))
        fix(rule, f"{name}Rule")
        return Inlet(queue, dead_letters)

    def _queue(
        self,
        name: str,
        retention: cdk.Duration,
        visibility_timeout: cdk.Duration | None = None,
        dead_letter_queue: sqs.DeadLetterQueue | None = None,
    ) -> sqs.Queue:
        queue = sqs.Queue(
            self,
            name,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=retention,
            visibility_timeout=visibility_timeout,
            dead_letter_queue=dead_letter_queue,
        )
        return fix(queue, name)
