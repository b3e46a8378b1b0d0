"""Which function holds which variables: the list of `lambdas.settings`."""

from __future__ import annotations

_COMMON = ("POWERTOOLS_SERVICE_NAME", "POWERTOOLS_METRICS_NAMESPACE", "LOG_LEVEL")
_STEP = (*_COMMON, "INCIDENT_TABLE", "CLUSTER_NAME", "EVENT_BUS_NAME")
VARIABLES: dict[str, tuple[str, ...]] = {
    "ingest": (*_STEP, "STATE_MACHINE_ARN", "MAX_ALARM_AGE_SECONDS"),
    "register": (*_COMMON, "REGISTRATION_TABLE", "CLUSTER_NAME"),
    "locate": (*_STEP, "REGISTRATION_TABLE"),
    "contain": (*_STEP, "QUARANTINE_TABLE", "CONTROL_TABLE", "MODE"),
    "decide": (*_STEP, "CONTROL_TABLE", "MODE", "APPROVAL_TIMEOUT_SECONDS", "DEEP_CHECK_ENABLED"),
    "confirm": (*_STEP, "CONTROL_TABLE", "MODE", "DEEP_CHECK_ENABLED"),
    "request_approval": (*_STEP, "APPROVAL_TABLE", "APPROVAL_TOPIC_ARN", "REVIEW_URL", "APPROVAL_TIMEOUT_SECONDS", "MODE"),
    "replace": (*_STEP, "APPROVAL_TABLE", "CONTROL_TABLE", "MODE", "REPLACEMENTS_PER_DAY",
                "REPLACEMENT_BUDGET_PERCENT", "REPLACEMENTS_PER_HOUR"),
    "verify": _STEP,
    "resume": (*_STEP, "QUARANTINE_TABLE", "CONTROL_TABLE", "REGISTRATION_TABLE", "MODE", "APPROVAL_TOPIC_ARN"),
    "approval_show": (*_COMMON, "APPROVAL_TABLE", "INCIDENT_TABLE"),
    "approval_decide": (*_COMMON, "APPROVAL_TABLE", "INCIDENT_TABLE"),
}  # fmt: skip
