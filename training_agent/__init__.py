"""Finds silent data corruption inside PyTorch DDP training and names the GPU.

Importing this package needs neither torch nor boto3; they are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._phase import Phase
    from .checkpoint import CheckpointStore
    from .checkpoint_together import save_together
    from .checks.weights import find_divergent_ranks
    from .errors import AgentError, ConfigurationError, SdcAlarm
    from .guard import Guard, attach
    from .hold import hold_while_quarantined
    from .loop import train
    from .observers import observer
    from .policy import Mode, Naming, Policy
    from .report import job_reporter
    from .schedule import Schedule
    from .settings import AgentSettings

_HOME = {
    "attach": "guard",
    "Guard": "guard",
    "train": "loop",
    "Mode": "policy",
    "Naming": "policy",
    "Policy": "policy",
    "Schedule": "schedule",
    "SdcAlarm": "errors",
    "ConfigurationError": "errors",
    "AgentError": "errors",
    "AgentSettings": "settings",
    "CheckpointStore": "checkpoint",
    "save_together": "checkpoint_together",
    "Phase": "_phase",
    "find_divergent_ranks": "checks.weights",
    "hold_while_quarantined": "hold",
    "job_reporter": "report",
    "observer": "observers",
}

__all__ = [
    "attach",
    "train",
    "Guard",
    "Mode",
    "Naming",
    "Policy",
    "Schedule",
    "SdcAlarm",
    "ConfigurationError",
    "AgentError",
    "AgentSettings",
    "CheckpointStore",
    "save_together",
    "Phase",
    "find_divergent_ranks",
    "hold_while_quarantined",
    "job_reporter",
    "observer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOME[name]}", __name__), name)
