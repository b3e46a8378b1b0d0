"""Fills a step's `Needs` with real adapters: what a function may touch is what its dataclass lists.

Built once per Lambda process. Adapters are imported when a function needs them, so a cold start of `decide`
loads no Kubernetes client.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TypeVar

from .settings import MODELS

N = TypeVar("N")


class SystemClock:
    """UTC now."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)


def _incidents(s: Any) -> Any:
    from .adapters.incidents import IncidentTable

    return IncidentTable(s.incident_table)


def _approvals(s: Any) -> Any:
    from .adapters.approvals import ApprovalTable

    return ApprovalTable(s.approval_table)


def _registrations(s: Any) -> Any:
    from .adapters.registrations import RegistrationTable

    return RegistrationTable(s.registration_table)


def _quarantine(s: Any) -> Any:
    from .adapters.quarantine import QuarantineTable

    return QuarantineTable(s.quarantine_table)


def _controls(s: Any) -> Any:
    from .adapters.controls import ControlTable

    return ControlTable(s.control_table)


def _cluster(s: Any) -> Any:
    from .adapters.sagemaker import HyperPod

    return HyperPod(s.cluster_name)


def _kubernetes(s: Any) -> Any:
    from .adapters.eks import EksCluster

    return EksCluster(s.cluster_name)


def _telemetry(s: Any) -> Any:
    from .adapters.prometheus import Prometheus

    return Prometheus(s.telemetry_url)


def _mail(s: Any) -> Any:
    from .adapters.sns import ApprovalTopic

    return ApprovalTopic(s.approval_topic_arn)


def _workflow(s: Any) -> Any:
    from .adapters.stepfunctions import StateMachine

    return StateMachine(s.state_machine_arn)


def _callback(s: Any) -> Any:
    from .adapters.stepfunctions import TaskCallback

    return TaskCallback()


def _releaser(s: Any) -> Any:
    from .adapters.release import ResumeFunction

    return ResumeFunction(s.resume_function)


def _bus(s: Any) -> Any:
    from .adapters.eventbus import EventBus

    return EventBus(s.event_bus_name)


def _labeller(s: Any) -> Any:
    from .adapters.node_label import NodeLabel

    return NodeLabel(s.cluster_name)


def _executions(s: Any) -> Any:
    from .adapters.stepfunctions import Executions

    return Executions(s.state_machine_arn)


def _numbers(s: Any) -> Any:
    from .adapters.cloudwatch import CloudWatch

    return CloudWatch(s.cluster_name)


FACTORIES: dict[str, Callable[[Any], Any]] = {
    "settings": lambda s: s,
    "clock": lambda s: SystemClock(),
    "incidents": _incidents,
    "approvals": _approvals,
    "registrations": _registrations,
    "quarantine": _quarantine,
    "controls": _controls,
    "cluster": _cluster,
    "replacer": _cluster,
    "labeller": _labeller,
    "kubernetes": _kubernetes,
    "telemetry": _telemetry,
    "mail": _mail,
    "workflow": _workflow,
    "callback": _callback,
    "releaser": _releaser,
    "executions": _executions,
    "numbers": _numbers,
    "bus": _bus,
}


@functools.cache
def needs(function: str, kind: type[N]) -> N:
    """The `Needs` of a function, built from its own settings."""
    settings = MODELS[function]()  # type: ignore[call-arg]  # filled from the environment
    return kind(**{f.name: FACTORIES[f.name](settings) for f in dataclasses.fields(kind)})  # type: ignore[arg-type]
