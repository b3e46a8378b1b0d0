"""What training pods get: one managed policy, and the settings of the agent as outputs.

In: bus and quarantine table. Out: `TrainingPodPolicy` for the pods' role, outputs for the job manifest. Next:
the operator attaches the policy to the role of the pods (Pod Identity or IRSA).
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from training_agent.contract.names import EVENT_SOURCE, METRIC_NAMESPACE, DetailType

from .logical_ids import fix
from .storage import Storage
from .triggers import Triggers

FROM_PODS = [
    kind.value for kind in (DetailType.ALARM, DetailType.NODE_REGISTERED, DetailType.TARGETED_AUDIT_RESULT)
]


class TrainingSide(Construct):
    """Least privilege for pods: publish alarms and metrics, read the quarantine."""

    def __init__(self, scope: Construct, storage: Storage, triggers: Triggers) -> None:
        super().__init__(scope, "TrainingSide")
        statements = [
            iam.PolicyStatement(
                sid="PublishAlarms",
                actions=["events:PutEvents"],
                resources=[triggers.bus.event_bus_arn],
                conditions={  # both keys are multi-valued: plain StringEquals would always deny
                    "ForAllValues:StringEquals": {
                        "events:source": [EVENT_SOURCE],
                        "events:detail-type": FROM_PODS,
                    },
                    "Null": {"events:source": "false", "events:detail-type": "false"},
                },
            ),
            iam.PolicyStatement(
                sid="PublishMetrics",
                actions=["cloudwatch:PutMetricData"],
                resources=["*"],  # PutMetricData has no resource level; the namespace is the limit
                conditions={"StringEquals": {"cloudwatch:namespace": METRIC_NAMESPACE}},
            ),
            iam.PolicyStatement(
                sid="ReadQuarantine",
                actions=["dynamodb:GetItem"],
                resources=[storage.quarantine.table_arn],
            ),
        ]
        policy = fix(
            iam.ManagedPolicy(
                self,
                "TrainingPodPolicy",
                description="Training pods: publish SDC alarms and metrics, read the quarantine table",
                document=iam.PolicyDocument(statements=statements),
            ),
            "TrainingPodPolicy",
        )
        self._output("EventBusName", triggers.bus.event_bus_name, "SDC_EVENT_BUS of the training pods")
        self._output("QuarantineTableName", storage.quarantine.table_name, "SDC_QUARANTINE_TABLE of the pods")
        self._output("TrainingPodPolicyArn", policy.managed_policy_arn, "Attach to the role of the pods")

    def _output(self, name: str, value: str, description: str) -> None:
        fix(cdk.CfnOutput(self, name, value=value, description=description), name)
