"""Alarm in: validated, duplicates dropped, one incident per blamed node or one for the job, then executions.

In: an "SDC Alarm" event. Out: incident rows and executions with input {"incident_id"}; `locate` is next.
A bad event leaves one audit row with the reason and never an execution; when it was a true alarm that is not
acted on, the bus hears of it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from training_agent.contract import Alarm, ContractError, DetailType, decode, delivery_key, encode

from ..domain import findings
from ..domain.decision_table import Facts, systemic
from ..domain.details_missing import heard_of
from ..domain.drill import is_drill
from ..domain.errors import ConflictError
from ..domain.incident import REJECTED, Incident, State, evidence_hash, execution_name, incident_id
from ..domain.times import moment, stamp
from ..domain.world import Delivery, HistoryEntry
from ..ports import Bus, Clock, Incidents, Registrations, Workflow
from ..settings import IngestSettings
from . import audit_result
from .envelope import detail_type_of, open_envelope

MAX_CLOCK_AHEAD = timedelta(minutes=15)  # nodes' clocks may be ten minutes off
MAX_NAME = 256
ALARMS_PER_HOUR = 20  # different ones, of one job
IN_FLIGHT = timedelta(minutes=3)  # `ingest` and `locate` together run for less
UNREGISTERED = " of jobs that nobody verified"  # no job's uid
QUOTA_WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Needs:
    settings: IngestSettings
    incidents: Incidents
    registrations: Registrations
    workflow: Workflow
    bus: Bus
    clock: Clock


@dataclass(frozen=True, slots=True)
class Ingested:
    """For the log and the metrics."""

    opened: tuple[str, ...] = ()
    appended: tuple[str, ...] = ()
    rejected: str = ""


def run(needs: Needs, body: str) -> Ingested:
    """Take in one alarm.

    Raises:
        RetryableError: the store or Step Functions did not answer; the queue delivers again (fail closed).
    """
    now = needs.clock.now()
    if detail_type_of(body) == DetailType.TARGETED_AUDIT_RESULT.value:
        return _audit_result(needs, body, now)
    try:
        envelope = open_envelope(body, DetailType.ALARM)
        alarm = decode(Alarm, envelope.detail)
        if envelope.replayed:
            raise ContractError("replayed from an archive: recorded, never acted on")
        _accept(needs.settings, alarm)
    except ContractError as e:
        needs.incidents.reject(str(e)[:500], "SDC Alarm", body[:1000], now)
        return Ingested(rejected=str(e))
    untimely = _untimely(needs.settings, alarm, now)
    if untimely:
        needs.incidents.reject(untimely, "SDC Alarm", body[:1000], now)
        needs.bus.state_changed(_news(alarm, None, None, REJECTED, untimely))
        return Ingested(rejected=untimely)
    if not _within_quota(needs, alarm, now):
        reason = f"over {ALARMS_PER_HOUR} different alarms an hour of one job, or of jobs nobody verified"
        needs.incidents.reject(reason, "SDC Alarm", body[:1000], now)
        return Ingested(rejected=reason)
    groups = findings.group(alarm)
    named = len(groups)
    if _accuses_too_many(needs, alarm, named):
        # Whole nodes or camps: one incident that blames nobody, not one for each.
        groups = (findings.Group(None, alarm.named_ranks),)
    opened: list[str] = []
    appended: list[str] = []
    for one in groups:
        found, is_new = _take(needs, alarm, one, named, now)
        (opened if is_new else appended).append(found)
    _note(needs, alarm, (opened + appended)[0], now)
    return Ingested(tuple(opened), tuple(appended))


def _note(needs: Needs, alarm: Alarm, found: str, now: datetime) -> None:
    """That the event came: its metric's alarm, minutes later, is matched with this (`cluster_events`)."""
    if not is_drill(alarm):
        entry = HistoryEntry(heard_of(alarm.check), found, delivery_key(alarm), stamp(now))
        needs.incidents.remember(entry)


def _accuses_too_many(needs: Needs, alarm: Alarm, named: int) -> bool:
    """Systemic, by the nodes that registered and were verified: the alarm's own number could be any."""
    if not systemic(Facts(nodes=0, nodes_named=named)):
        return False  # at no size
    nodes = min(alarm.nodes, needs.registrations.nodes(alarm.job.uid, alarm.job.attempt))
    return systemic(Facts(nodes=nodes, nodes_named=named))


def _audit_result(needs: Needs, body: str, now: datetime) -> Ingested:
    try:
        return Ingested(appended=(audit_result.take(needs, needs.settings, body, now),))
    except ContractError as e:
        needs.incidents.reject(str(e)[:500], DetailType.TARGETED_AUDIT_RESULT.value, body[:1000], now)
        return Ingested(rejected=str(e))


def _within_quota(needs: Needs, alarm: Alarm, now: datetime) -> bool:
    """One job that floods cannot hide another, nor open incidents without end.

    Jobs without a verified node share one quota: their names cost nothing, and each of their alarms a mail.
    """
    known = needs.registrations.nodes(alarm.job.uid, alarm.job.attempt) > 0
    subject = f"alarms#{alarm.job.uid if known else UNREGISTERED}"
    recent = {e.what for e in needs.incidents.history(subject, stamp(now - QUOTA_WINDOW))}
    key = delivery_key(alarm)
    if key not in recent and len(recent) >= ALARMS_PER_HOUR:
        return False
    if key not in recent:
        needs.incidents.remember(HistoryEntry(subject, "", key, stamp(now)))
    return True


