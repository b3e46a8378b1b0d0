"""How events come in: bus -> rule -> queue -> function, with a dead-letter queue behind each hop.

In: events of the training pods. Out: `Triggers` (bus and queues); `feed` connects them to functions. Next:
the handlers `ingest` and `register`. A record that fails alone is redelivered alone (partial batches). What
is put on the bus is archived, so that an incident can be read later; a replayed event is recorded, never
acted on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from training_agent.contract.names import EVENT_SOURCE, DetailType

from .config import Deployment
from .encryption import Encryption
from .logical_ids import fix
from .queues import dead_letters, queue, to_queue

BATCH_SIZE = 10


@dataclass(frozen=True)
class Inlet:
    """One kind of event on its way in."""

    queue: sqs.Queue
    dead_letters: sqs.Queue


class Triggers(Construct):
    """The dedicated bus, and one rule and queue for each detail-type that the pipeline listens to."""

    def __init__(self, scope: Construct, config: Deployment, encryption: Encryption) -> None:
        super().__init__(scope, "Triggers")
        self._key = encryption.key
        self.bus = fix(
            events.EventBus(
                self,
                "SdcBus",
                event_bus_name=f"training-sdc-{config.cluster_name}",
                description=f"Silent data corruption alarms of HyperPod cluster {config.cluster_name}",
            ),
            "SdcBus",
        )
        self._policy()
        self._archive(config)
        self.alarms = self._inlet("Alarm", DetailType.ALARM, DetailType.TARGETED_AUDIT_RESULT)
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

    def _inlet(self, name: str, *kinds: DetailType) -> Inlet:
        dead = dead_letters(self, f"{name}DeadLetters", self._key)
        inlet = Inlet(queue(self, f"{name}Queue", self._key, dead), dead)
        rule = events.Rule(
            self,
            f"{name}Rule",
            event_bus=self.bus,
            event_pattern=events.EventPattern(
                source=[EVENT_SOURCE], detail_type=[kind.value for kind in kinds]
            ),
            description=f"{', '.join(kind.value for kind in kinds)} to the {name.lower()} queue",
        )
        to_queue(rule, inlet.queue, dead)
        fix(rule, f"{name}Rule")
        return inlet

    def _policy(self) -> None:
        """Nobody outside the account may put; inside it, nobody may speak with another source's name."""
        stack = cdk.Stack.of(self)
        foreign: Mapping[str, Any] = {"StringNotEquals": {"aws:PrincipalAccount": stack.account}}
        other_source: Mapping[str, Any] = {"ForAnyValue:StringNotEquals": {"events:source": [EVENT_SOURCE]}}
        statements = {"OnlyThisAccount": foreign, "OnlyOurSource": other_source}
        for sid, conditions in statements.items():
            statement = iam.PolicyStatement(
                sid=sid,
                effect=iam.Effect.DENY,
                principals=[iam.AnyPrincipal()],
                actions=["events:PutEvents"],
                resources=[self.bus.event_bus_arn],
                conditions=conditions,
            )
            fix(
                events.CfnEventBusPolicy(
                    self,
                    sid,
                    event_bus_name=self.bus.event_bus_name,
                    statement_id=sid,
                    statement=statement.to_statement_json(),
                ),
                f"SdcBus{sid}",
            )

    def _archive(self, config: Deployment) -> None:
        archive = events.Archive(
            self,
            "SdcArchive",
            source_event_bus=self.bus,
            event_pattern=events.EventPattern(source=[EVENT_SOURCE]),
            retention=cdk.Duration.days(config.archive_days),
            description="What the training pods and the pipeline said",
        )
        fix(archive, "SdcArchive")
