"""The five tables: what the pipeline knows.

In: the key. Out: `Storage`, whose tables the functions and the training pods name. Next: `functions.py`.
Tables stay when the stack goes: the incident table is the audit trail, a waiting approval must survive. Only
registrations expire: of all rows they alone are evidence that is void once the pods have gone. Locks, gates
and approvals are released by terminal states, never by time.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from constructs import Construct

from .encryption import Encryption
from .logical_ids import fix

EXPIRY = "expires_at_epoch"  # seconds; a row without it stays


class Storage(Construct):
    """Incidents, approvals, registrations, quarantine and control, all paid per request and encrypted."""

    def __init__(self, scope: Construct, encryption: Encryption) -> None:
        super().__init__(scope, "Storage")
        self._key = encryption.key
        self.incidents = self._table("IncidentTable", "pk", "sk")
        self.approvals = self._table("ApprovalTable", "approval_id")
        self.approvals.add_global_secondary_index(
            index_name="by_incident",
            partition_key=_text("incident_id"),
            projection_type=dynamodb.ProjectionType.KEYS_ONLY,  # a task token is never copied into an index
        )
        self.registrations = self._table("RegistrationTable", "job_uid", "attempt_node", expires_by=EXPIRY)
        self.quarantine = self._table("QuarantineTable", "subject")
        self.control = self._table("ControlTable", "key")

    def _table(
        self, name: str, partition: str, sort: str | None = None, expires_by: str | None = None
    ) -> dynamodb.Table:
        table = dynamodb.Table(
            self,
            name,
            partition_key=_text(partition),
            sort_key=_text(sort) if sort else None,
            time_to_live_attribute=expires_by,
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            encryption=(
                dynamodb.TableEncryption.CUSTOMER_MANAGED
                if self._key
                else dynamodb.TableEncryption.AWS_MANAGED
            ),
            encryption_key=self._key,
            deletion_protection=True,
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        return fix(table, name)


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)
