"""An operator lets go what an ended incident left contained: nobody answered, a human kept it, or had to act.

Called by the signed route (`approval_api`) or by hand (docs/operate.md), never by the state machine. In: an
ended incident, who, why. Out: its own cordons taken back, its quarantine rows released, an entry in its
audit trail; the terminal state keeps its name. What somebody else cordoned or holds is left as it is.
"""

from __future__ import annotations

from typing import Any

from training_agent.contract import Mode

from ..domain.incident import State
from ..domain.messages import one_line
from . import resume
from .contain import release_quarantine
from .effects import permit, uncordon
from .outcome import StepResult

MAX_REASON = 500


def run(needs: resume.Needs, incident_id: str, asked: Any) -> StepResult:
    """Answer "released" or, with nothing done, "refused"; once more is harmless, each effect asks anew.

    Raises:
        HaltedError: the kill switch is on, or the mode too low.
    """
    by, reason = (_text(asked, name) for name in ("by", "reason"))
    if not by or not reason:
        return StepResult("refused", 'give who and why: "release": {"by": "...", "reason": "..."}')
    incident = needs.incidents.get(incident_id)
    if not incident.state.terminal or incident.state is State.JOINED:
        story = f"incident {incident_id} is {incident.state.value}: only an ended one is released by hand"
        return StepResult("refused", story)
    if incident.synthetic:
        return StepResult("refused", f"incident {incident_id} was a fire drill: nothing is contained")
    if not incident.job.uid:
        return StepResult("refused", f"incident {incident_id} names no job and no node: nothing is contained")
    permit(needs, Mode.CONTAIN, "release by an operator")
    # Noted first: a release that breaks off half-way has let go something all the same.
    needs.incidents.audit(incident.id, "released by an operator", f"{by}: {reason}", needs.clock.now())
    done = [uncordon(needs, incident, target) for target in incident.targets]
    held = release_quarantine(needs, incident)
    done += [f"{subject} is held by another incident: left as it is" for subject in held]
    return StepResult("released", ", ".join(done) or "quarantine released")


def _text(asked: Any, name: str) -> str:
    value = asked.get(name) if isinstance(asked, dict) else None
    return one_line(value, MAX_REASON) if isinstance(value, str) else ""
