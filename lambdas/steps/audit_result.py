"""A targeted audit's result: somebody replayed the capsule on the cordoned node. Used by `ingest`.

In: an "SDC Targeted Audit Result" event. Out: a claim at the incident, which `confirm` reads at its next
look. One that computed wrong again asks for the replacement; one that passed is evidence for people and
releases nothing, because whoever may publish could have written it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

from training_agent.contract import ContractError, DetailType, TargetedAuditResult, decode

from ..domain.errors import NeedsHumanError, PermanentError
from ..domain.incident import AuditClaim, Incident
from ..domain.times import moment, stamp
from ..settings import IngestSettings
from .envelope import open_envelope
from .outcome import Recorder, alarm_of, amend

MAX_CLAIMS = 5
_HASH = re.compile(r"[0-9a-f]{64}")


def take(needs: Recorder, settings: IngestSettings, body: str, now: datetime) -> str:
    """Note one result; returns the incident's id.

    Raises:
        ContractError: with the reason, for the audit trail.
    """
    envelope = open_envelope(body, DetailType.TARGETED_AUDIT_RESULT)
    if envelope.replayed:
        raise ContractError("replayed from an archive: recorded, never acted on")
    result = decode(TargetedAuditResult, envelope.detail)
    _accept(settings, result, now)
    try:
        incident = needs.incidents.get(result.incident_id)
    except PermanentError:
        raise ContractError("no such incident") from None
    _match(incident, result, _capsules(needs, incident))
    claim = AuditClaim(result.capsule_hash, result.passed, stamp(now), result.gpu_uuid or "")
    amend(needs, incident.id, lambda i: _with(i, claim))
    word = "passed" if result.passed else "computed wrong again"
    needs.incidents.audit(incident.id, "targeted audit", f"{word}, capsule {result.capsule_hash}", now)
    return incident.id


def _accept(settings: IngestSettings, result: TargetedAuditResult, now: datetime) -> None:
    if result.cluster != settings.cluster_name:
        raise ContractError("result of another cluster")
    if _HASH.fullmatch(result.capsule_hash) is None:
        raise ContractError("capsule_hash is no SHA-256")
    if re.fullmatch(r"[0-9a-f]{16}", result.incident_id) is None:
        raise ContractError("incident_id is no incident's")
    try:
        age = now - moment(result.time)
    except ValueError as e:
        raise ContractError(f"time: {e}") from None
    if age > settings.max_alarm_age:
        raise ContractError(f"result is {age} old")


def _match(incident: Incident, result: TargetedAuditResult, capsules: frozenset[str]) -> None:
    if incident.state.terminal:
        raise ContractError(f"the incident has ended as {incident.state.value}")
    if incident.instance_id is None or incident.instance_id != result.instance_id:
        raise ContractError("the result is from another instance than the incident's")
    if capsules and result.capsule_hash not in capsules:
        raise ContractError("the result is of a capsule that the incident's alarms do not list")


def _capsules(needs: Recorder, incident: Incident) -> frozenset[str]:
    """Hashes that the alarm, and those that joined it, list; agents of the version before wrote none."""
    try:
        alarms = [alarm_of(needs.incidents, needs.incidents.get(i)) for i in (incident.id, *incident.joined)]
    except NeedsHumanError as e:
        raise ContractError(str(e)) from None
    return frozenset(c.sha256 for alarm in alarms for c in alarm.capsules)


def _with(incident: Incident, claim: AuditClaim) -> Incident:
    """One claim per capsule and GPU; the first counts, but passes, however many, never hide a failure."""
    known = {(c.capsule_hash, c.passed, c.gpu) for c in incident.audits}
    if (claim.capsule_hash, claim.passed, claim.gpu) in known:
        return incident
    room = incident.audits
    if len(room) >= MAX_CLAIMS:
        passes = [c for c in room if c.passed]
        if claim.passed or not passes:
            return incident
        room = tuple(c for c in room if c is not passes[-1])
    return replace(incident, audits=(*room, claim))
