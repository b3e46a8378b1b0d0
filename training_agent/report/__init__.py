"""Tells the world what the guard saw: spool, log, termination log, quarantine record, event bus, metrics.

In: registrations, progress and alarms from `training_agent.guard`. Out: files at once, AWS calls from a
thread of its own that never blocks or breaks training. Next: the pipeline's rule, queue and ingest.
"""

from __future__ import annotations

from .job import JobReporter, choose_publishers, job_reporter
from .types import GroupReporter, Reporter, StepChecks

__all__ = ["GroupReporter", "JobReporter", "Reporter", "StepChecks", "choose_publishers", "job_reporter"]
