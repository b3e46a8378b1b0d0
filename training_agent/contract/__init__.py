"""The wire format between agent and pipeline: frozen dataclasses, standard library only.

The Lambda bundle carries this package, the training image carries it with the agent; neither needs the other.
"""

from __future__ import annotations

from .alarm import (
    Alarm,
    CapsuleRef,
    Check,
    Contest,
    Finding,
    FindingKind,
    Independence,
    Pair,
    ResumePoint,
    SecondConfirmation,
    Verdict,
    Vote,
)
from .audit_result import TargetedAuditResult
from .codec import (
    ContractError,
    UnknownMajorError,
    decode,
    delivery_key,
    encode,
    from_plain,
    occurrence_key,
    to_plain,
    trail_name,
)
from .console import console_url
from .names import (
    EVENT_SOURCE,
    INSTANCE_ID_PATTERN,
    MAX_DETAIL_BYTES,
    METRIC_NAMESPACE,
    NODE_NAME_PREFIX,
    SCHEMA_VERSION,
    DetailType,
    Env,
    ExitCode,
    Metric,
)
from .place import Job, Place, instance_id_of
from .quarantine import (
    MODE_SUBJECT,
    QUARANTINE_FILE,
    Mode,
    QuarantineEntry,
    QuarantineFile,
    QuarantineState,
    gpu_subject,
    instance_subject,
    job_subject,
)
from .registration import NodeRegistration

__all__ = [
    "Alarm",
    "CapsuleRef",
    "Check",
    "Contest",
    "Finding",
    "FindingKind",
    "Independence",
    "Pair",
    "ResumePoint",
    "SecondConfirmation",
    "Verdict",
    "Vote",
    "ContractError",
    "UnknownMajorError",
    "decode",
    "delivery_key",
    "console_url",
    "encode",
    "from_plain",
    "occurrence_key",
    "to_plain",
    "trail_name",
    "EVENT_SOURCE",
    "INSTANCE_ID_PATTERN",
    "MAX_DETAIL_BYTES",
    "METRIC_NAMESPACE",
    "NODE_NAME_PREFIX",
    "SCHEMA_VERSION",
    "DetailType",
    "Env",
    "ExitCode",
    "Metric",
    "Job",
    "Place",
    "instance_id_of",
    "MODE_SUBJECT",
    "QUARANTINE_FILE",
    "Mode",
    "QuarantineEntry",
    "QuarantineFile",
    "QuarantineState",
    "gpu_subject",
    "instance_subject",
    "job_subject",
    "NodeRegistration",
    "TargetedAuditResult",
]
