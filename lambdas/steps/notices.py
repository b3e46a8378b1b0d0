"""What people are told: an end that needs them, an answer that somebody gave, half of the time, silence.

Used by `request_approval`; `reconcile` mails what has no execution left that could. In: the incident. Out:
mails, each once; and the outcome of a question, read from its row and never from a callback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any, Protocol

from training_agent.contract import Alarm, Mode, console_url

from ..domain import mails, messages
from ..domain.approval import Approval, ApprovalState, Fact
from ..domain.decision_table import ROWS
from ..domain.errors import HaltedError, PermanentError, PipelineError, WorldChangedError
from ..domain.incident import GONE, EffectState, Incident, State
from ..domain.policy import effective_mode
from ..domain.times import moment
from ..observability import MetricUnit, measure
from ..ports import Approvals, Mail
from ..settings import RequestApprovalSettings
from .effects import Permitted
from .outcome import Recorder, StepResult, Took, alarm_of, amend, evidence_of, with_cordons
from .replace import in_flight
from .way import way_to

TOLD = frozenset(
    {
        State.OBSERVED, State.REPLACED_BY_HYPERPOD, State.REPLACEMENT_DEGRADED, State.NO_APPROVER,
        State.HUMAN_OVERRIDE, State.WORLD_CHANGED, State.BLOCKED_BY_BREAKER, State.HEALTHCHECK_STUCK,
        State.HANDED_TO_HUMAN, *GONE,  # where the job is still held
    }
)  # fmt: skip
NOTICE = "notice"  # the effect's row
TO_NOBODY = "notices_to_nobody"  # a metric: mails that found no confirmed approver
MUCH_LEFT = 0.25  # of the question's time: a wait that ends before is the one for the reminder
SILENCE = "nobody answered; everything stays cordoned or held, and nothing is replaced"


class Teller(Recorder, Protocol):
    @property
    def mail(self) -> Mail: ...


class Speaker(Recorder, Permitted, Protocol):
    @property
    def settings(self) -> RequestApprovalSettings: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def mail(self) -> Mail: ...


def notice_of(incident: Incident) -> str:
    """The effect of its notice: once for each time that it was contained and decided."""
    return f"{NOTICE}:{incident.rounds}" if incident.rounds else NOTICE


def lines(needs: Recorder, incident: Incident, alarm: Alarm) -> tuple[Fact, ...]:
    """The facts that mail and page share."""
    row = ROWS[incident.decision_row or "X0"]
    reason = incident.human_reason or incident.decision_reason
    return messages.facts(incident, alarm, evidence_of(needs.incidents, incident, alarm), row, reason)


def tell(needs: Speaker, incident_id: str, seen: Any, execution: str = "") -> StepResult:
    """Send the notice, once a decision. Never raises but for the store: every other failure leads here."""
    before = needs.incidents.get(incident_id)
    if before.state.terminal:
        return StepResult("told", f"the incident has ended as {before.state.value}")
    reason = before.human_reason or _reason(seen)
    closing = before.closing if before.closing in TOLD else State.HANDED_TO_HUMAN
    issued = in_flight(needs.incidents, before)
    if issued:
        closing = State.REPLACEMENT_DEGRADED  # `resume` opens the breaker before it frees the lock
    if before.synthetic:
        closing = State.CLOSED
    elif not before.touched and _observing(needs):
        closing = State.OBSERVED  # wherever it broke off: nothing was going to be done
    incident = amend(needs, incident_id, lambda i: replace(i, closing=closing, human_reason=reason))
    _ask_no_more(needs, incident)
    try:
        if not needs.incidents.intend(incident.id, notice_of(incident), needs.clock.now()):
            told = needs.incidents.effect(incident.id, notice_of(incident))
            if told is not None and told.state is EffectState.RESULT:
                return StepResult("told", "a human was told before")
        alarm = alarm_of(needs.incidents, incident)
        subject, body = mails.notice_mail(
            with_cordons(needs.incidents, incident),
            lines(needs, incident, alarm),
            reason,
            closing,
            issued=issued,
            console=console_url(execution),
            alarm=alarm,
            url=needs.settings.review_url.rstrip("/"),
        )
        story = send_to_all(needs.mail, incident.cluster, subject, body)
        needs.incidents.conclude(incident.id, notice_of(incident), story, needs.clock.now())
    except PermanentError as e:  # what can be tried again is, by the state machine; then an alarm tells
        story = f"the notice could not be sent: {e}"
        needs.incidents.audit(incident.id, "notice", story, needs.clock.now())
        raise
    return StepResult("told", f"{reason}; {story}")


def _ask_no_more(needs: Speaker, incident: Incident) -> None:
    """A question that was still open: its links say so from now on. That it fails keeps no notice back."""
    try:
        if incident.approval_id is not None:
            needs.approvals.end(incident.approval_id, ApprovalState.CLOSED)
    except PipelineError as e:
        needs.incidents.audit(incident.id, "question", f"could not be closed: {e}", needs.clock.now())


def _observing(needs: Speaker) -> bool:
    """Is this observe mode? What cannot be read is not."""
    try:
        return effective_mode(needs.settings.mode, needs.controls.read()) is Mode.OBSERVE
    except HaltedError:
        return False


def answered(needs: Speaker, incident_id: str) -> StepResult:
    """The callback came. The row decides, so a stolen task token alone does nothing."""
    incident = needs.incidents.get(incident_id)
    approval = needs.approvals.get(incident.approval_id) if incident.approval_id else None
    _require_same_node(approval)
    if approval is None or not approval.decided:
        return StepResult(
            "human", "the wait was ended without a recorded answer: nothing is done on its word"
        )
    return _decided(needs, incident, approval, "a human answered")


def _require_same_node(approval: Approval | None) -> None:
    """The reconciler closes a question whose node has become another one while it was asked.

    Raises:
        WorldChangedError: it did.
    """
    if approval is not None and approval.state is ApprovalState.CLOSED:
        raise WorldChangedError(
            f"{approval.instance_id} has gone or was launched again while it was asked: nothing was done"
        )


def timed_out(needs: Speaker, incident_id: str) -> StepResult:
    """A wait ended. The row decides: an answer that was recorded and not delivered still counts.

    The first of two waits is half as long as the question stands: then everybody is reminded.
    """
    incident = needs.incidents.get(incident_id)
    approval_id = incident.approval_id
    standing = needs.approvals.get(approval_id) if approval_id else None
    if approval_id and standing is not None:
        left = moment(standing.expires_at) - needs.clock.now()
        if standing.state is ApprovalState.PENDING and left > MUCH_LEFT * needs.settings.approval_timeout:
            story = _remind(needs, incident, standing)
            return StepResult("reminded", story, patience_seconds=ceil(left.total_seconds()))
        needs.approvals.end(approval_id, ApprovalState.EXPIRED)
        approval = needs.approvals.get(approval_id)
        _require_same_node(approval)
        if approval is not None and approval.state is ApprovalState.EXPIRED:
            return _escalate(needs, incident, approval)
        if approval is not None and approval.decided:
            return _decided(needs, incident, approval, "answered just in time")
    return StepResult("human", "the wait ended, and no question stands that anybody could have answered")


def _decided(needs: Speaker, incident: Incident, approval: Approval, how: str) -> StepResult:
    needs.approvals.mark_delivered(approval.approval_id)
    story = f"{how}: {approval.answer.value if approval.answer else ''} ({approval.action.value})"

    def send() -> str:
        return send_to_all(needs.mail, incident.cluster, *mails.decision_mail(incident, approval))

    try:
        story = f"{story}; {_once(needs, incident, f'echo:{approval.approval_id}', send)}"
    except PermanentError as e:  # the decision counts, whoever hears of it
        needs.incidents.audit(incident.id, "echo", f"could not be sent: {e}", needs.clock.now())
    said = messages.decision(approval)
    needs.incidents.audit(incident.id, "decision", said, needs.clock.now())
    decided = moment(approval.decided_at) if approval.decided_at else needs.clock.now()
    took = Took.between("seconds_to_approve", approval.created_at, decided, incident)
    return StepResult(approval.outcome, story, took=took)


def _remind(needs: Speaker, incident: Incident, approval: Approval) -> str:
    """Once, to everybody, each with a link of his own; a reminder that cannot be sent ends nothing."""

    def send() -> str:
        approvers, url = needs.mail.approvers(), needs.settings.review_url.rstrip("/")
        for approver in approvers:
            way = way_to(needs, approval, approver)
            needs.mail.send(approver, *mails.approval_mail(incident, approval, way, url, reminder=True))
        return f"{len(approvers)} approver(s) were reminded"

    try:
        told = _once(needs, incident, f"remind:{approval.approval_id}", send)
    except PermanentError as e:
        told = f"the reminder could not be sent: {e}"
    needs.incidents.audit(incident.id, "reminder", told, needs.clock.now())
    return f"half of the time is over and nobody has answered; {told}"


def _escalate(needs: Speaker, incident: Incident, approval: Approval) -> StepResult:
    """Nobody answered: everybody hears of it, or an alarm tells that they did not."""

    def send() -> str:
        url = needs.settings.review_url.rstrip("/")
        return send_to_all(needs.mail, incident.cluster, *mails.expired_mail(incident, approval, url))

    told = _once(needs, incident, f"expired:{approval.approval_id}", send)
    needs.incidents.audit(incident.id, "approval expired", told, needs.clock.now())
    return StepResult("expired", f"{SILENCE}; {told}")


def _once(needs: Recorder, incident: Incident, effect: str, send: Callable[[], str]) -> str:
    """Mail once; a retry looks whether it is known to be sent, and sends what is not.

    Raises:
        PipelineError: it was not sent; what can be tried again is, by the state machine.
    """
    if not needs.incidents.intend(incident.id, effect, needs.clock.now()):
        sent = needs.incidents.effect(incident.id, effect)
        if sent is not None and sent.state is EffectState.RESULT:
            return sent.result
    told = send()
    needs.incidents.conclude(incident.id, effect, told, needs.clock.now())
    return told


def _reason(seen: Any) -> str:
    """One sentence from what the state machine saw last: a story, or a failed task's error and cause."""
    if isinstance(seen, dict):
        if isinstance(seen.get("Error"), str):
            return messages.one_line(f"a step failed: {seen['Error']}: {seen.get('Cause', '')}")
        if isinstance(seen.get("story"), str):
            return messages.one_line(seen["story"])
    return "a step could not go on"


def send_to_all(mail: Mail, cluster: str, subject: str, body: str) -> str:
    """One mail for each confirmed approver; says how many. That there is none is an alarm's: of each mail,
    where the one that nobody is confirmed has been on for days.
    """
    approvers = mail.approvers()
    measure(TO_NOBODY, float(not approvers), cluster, MetricUnit.Count)
    for approver in approvers:
        mail.send(approver, subject, body)
    return f"{len(approvers)} approver(s) were told" if approvers else "NO_APPROVER: nobody could be told"


def mail_once(
    needs: Teller, incident: Incident, effect: str, write: Callable[[], tuple[str, str]], why: str = ""
) -> None:
    """Mail the approvers unless the row of `effect` says that it was done, and write `why` into the trail.

    Raises:
        RetryableError: it was not sent now.
    """
    fresh: list[str] = []

    def send() -> str:
        subject, body = write()
        try:
            fresh.append(send_to_all(needs.mail, incident.cluster, subject, body))
        except PermanentError as e:
            fresh.append(f"could not be sent: {e}")
        return fresh[0]

    _once(needs, incident, effect, send)
    for story in fresh:
        needs.incidents.audit(incident.id, "notice", f"{why}; {story}" if why else story, needs.clock.now())