def _accept(settings: IngestSettings, alarm: Alarm) -> None:
    """Raise ContractError for what is well formed and still not to be acted on."""
    if alarm.cluster != settings.cluster_name:
        raise ContractError(f"alarm of cluster {alarm.cluster[:60]!r}, this is {settings.cluster_name!r}")
    if alarm.nodes > alarm.world_size:
        raise ContractError(f"{alarm.nodes} nodes for {alarm.world_size} ranks: a node without a rank")
    names = [alarm.job.uid, alarm.job.name, *(f.place.node for f in alarm.findings if f.place is not None)]
    names += [alarm.group] if alarm.group else []
    if not all(0 < len(name) <= MAX_NAME and _is_text(name) for name in names):
        raise ContractError(f"a name is empty, longer than {MAX_NAME} characters, or no Unicode text")
    try:
        moment(alarm.time)
    except ValueError as e:
        raise ContractError(f"time: {e}") from None


def _untimely(settings: IngestSettings, alarm: Alarm, now: datetime) -> str:
    """Why the alarm's time forbids to act on it; empty when it does not."""
    age = now - moment(alarm.time)
    if age > settings.max_alarm_age:
        return f"alarm is {age} old, at most {settings.max_alarm_age} are acted on"
    return "alarm comes from the future" if age < -MAX_CLOCK_AHEAD else ""


def _news(
    alarm: Alarm, incident_id: str | None, node: str | None, state: str, story: str
) -> dict[str, object]:
    """An "SDC Incident State Changed" of what begins here, or ends before it has begun."""
    return {
        "incident_id": incident_id,
        "state": state,
        "previous": None,
        "cluster": alarm.cluster,
        "job": alarm.job.name,
        "node": node,
        "instance_id": None,
        "decision_row": None,
        "story": story,
    }


def _is_text(name: str) -> bool:
    """JSON can hold half a surrogate pair; no table can."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _take(needs: Needs, alarm: Alarm, group: findings.Group, named: int, now: datetime) -> tuple[str, bool]:
    """Open an incident or append to the one that stands; (incident id, opened)."""
    key = delivery_key(alarm)
    earlier = needs.incidents.delivery(key, group.node)
    if earlier is not None:
        current = needs.incidents.get(earlier.incident_id)
        if alarm.job.attempt <= earlier.attempt or not _let_go(current):
            return _append(needs, current, alarm, now), False
        if _ended_with(needs, current, key, alarm.job.attempt):
            return current.id, False
    text = encode(alarm)
    incident = _new(alarm, key, group, earlier, named, evidence_hash(text), now)
    if group.node is not None:  # first: a retry finds the incident and writes no more
        entry = HistoryEntry(f"job#{alarm.job.uid}", incident.id, group.node, incident.opened_at)
        needs.incidents.remember(entry)
    if not needs.incidents.open(incident, text, earlier):
        again = needs.incidents.delivery(key, group.node)  # somebody was faster: append to theirs
        assert again is not None
        return _append(needs, needs.incidents.get(again.incident_id), alarm, now), False
    story = f"{alarm.check.value} alarm at step {alarm.step}"
    needs.bus.state_changed(_news(alarm, incident.id, group.node, State.OPENING.value, story))
    needs.workflow.start(incident.id, execution_name(incident))
    return incident.id, True


def _let_go(current: Incident) -> bool:
    """Has it ended, or does it only wait for the job that it freed? Then a restart's alarm is news: `locate`
    hands it to the closing incident, which is decided again, or it takes the gate after the close.
    """
    return current.state.terminal or current.state is State.CLOSING


def _ended_with(needs: Needs, current: Incident, key: str, attempt: int) -> bool:
    """Was this restart's alarm kept with the incident while it was open? Delivered once more it is no news:
    what has been decided about it, a release by a person included, stands.

    One that was kept in the last moments may be what the end has not seen: that is delivered again as news.
    """
    kept = needs.incidents.kept_at(current.id, key, attempt)
    if kept is None or current.let_go_at is None:
        return False
    return moment(kept) + IN_FLIGHT < moment(current.let_go_at)


def _append(needs: Needs, current: Incident, alarm: Alarm, now: datetime) -> str:
    """Keep a duplicate or a restart as evidence; start again what never started.

    Raises:
        ConflictError: it has ended in between, and sets only those occurrences free that it has seen. The
            queue delivers the alarm again, which then opens an incident of its own.
    """
    attempt = alarm.job.attempt
    needs.incidents.append_evidence(current.id, delivery_key(alarm), attempt, encode(alarm), now)
    if attempt > current.job.attempt and _let_go(needs.incidents.get(current.id)):
        raise ConflictError(f"incident {current.id} has just ended: attempt {attempt} is news")
    if current.state is State.OPENING:
        needs.workflow.start(current.id, execution_name(current))
    return current.id


def _new(
    alarm: Alarm,
    key: str,
    group: findings.Group,
    earlier: Delivery | None,
    named: int,
    evidence: str,
    now: datetime,
) -> Incident:
    sequence = 1 if earlier is None else earlier.sequence + 1
    return Incident(
        id=incident_id(key, group.node, sequence),
        sequence=sequence,
        delivery_key=key,
        evidence_hash=evidence,
        cluster=alarm.cluster,
        job=alarm.job,
        check=alarm.check,
        step=alarm.step,
        node=group.node,
        ranks=group.ranks,
        opened_at=stamp(now),
        nodes_named=named,
        synthetic=is_drill(alarm),
        updated_at=stamp(now),
    )
