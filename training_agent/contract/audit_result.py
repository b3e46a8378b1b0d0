"""What a targeted audit found: a capsule replayed on the cordoned node itself.

Published as "SDC Targeted Audit Result" by the job pinned to that node, read by `lambdas.steps.audit_result`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .names import SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class TargetedAuditResult:
    """One replay of one capsule on one GPU."""

    cluster: str
    incident_id: str
    instance_id: str
    gpu_uuid: str | None
    capsule_hash: str  # SHA-256 (hex) of the capsule that was replayed
    passed: bool  # the bits were those of the healthy peers
    time: str  # UTC, ISO 8601 with Z
    evidence: str = ""  # one sentence for people
    schema_version: str = SCHEMA_VERSION
