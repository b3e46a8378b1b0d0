"""Queues as this stack makes them: encrypted, TLS only, each with a dead-letter queue behind it.

In: the key. Out: `queue`, `dead_letters`. Next: `triggers.py`, `schedules.py`, `cluster_events.py`.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from .logical_ids import fix

FUNCTION_TIMEOUT_S = 60  # of every function that reads a queue
RECEIVES_BEFORE_DEAD = 5
DELIVERY_AGE, DELIVERY_ATTEMPTS = cdk.Duration.hours(24), 185  # EventBridge's utmost, said aloud


def dead_letters(scope: Construct, name: str, key: kms.IKey | None) -> sqs.Queue:
    """Where what nobody could take is kept for two weeks."""
    return _queue(scope, name, key, retention_period=cdk.Duration.days(14))


def queue(
    scope: Construct, name: str, key: kms.IKey | None, dead: sqs.Queue, delay: cdk.Duration | None = None
) -> sqs.Queue:
    """A queue that a function reads; a message which fails five times goes to `dead`."""
    return _queue(
        scope,
        name,
        key,
        retention_period=cdk.Duration.days(4),
        delivery_delay=delay,
        visibility_timeout=cdk.Duration.seconds(6 * FUNCTION_TIMEOUT_S),  # as AWS asks
        dead_letter_queue=sqs.DeadLetterQueue(queue=dead, max_receive_count=RECEIVES_BEFORE_DEAD),
    )


def to_queue(rule: events.Rule, target: sqs.Queue, dead: sqs.Queue) -> None:
    """Let `rule` fill `target`; what cannot be delivered within a day goes to `dead`."""
    rule.add_target(
        targets.SqsQueue(
            target, dead_letter_queue=dead, max_event_age=DELIVERY_AGE, retry_attempts=DELIVERY_ATTEMPTS
        )
    )


def _queue(scope: Construct, name: str, key: kms.IKey | None, **properties: object) -> sqs.Queue:
    made = sqs.Queue(
        scope,
        name,
        encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
        encryption_master_key=key,
        enforce_ssl=True,
        **properties,  # type: ignore[arg-type]
    )
    return fix(made, name)
