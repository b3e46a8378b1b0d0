"""The other way to replace: HyperPod's own label on the approved node. Deployed only when chosen.

All guards are those of `replace`; beside them NodeRecovery must be Automatic, or HyperPod would not act.
The identity of this function may set that label to that value and nothing else (admission policy).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..domain.errors import NeedsHumanError
from ..ports import Approvals, Bus, Clock, Cluster, Controls, Incidents, Kubernetes, Replacer
from ..settings import ReplaceByLabelSettings
from . import replace
from .outcome import StepResult


@dataclass(frozen=True, slots=True)
class Needs:
    settings: ReplaceByLabelSettings
    incidents: Incidents
    approvals: Approvals
    controls: Controls
    cluster: Cluster
    labeller: Replacer
    kubernetes: Kubernetes
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    if needs.cluster.describe().node_recovery != "Automatic":
        raise NeedsHumanError("NodeRecovery is not Automatic: the label would replace nothing")
    by_label = replace.Needs(
        needs.settings,
        needs.incidents,
        needs.approvals,
        needs.controls,
        needs.cluster,
        needs.labeller,
        needs.kubernetes,
        needs.bus,
        needs.clock,
    )
    return replace.run(by_label, incident_id)
