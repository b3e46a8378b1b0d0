"""What each function is told by its environment: one settings model per function, only what it needs.

`infra` sets exactly `VARIABLES[function]`, the handlers read the same model; logic never reads the
environment. Importing this needs pydantic-settings and nothing of AWS.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from training_agent.contract import Mode


class Settings(BaseSettings):
    """Base: read by powertools itself, listed so that `VARIABLES` is complete. No setting has a default."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    powertools_service_name: str
    powertools_metrics_namespace: str
    log_level: str


class _Modal(Settings):
    """Functions with an effect, or that say what was none: the deployed mode; the table can only lower it."""

    mode: Mode
    control_table: str


class RegisterSettings(_Modal):
    cluster_name: str
    registration_table: str
    quarantine_table: str  # the mode row, which agents read before any incident writes it
    training_service_accounts: str = Field(min_length=3)  # "namespace/name", comma separated

    @property
    def accounts(self) -> frozenset[str]:
        """Who may register: the pods that training's role is bound to."""
        return frozenset(self.training_service_accounts.split(","))


class _Patient(Settings):
    """Functions that judge whether an alarm's event comes too late to be acted on."""

    max_alarm_age_seconds: int = Field(gt=0)

    @property
    def max_alarm_age(self) -> timedelta:
        return timedelta(seconds=self.max_alarm_age_seconds)


class IngestSettings(_Patient):
    cluster_name: str
    incident_table: str
    registration_table: str
    state_machine_arn: str
    event_bus_name: str


class LocateSettings(Settings):
    cluster_name: str
    incident_table: str
    registration_table: str
    event_bus_name: str


class ContainSettings(_Modal):
    cluster_name: str
    incident_table: str
    quarantine_table: str
    event_bus_name: str


class DecideSettings(_Modal):
    incident_table: str
    event_bus_name: str
    approval_timeout_seconds: int = Field(gt=0)


class ConfirmSettings(_Modal):
    cluster_name: str
    incident_table: str
    event_bus_name: str
    approval_table: str  # under NodeRecovery Automatic a human approves the check first
    deep_check_enabled: bool
    telemetry_url: str  # of a Prometheus workspace; empty: none


class RequestApprovalSettings(_Modal):
    cluster_name: str
    incident_table: str
    approval_table: str
    approval_topic_arn: str
    event_bus_name: str
    review_url: str
    approval_links: bool  # off: decided by signed requests only, so that the caller is known
    approval_timeout_seconds: int = Field(gt=0)
    replacement_budget_percent: float = Field(ge=0, le=100)

    @property
    def approval_timeout(self) -> timedelta:
        return timedelta(seconds=self.approval_timeout_seconds)


class ReplaceSettings(_Modal):
    cluster_name: str
    incident_table: str
    approval_table: str
    event_bus_name: str
    replacements_per_day: int = Field(ge=0)  # absolute cap in 24 hours
    replacement_budget_percent: float = Field(ge=0, le=100)  # of the Running nodes of the suspect's group
    replacements_per_hour: int = Field(ge=0)


class ReplaceByLabelSettings(ReplaceSettings):
    """The same guards; deployed only when this method was chosen."""


class VerifySettings(Settings):
    cluster_name: str
    incident_table: str
    control_table: str
    event_bus_name: str


class ResumeSettings(_Modal):
    cluster_name: str
    incident_table: str
    approval_table: str
    registration_table: str
    quarantine_table: str
    event_bus_name: str


class ApprovalShowSettings(Settings):
    approval_table: str
    approval_links: bool


class ApprovalDecideSettings(Settings):
    approval_table: str
    approval_links: bool


class ApprovalApiSettings(Settings):
    incident_table: str
    approval_table: str
    control_table: str
    resume_function: str  # the one that may release


class ReconcileSettings(_Modal, _Patient):
    cluster_name: str
    incident_table: str
    approval_table: str
    quarantine_table: str  # the mode row, kept current
    approval_topic_arn: str
    event_bus_name: str
    state_machine_arn: str
    approval_timeout_seconds: int = Field(gt=0)
    heartbeat_timeout_seconds: int = Field(gt=0)


class DrillSettings(Settings):
    cluster_name: str
    event_bus_name: str


MODELS: dict[str, type[Settings]] = {
    "register": RegisterSettings,
    "ingest": IngestSettings,
    "locate": LocateSettings,
    "contain": ContainSettings,
    "decide": DecideSettings,
    "confirm": ConfirmSettings,
    "request_approval": RequestApprovalSettings,
    "replace": ReplaceSettings,
    "replace_by_label": ReplaceByLabelSettings,
    "verify": VerifySettings,
    "resume": ResumeSettings,
    "approval_show": ApprovalShowSettings,
    "approval_decide": ApprovalDecideSettings,
    "approval_api": ApprovalApiSettings,
    "reconcile": ReconcileSettings,
    "drill": DrillSettings,
}

VARIABLES: dict[str, tuple[str, ...]] = {
    name: tuple(sorted(field.upper() for field in model.model_fields)) for name, model in MODELS.items()
}

HANDLERS: dict[str, str] = {
    name: f"lambdas.handlers.{name}" for name in MODELS if not name.startswith("approval_")
} | {
    "approval_show": "lambdas.approval_page.show",
    "approval_decide": "lambdas.approval_page.decide",
    "approval_api": "lambdas.approval_api.handle",
}
