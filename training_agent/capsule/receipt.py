"""The receipt of a replay: the targeted-audit result that the pipeline's `confirm` reads.

In: an `Outcome`, the incident, where it ran. Out: a `TargetedAuditResult`, and its event on the bus.
Next: `lambdas.steps.audit_result`.
"""

from __future__ import annotations

import re
from typing import Any

from ..contract import DetailType, Place, TargetedAuditResult, encode
from ..errors import ConfigurationError
from ..log_line import utc_now
from ..report.event_bus import Event, put
from .content import Capsule
from .recompute import Answer, Outcome

_INCIDENT = re.compile(r"[0-9a-f]{16}")


def receipt_of(
    capsule: Capsule, outcome: Outcome, incident: str, place: Place, cluster: str
) -> TargetedAuditResult | None:
    """The receipt; None for an undecided replay, which is no evidence either way.

    Raises:
        ConfigurationError: the incident's id is none, or the node is no HyperPod instance.
    """
    if _INCIDENT.fullmatch(incident) is None:
        raise ConfigurationError(f"{incident!r} is no incident id: 16 hex digits, as mails show it.")
    if place.instance_id is None:
        raise ConfigurationError(
            f"The node {place.node} is no HyperPod instance, so the receipt could not be matched with the "
            "incident's. Set NODE_NAME in the pod spec (fieldRef: spec.nodeName)."
        )
    if outcome.answer is Answer.UNDECIDED:
        return None
    return TargetedAuditResult(
        cluster=cluster,
        incident_id=incident,
        instance_id=place.instance_id,
        gpu_uuid=place.gpu_uuid,
        capsule_hash=capsule.sha256,
        passed=outcome.answer is Answer.EQUAL,
        time=utc_now(),
        evidence=f"step {capsule.facts.step}, micro-batch of rank {capsule.facts.micro_batch_of}: "
        f"{outcome.why}",
    )


def publish(receipt: TargetedAuditResult, client: Any, bus: str) -> str:
    """Put it on the pipeline's bus; "" or why the bus refused it.

    Raises:
        Exception: whatever boto3 raises when the call fails.
    """
    return put(client, bus, [Event(DetailType.TARGETED_AUDIT_RESULT, encode(receipt))])[1]
