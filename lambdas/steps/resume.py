"""Close: release what is ours and exonerated or replaced, see the job come back, write the terminal state.

In: an incident on its way to an end. Out: "waiting" for the job's next start, "reopened" when evidence came
in that the decision to release had not seen, "halted" where mode or kill switch forbid the release, or
"closed". An end that nobody proved (no answer, a human's case) leaves cordon and quarantine as they are.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from training_agent.contract import NodeRegistration, decode

from ..domain.approval import Action, Answer, Approval, ApprovalState, require_approved
from ..domain.decision_table import ROWS, Contain
from ..domain.errors import HaltedError, NeedsHumanError
from ..domain.incident import GONE, EffectState, Incident, State
from ..domain.times import stamp
from ..ports import Approvals, Bus, Clock, Controls, Incidents, Kubernetes, Quarantine, Registrations
from ..settings import ResumeSettings
from .confirm import CHECK_LOCK
from .contain import release_quarantine
from .effects import uncordon
from .locate import free_gates
from .notices import notice_of
from .outcome import StepResult, alarm_of, amend, joined_by, record, to_human
from .replace import let_go

WAIT_SECONDS = 30
LONG_WAIT_SECONDS = 60  # after QUICK_POLLS
QUICK_POLLS = 20
MAX_POLLS = 100  # an hour and a half for the job to start again; the incident closes without it
RELEASING = frozenset({State.RELEASED, State.REJECTED_RELEASED})  # back to work
FREED = RELEASING | GONE  # nobody has to hold for it any more
_ENDS = {
    State.EXPIRED: "nobody answered; the node stays cordoned and was not replaced",
    State.REJECTED_KEPT: "a human rejected the replacement and keeps the node cordoned",
}


@dataclass(frozen=True, slots=True)
class Needs:
    settings: ResumeSettings
    incidents: Incidents
    approvals: Approvals
    registrations: Registrations
    controls: Controls
    quarantine: Quarantine
    kubernetes: Kubernetes
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    before = needs.incidents.get(incident_id)
    if before.state.terminal:
        free_gates(needs.incidents, before)
        return StepResult("closed", f"closed before as {before.state.value}")
    closing = _end_of(needs, before)
    if before.reopened and (closing in RELEASING or _holds_nobody(before)):
        story = "evidence has come in that the decision to let go had not seen: contained and decided again"
        record(needs, before, before.again(), story)
        return StepResult("reopened", story)
    let_go_at = before.let_go_at if before.state is State.CLOSING else stamp(needs.clock.now())
    towards = replace(before, closing=closing, let_go_at=let_go_at).to(State.CLOSING)
    incident = record(needs, before, towards, f"towards {closing.value}")
    story = ""
    if incident.synthetic:
        return _close(needs, incident, closing, "fire drill: nothing was touched")
    if closing in FREED:
        try:
            story = _free(needs, incident, closing)
        except HaltedError as e:
            if closing not in GONE:  # nothing is released: people are told what stays, then it is closed
                return replace(to_human(needs, incident.id, e), outcome="halted")
            return _gone_and_held(needs, incident, closing, f"the old node is gone; {e}")
        incident, waiting = _look_for_job(needs, incident)
        if waiting:
            wait = WAIT_SECONDS if incident.tries["resume"] < QUICK_POLLS else LONG_WAIT_SECONDS
            return StepResult("waiting", f"{story}; the job has not started again yet", wait)
        story = f"{story}; {_comparison(needs, incident)}"
    elif _holds_nobody(incident):
        with suppress(HaltedError):  # as contain did already, but for restarts that came in since
            release_quarantine(needs, incident)
    return _close(needs, incident, closing, story or _ENDS.get(closing, incident.human_reason))


def _end_of(needs: Needs, incident: Incident) -> State:
    """The end that was decided; an answered question is re-read from its row, never from the callback."""
    if incident.closing is not None:
        return incident.closing
    approval = needs.approvals.get(incident.approval_id) if incident.approval_id else None
    if approval is None:
        return State.HANDED_TO_HUMAN
    if approval.state is ApprovalState.EXPIRED:
        return State.EXPIRED
    if approval.decided and approval.answer is Answer.KEEP:
        return State.REJECTED_KEPT
    if approval.decided and approval.answer is Answer.RELEASE:
        return State.REJECTED_RELEASED
    if approval.decided and approval.answer is Answer.APPROVE and approval.action is Action.RELEASE:
        return _released(needs, incident, approval)
    return State.HANDED_TO_HUMAN


def _released(needs: Needs, incident: Incident, approval: Approval) -> State:
    """A held job goes only on an approval of exactly this, in time."""
    now = needs.clock.now()
    try:
        require_approved(approval, incident, incident.evidence_hash, now, Action.RELEASE)
    except NeedsHumanError:
        return State.HANDED_TO_HUMAN
    return State.RELEASED


def _free(needs: Needs, incident: Incident, closing: State) -> str:
    """Uncordon what is ours (not what was replaced), then let the agents go."""
    done = []
    if closing in RELEASING:
        done = [uncordon(needs, incident, t) for t in incident.targets if t.cordoned_by_us]
    done += [f"{subject} stays held by another incident" for subject in release_quarantine(needs, incident)]
    return ", ".join(done) or "quarantine released"


def _gone_and_held(needs: Needs, incident: Incident, closing: State, story: str) -> StepResult:
    """The end keeps its name; people are mailed first, once: they alone can let the job go now."""
    told = needs.incidents.effect(incident.id, notice_of(incident))
    if told is not None and told.state is EffectState.RESULT:
        return _close(needs, incident, closing, story)
    amend(needs, incident.id, lambda i: replace(i, human_reason=story))
    return StepResult("halted", story)


def _holds_nobody(incident: Incident) -> bool:
    """Was it decided that no node and no job need wait? An older row says nothing of a later containment."""
    if incident.decision_row is None or incident.undecided or not incident.touched:
        return False
    return ROWS[incident.decision_row].contain is Contain.NOTHING


def _look_for_job(needs: Needs, incident: Incident) -> tuple[Incident, bool]:
    """(incident with what the job came back on, must we wait?)"""
    if incident.job_back is not None:
        return incident, False
    # Verified ones alone: anybody may say that the job is back, and from which step.
    last, again = _attempts(needs.incidents, incident)
    later = needs.registrations.after(incident.job.uid, last)
    # The first such start: later ones go on from there. One that alarmed again is held, not back.
    back = next((r for r in later if r.verified and r.attempt not in again), None)
    if back is not None:
        step = decode(NodeRegistration, back.text).resumed_from_step
        found = replace(incident, job_back=True, resumed_from_step=step)
        return record(needs, incident, found, "the job is back"), False
    waited = incident.tried("resume")
    if waited.tries["resume"] >= MAX_POLLS:
        return record(needs, incident, replace(waited, job_back=False), "the job did not come back"), False
    return record(needs, incident, waited, "waiting for the job"), True


def _attempts(incidents: Incidents, incident: Incident) -> tuple[int, frozenset[int]]:
    """Of this job: the last whose located alarm stands here, and all in which one of these came again."""
    alarms = [i for i in (incident, *joined_by(incidents, incident)) if i.job.uid == incident.job.uid]
    keys = {i.delivery_key for i in alarms}
    again = {attempt for key, attempt in incidents.occurrences(incident.id) if key in keys}
    again.update(attempt for i in alarms for attempt in i.restarts)
    return max(i.job.attempt for i in alarms), frozenset(again)


def _comparison(needs: Needs, incident: Incident) -> str:
    """What the job resumed from against what the agent had chosen before the suspect window."""
    if not incident.job_back:
        return "the job did not start again while we waited"
    point = alarm_of(needs.incidents, incident).resume_from
    wanted = point.step if point is not None else None
    if incident.resumed_from_step == wanted:
        return f"the job resumed from step {wanted}, as chosen" if wanted is not None else "the job is back"
    return (
        f"the job resumed from step {incident.resumed_from_step}, the agent had chosen {wanted}: look at it"
    )


def _close(needs: Needs, incident: Incident, end: State, story: str) -> StepResult:
    """Free the locks, write the terminal state, free the gates: before it the instance is not another's.

    A retry in between frees them again, harmlessly. Whatever broke off, a replacement in flight ends as
    degraded, with the breaker open.
    """
    needs.controls.unlock(CHECK_LOCK, incident.id)
    end = State.REPLACEMENT_DEGRADED if let_go(needs, incident) else end
    done = replace(incident, closed_at=stamp(needs.clock.now())).to(end)
    saved = record(needs, incident, done, story)
    free_gates(needs.incidents, saved)
    return StepResult("closed", f"{end.value}: {story}")
