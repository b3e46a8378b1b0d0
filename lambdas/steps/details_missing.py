"""A metric of the agent fired and no alarm event of its check came: an incident for people only.

Used by `reconcile`, which hears of CloudWatch's alarms five minutes late. In: the metric's alarm. Out: one
open incident a check, a mail to the approvers; its end is JOINED when the event comes after all, and
HANDED_TO_HUMAN once an event would be too old to be acted on. It has no execution, no gate and no target:
nothing that acts on a node ever sees it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from training_agent.contract import Check, Job

from ..domain.details_missing import (
    METRICS,
    Fired,
    Jobs,
    delivery_of,
    details_mail,
    heard_of,
    names_in,
    reason_of,
)
from ..domain.errors import PipelineError
from ..domain.incident import Incident, State, evidence_hash, incident_id
from ..domain.messages import one_line
from ..domain.times import moment, stamp
from ..ports import Kubernetes, Mail, Numbers
from ..settings import ReconcileSettings
from .notices import mail_once
from .outcome import Recorder, news, record
from .register import JOB_NAME_LABEL, JOB_UID_LABEL

AROUND = timedelta(minutes=15)  # a metric's period, and how far event and metric may lie apart
NOTICE = "details_missing"  # the effect's row
MAX_TEXT = 20_000  # characters of CloudWatch's event that are kept


class Finder(Recorder, Protocol):
    @property
    def settings(self) -> ReconcileSettings: ...
    @property
    def kubernetes(self) -> Kubernetes: ...
    @property
    def mail(self) -> Mail: ...
    @property
    def numbers(self) -> Numbers: ...


def came(
    needs: Recorder, checks: tuple[Check, ...], since: datetime, jobs: frozenset[str] = frozenset()
) -> str:
    """The incident of the newest alarm event of these checks; "" when none came, or none of one of `jobs`."""
    entries = [e for check in checks for e in needs.incidents.history(heard_of(check), stamp(since))]
    if jobs:  # another job's event says nothing of theirs
        of = {e.incident_id: needs.incidents.get(e.incident_id).job.name for e in entries}
        if not jobs <= set(of.values()):
            return ""
        entries = [e for e in entries if of[e.incident_id] in jobs]
    return max(entries, key=lambda e: e.at).incident_id if entries else ""


def lost_of(needs: Finder, fired: Fired) -> tuple[str, Jobs]:
    """(incident of the event that came, "" when a job that put the metric has none; whose is lost)

    Where nobody is known to have put it, an event of any job is taken for its own.
    """
    since, jobs = moment(fired.at) - AROUND, _jobs(needs, fired)
    lost = tuple(n for n in jobs.fired if not came(needs, (fired.check,), since, frozenset({n})))
    if lost:
        return "", replace(jobs, fired=lost)
    return came(needs, (fired.check,), since), jobs


def take(needs: Finder, fired: Fired, jobs: Jobs) -> str:
    """Open the incident of this check, or keep the alarm with the one that stands; says which.

    Raises:
        RetryableError: store or mail did not answer; the queue delivers again.
    """
    key = delivery_of(fired.check)
    earlier = needs.incidents.delivery(key, None)
    if earlier is not None:
        standing = needs.incidents.get(earlier.incident_id)
        if not standing.state.terminal:
            _append(needs, standing, fired)
            tell(needs, standing, fired, jobs)
            return f"kept with incident {standing.id}"
        if fired.at <= standing.opened_at:  # delivered once more, perhaps from the dead letters
            if standing.state is State.HANDED_TO_HUMAN:  # those who got no mail then get it now
                tell(needs, standing, fired, jobs)
            return f"known: incident {standing.id}"
    incident = _new(needs, fired, jobs, 1 if earlier is None else earlier.sequence + 1)
    if not needs.incidents.open(incident, _text(fired), earlier):
        return take(needs, fired, jobs)  # somebody was faster
    reason = incident.human_reason
    needs.incidents.audit(incident.id, f"state {incident.state.value}", reason, needs.clock.now())
    needs.bus.state_changed(news(incident, None, reason))
    tell(needs, incident, fired, jobs)
    return f"opened incident {incident.id}"


def look_after(needs: Finder, incident: Incident) -> None:
    """Every five minutes: has the event come, or is it too late for it?"""
    now = needs.clock.now()
    opened = moment(incident.opened_at)
    late = came(needs, (incident.check,), opened, names_in(incident.job.name))
    if late:
        ended = replace(incident, closed_at=stamp(now)).to(State.JOINED)
        record(needs, incident, ended, f"its event came: incident {late}")
    elif now - opened > needs.settings.max_alarm_age:
        ended = replace(incident, closed_at=stamp(now)).to(State.HANDED_TO_HUMAN)
        record(needs, incident, ended, incident.human_reason)


def tell(needs: Finder, incident: Incident, fired: Fired, jobs: Jobs) -> None:
    """Mail the approvers, once.

    Raises:
        RetryableError: it was not sent now.
    """
    patience = needs.settings.max_alarm_age
    mail_once(needs, incident, NOTICE, lambda: details_mail(incident, fired, jobs, patience))


def _new(needs: Finder, fired: Fired, jobs: Jobs, sequence: int) -> Incident:
    now = stamp(needs.clock.now())
    key = delivery_of(fired.check)
    return Incident(
        id=incident_id(f"{key}#{fired.at}", None, sequence),
        sequence=sequence,
        delivery_key=key,
        evidence_hash=evidence_hash(_text(fired)),
        cluster=needs.settings.cluster_name,
        job=Job(one_line(jobs.name, 200), ""),  # no uid: nothing of a job may be found by it
        check=fired.check,
        step=0,
        node=None,
        ranks=(),
        opened_at=now,
        state=State.DETAILS_MISSING,
        nodes_named=0,
        human_reason=reason_of(fired),
        updated_at=now,
    )


def _append(needs: Finder, standing: Incident, fired: Fired) -> None:
    needs.incidents.append_evidence(
        standing.id, f"{delivery_of(fired.check)}#{fired.at}", 1, _text(fired), needs.clock.now()
    )


def _jobs(needs: Finder, fired: Fired) -> Jobs:
    """What the metric does not say: who put it. What cannot be read keeps no mail back."""
    at = moment(fired.at)
    try:
        pods = [p for p in needs.kubernetes.job_pods() if JOB_UID_LABEL in p.labels]
        names = sorted({p.labels.get(JOB_NAME_LABEL, "") for p in pods} - {""})
        put = needs.numbers.jobs_with(METRICS[fired.check], names, at - AROUND, needs.clock.now())
    except PipelineError as e:
        return Jobs(unread=one_line(f"could not be read: {e}"))
    return Jobs(tuple(n for n in names if n in put), tuple(names))


def _text(fired: Fired) -> str:
    return fired.body[:MAX_TEXT]
