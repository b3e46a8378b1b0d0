"""What is watched, as data: name, metric, threshold, meaning. docs/operate.md says what to do about each.

In: the metric names of the agent and of the reconciler. Out: tables for `monitoring.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from training_agent.contract.names import Metric


@dataclass(frozen=True, slots=True)
class Watch:
    """One alarm; its metric has the dimension set {Cluster} unless `monitoring.py` gives another."""

    name: str  # logical id, and the heading in docs/operate.md
    metric: str
    meaning: str
    threshold: float = 0
    statistic: str = "Maximum"
    periods: int = 1  # of five minutes
    silence: bool = False  # alarms when there is nothing above the threshold


OF_THE_AGENT = (
    Watch(
        "NonFiniteGradients",
        Metric.NONFINITE_GRAD.value,
        "A rank's gradient is not finite; an incident should be open",
    ),
    Watch(
        "ReplayMismatch",
        Metric.REPLAY_MISMATCH.value,
        "A micro-batch gave other bits elsewhere; an incident should be open",
    ),
    Watch(
        "DivergentReplicas",
        Metric.DIVERGENT_TENSORS.value,
        "Replicas hold different weights; an incident should be open",
    ),
    Watch(
        "ReductionMismatch",
        Metric.REDUCTION_MISMATCH.value,
        "The checksum of an all-reduce differs; an incident should be open",
    ),
)
OF_THE_RECONCILER = (
    Watch("JobsWithoutHeartbeat", "jobs_without_heartbeat", "A registered job's agent has gone silent"),
    Watch(
        "OldestOpenIncident",
        "oldest_open_incident_seconds",
        "An incident has been open for more than a day",
        threshold=86400,
    ),
    Watch(
        "IncidentsAbandoned",
        "incidents_abandoned",
        "An incident's execution never started or has died; its approvers were mailed",
    ),
    Watch(
        "IncidentsWithoutProgress",
        "incidents_without_progress",
        "An open incident stands still, or could not be judged",
    ),
    Watch(
        "UnknownOutcomes",
        "unknown_outcomes",
        "The result of an effect was never written down",
        periods=3,
    ),
    Watch(
        "CordonsWithoutIncident",
        "cordons_without_incident",
        "A node bears our cordon, and no incident accounts for it",
    ),
    Watch(
        "AlarmsWithoutIncident",
        "alarms_without_incident",
        "A metric of the agent fired and no incident of that check was opened: its event was lost",
    ),
    Watch(
        "ReconcilerLooksFailed",
        "reconcile_failed_looks",
        "The reconciler could not look at everything for fifteen minutes",
        periods=3,
    ),
    Watch(
        "BreakerOpen", "breaker_open", "Too many replacements: none is made until a human closes the breaker"
    ),
    Watch(
        "NoConfirmedApprover",
        "approvers_without_confirmation",
        "Nobody has confirmed the approval mails: requests would reach no one",
    ),
    Watch(
        "ReconcilerSilent",
        "reconcile_done",
        "The reconciler has not finished for fifteen minutes: nobody judges heartbeats",
        statistic="Sum",
        periods=3,
        silence=True,
    ),
)
