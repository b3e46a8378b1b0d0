"""Incidents whose execution has ended without them: ended here, by name, with nothing touched.

Used by `reconcile`. In: an open incident. Out: a mail to the approvers, the terminal state, gate and locks
free; the node stays.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from training_agent.contract import console_url

from ..domain.approval import Fact
from ..domain.errors import NeedsHumanError
from ..domain.incident import EffectState, Incident, State, execution_name
from ..domain.mails import notice_mail
from ..domain.times import moment, stamp
from ..ports import Cluster, Controls, Executions, Incidents, Mail
from ..settings import ReconcileSettings
from . import notices
from .deep_check import CHECK_LOCK
from .locate import free_gates
from .outcome import Recorder, alarm_of, record, with_cordons
from .replace import EFFECT, in_flight, let_go

# The queue delivers an alarm again for half an hour (infra/queues.py: five times, six minutes apart).
NEVER_STARTED = timedelta(minutes=35)
NOTICE = "abandoned"  # the effect's row
ENDED = frozenset({"FAILED", "TIMED_OUT", "ABORTED", "SUCCEEDED"})


class Undertaker(Recorder, Protocol):
    @property
    def settings(self) -> ReconcileSettings: ...
    @property
    def controls(self) -> Controls: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def mail(self) -> Mail: ...
    @property
    def executions(self) -> Executions: ...


def unknown_outcomes(incidents: Incidents, incident: Incident) -> int:
    """Effects that were begun and whose result nobody wrote down."""
    return sum(e.state is EffectState.INTENT for e in incidents.effects_of(incident.id))


def is_abandoned(needs: Undertaker, incident: Incident, now: datetime) -> bool:
    """Has its execution ended, or never begun?"""
    status = needs.executions.status(execution_name(incident))
    if status is None:
        return now - moment(incident.opened_at) > NEVER_STARTED
    return status in ENDED and not needs.incidents.get(incident.id).state.terminal


def end(needs: Undertaker, incident: Incident) -> None:
    """Write the terminal state; an outcome that nobody knows is read from the world first."""
    status = needs.executions.status(execution_name(incident)) or "never started"
    _settle(needs, incident)
    requested = in_flight(needs.incidents, incident)
    last = State.REPLACEMENT_DEGRADED if requested else State.HANDED_TO_HUMAN
    if incident.synthetic:
        last = State.CLOSED
    reason = incident.human_reason or f"its execution is {status}: look at the node, nothing more is done"
    let_go_at = incident.let_go_at if incident.state is State.CLOSING else stamp(needs.clock.now())
    closing = replace(incident, closing=last, human_reason=reason, let_go_at=let_go_at).to(State.CLOSING)
    saved = record(needs, incident, closing, f"execution {status}")
    needs.controls.unlock(CHECK_LOCK, saved.id)
    let_go(needs, incident)  # as it stood: by its new end a node that is gone for good would be in flight
    _tell(needs, saved, reason, last, issued=requested)
    ended = record(needs, saved, replace(saved, closed_at=stamp(needs.clock.now())).to(last), reason)
    free_gates(needs.incidents, ended)  # last: until it has ended, the instance is not another's


def _tell(needs: Undertaker, incident: Incident, reason: str, last: State, *, issued: bool) -> None:
    """Mail it, once, before the end is written: a mail that can be tried again is, at the next look.

    Raises:
        RetryableError: it was not sent now.
    """

    def write() -> tuple[str, str]:
        try:
            facts = notices.lines(needs, incident, alarm_of(needs.incidents, incident))
        except NeedsHumanError as e:  # the stored alarm is not the one it was opened with
            facts = (Fact("Evidence", str(e)),)
        shown = with_cordons(needs.incidents, incident)
        console = console_url(_arn_of(needs, incident))
        return notice_mail(shown, facts, reason, last, issued=issued, console=console)

    notices.mail_once(needs, incident, NOTICE, write, reason)


def _arn_of(needs: Undertaker, incident: Incident) -> str:
    """Of its execution, whether it was ever started or not."""
    machine = needs.settings.state_machine_arn
    return f"{machine.replace(':stateMachine:', ':execution:', 1)}:{execution_name(incident)}"


def _settle(needs: Undertaker, incident: Incident) -> None:
    """Conclude open effects by what the world says."""
    for effect in needs.incidents.effects_of(incident.id):
        replaces = effect.name == EFFECT or effect.name.startswith(f"{EFFECT}:")
        if effect.state is EffectState.RESULT or effect.name == NOTICE:
            continue
        seen = "not looked at"
        if replaces and incident.instance_id:
            present = any(n.instance_id == incident.instance_id for n in needs.cluster.nodes())
            seen = f"{incident.instance_id} is {'still there' if present else 'gone'}"
        needs.incidents.conclude(incident.id, effect.name, f"ISSUED_UNKNOWN: {seen}", needs.clock.now())
        needs.incidents.audit(incident.id, effect.name, f"unknown outcome: {seen}", needs.clock.now())
