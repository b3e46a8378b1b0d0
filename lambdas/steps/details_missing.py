"""A metric of the agent fired and no alarm event of its check came: an incident for people only.

Used by `reconcile`, which hears of CloudWatch's alarms five minutes late, and reads the metrics themselves
every five minutes. In: the metric's alarm, or what a job put. Out: one open incident a check and job, a mail
to the approvers; its end is JOINED when the event comes after all, and HANDED_TO_HUMAN once an event would be
too old to be acted on. It has no execution, no gate and no target: nothing that acts on a node ever sees it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from training_agent.contract import Check, Job

from ..domain.details_missing import (
    CHECKS,
    METRICS,
    NOT_KNOWN,
    Fired,
    Jobs,
    delivery_of,
    details_mail,
    heard_of,
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
LATE = timedelta(minutes=5)  # in which the event comes, or never
BACK = timedelta(minutes=20)  # four looks: one that fails loses nothing
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


def came(needs: Recorder, checks: tuple[Check, ...], since: datetime, job: str = "") -> str:
    """The incident of the newest alarm event of these checks, of this job if one is given; "": none."""
    entries = [e for check in checks for e in needs.incidents.history(heard_of(check), stamp(since))]
    if job:  # another job's event says nothing of this one's
        entries = [e for e in entries if needs.incidents.get(e.incident_id).job.name == job]
    return max(entries, key=lambda e: e.at).incident_id if entries else ""


def lost_of(needs: Finder, fired: Fired) -> tuple[str, tuple[Jobs, ...]]:
    """(incident of the event that came, each job that put the metric and has none).

    Where nobody is known to have put it, an event of any job is taken for its own.
    """
    since, jobs = moment(fired.at) - AROUND, _jobs(needs, fired)
    lost = tuple(n for n in jobs.fired if not came(needs, (fired.check,), since, n))
    if lost:
        return "", tuple(replace(jobs, fired=(name,)) for name in lost)
    found = came(needs, (fired.check,), since)
    return found, () if found else (jobs,)


def look(needs: Finder) -> float:
    """Every five minutes, job by job: how many put a check's metric and have no event of it, by now.

    CloudWatch tells of an alarm once, when it goes on: what another job puts while it is on is found here.

    Raises:
        RetryableError: CloudWatch, the cluster, store or mail did not answer.
    """
    now = needs.clock.now()
    since, until = now - BACK, now - LATE
    metrics = needs.numbers.above_zero(tuple(CHECKS), since, until)
    names, lost = _running(needs) if metrics else [], 0
    for metric in sorted(metrics):
        check = CHECKS[metric]
        for name, at in sorted(needs.numbers.jobs_with(metric, names, since, until).items()):
            if not came(needs, (check,), at - AROUND, name):
                lost += 1
                read = {"metric": metric.value, "job": name, "at": stamp(at)}
                take(needs, Fired(check, stamp(at), json.dumps(read)), Jobs((name,), tuple(names)))
    return float(lost)


def take(needs: Finder, fired: Fired, jobs: Jobs) -> str:
    """Open the incident of this check and job, or keep the alarm with the one that stands; says which.

    Raises:
        RetryableError: store or mail did not answer; the queue delivers again.
    """
    key = delivery_of(fired.check, jobs.name)
    earlier = needs.incidents.delivery(key, None)
    if earlier is not None:
        standing = needs.incidents.get(earlier.incident_id)
        if fired.at <= standing.opened_at:  # seen once more, perhaps from the dead letters
            if standing.state is not State.JOINED:  # those who got no mail then get it now
                tell(needs, standing, fired, jobs)
            return f"known: incident {standing.id}"
        if not standing.state.terminal:
            _append(needs, standing, key, fired)
            tell(needs, standing, fired, jobs)
            return f"kept with incident {standing.id}"
    incident = _new(needs, key, fired, jobs, 1 if earlier is None else earlier.sequence + 1)
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
    name = incident.job.name
    late = came(needs, (incident.check,), opened, "" if name == NOT_KNOWN else name)
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


def _new(needs: Finder, key: str, fired: Fired, jobs: Jobs, sequence: int) -> Incident:
    now = stamp(needs.clock.now())
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


def _append(needs: Finder, standing: Incident, key: str, fired: Fired) -> None:
    needs.incidents.append_evidence(standing.id, f"{key}#{fired.at}", 1, _text(fired), needs.clock.now())


def _running(needs: Finder) -> list[str]:
    """Names of the jobs that have pods."""
    pods = (p for p in needs.kubernetes.job_pods() if JOB_UID_LABEL in p.labels)
    return sorted({p.labels.get(JOB_NAME_LABEL, "") for p in pods} - {""})


def _jobs(needs: Finder, fired: Fired) -> Jobs:
    """What the metric does not say: who put it. What cannot be read keeps no mail back."""
    at = moment(fired.at)
    try:
        names = _running(needs)
        put = needs.numbers.jobs_with(METRICS[fired.check], names, at - AROUND, needs.clock.now())
    except PipelineError as e:
        return Jobs(unread=one_line(f"could not be read: {e}"))
    return Jobs(tuple(n for n in names if n in put), tuple(names))


def _text(fired: Fired) -> str:
    return fired.body[:MAX_TEXT]
