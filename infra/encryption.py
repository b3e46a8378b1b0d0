"""One key for all that this stack keeps: tables, queues and topics. Logs hold ids and outcomes only, and
CloudWatch encrypts them by itself.

In: the setting `customer_managed_key`. Out: `Encryption` (the key, or None for AWS's own). Next: whoever
makes a resource. The key's policy is where access is given, bound to the service that decrypts on a caller's
behalf, so that no function's role needs a kms action and none of them can decrypt by itself.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from .config import Deployment
from .logical_ids import fix

PUBLISHERS = ("cloudwatch.amazonaws.com", "events.amazonaws.com", "sns.amazonaws.com")  # to topics and queues
ON_BEHALF = ("dynamodb", "sqs", "sns")  # services that use the key for a caller whom IAM lets use them
USE = ("kms:Decrypt", "kms:GenerateDataKey*")


class Encryption(Construct):
    """The key and its policy."""

    def __init__(self, scope: Construct, config: Deployment) -> None:
        super().__init__(scope, "Encryption")
        self.key: kms.Key | None = None
        if not config.customer_managed_key:
            return
        stack = cdk.Stack.of(self)
        self.key = fix(
            kms.Key(
                self,
                "DataKey",
                description=f"Silent data corruption on {config.cluster_name}: tables, queues, topics",
                enable_key_rotation=True,
                removal_policy=cdk.RemovalPolicy.RETAIN,  # the tables outlive the stack, and need it
                pending_window=cdk.Duration.days(30),
            ),
            "DataKey",
        )
        for statement in (self._publishers(), self._callers(stack)):
            self.key.add_to_resource_policy(statement)

    def _publishers(self) -> iam.PolicyStatement:
        # Without a condition, as the services document it: not each of them says for whom it acts, and an
        # alarm that cannot be encrypted is lost in silence. Queue and topic policies say who may send what.
        return iam.PolicyStatement(
            sid="EveryPublisher",
            principals=[iam.ServicePrincipal(service) for service in PUBLISHERS],
            actions=list(USE),
            resources=["*"],  # in a key's policy: this key
        )

    def _callers(self, stack: cdk.Stack) -> iam.PolicyStatement:
        return iam.PolicyStatement(
            sid="ThroughTheServiceThatHoldsTheData",
            principals=[iam.AnyPrincipal()],
            actions=[*USE, "kms:Encrypt", "kms:ReEncrypt*", "kms:DescribeKey", "kms:CreateGrant"],
            resources=["*"],
            conditions={
                "StringEquals": {
                    "kms:CallerAccount": stack.account,
                    "kms:ViaService": [f"{name}.{stack.region}.{stack.url_suffix}" for name in ON_BEHALF],
                }
            },
        )
