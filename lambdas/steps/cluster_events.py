"""What HyperPod and CloudWatch say on the default bus, five minutes late: matched with our incidents.

Used by `reconcile`. In: one event. Out: an audit entry at the incident of that instance; a number when a
check's metric raised an alarm and no incident of that check was opened (its event was lost); the end of an
incident whose execution ended badly. No node is acted on.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Protocol

from training_agent.contract import Check, Metric

from ..domain.incident import execution_name
from ..domain.messages import one_line
from ..domain.times import moment
from ..ports import Numbers
from . import abandoned

AROUND = timedelta(minutes=15)  # the event is five minutes late, metrics are a few minutes wide
LOST = "alarms_without_incident"


CHECKS = {
    Metric.NONFINITE_GRAD: Check.NONFINITE,
    Metric.REPLAY_MISMATCH: Check.REPLAY,
    Metric.DIVERGENT_TENSORS: Check.WEIGHTS,
}


class Listener(abandoned.Undertaker, Protocol):
    @property
    def numbers(self) -> Numbers: ...


def hear(needs: Listener, body: str) -> str:
    """Take in one event; returns what became of it, for the log."""
    try:
        event: Any = json.loads(body)
        source, detail = str(event["source"]), event["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "not an event"
    if not isinstance(detail, dict):
        return "no detail"
    if source == "aws.cloudwatch":
        return _metric_alarm(needs, detail)
    if source == "aws.sagemaker" and detail.get("InstanceId"):
        return _instance(needs, str(detail["InstanceId"]), detail)
    if source == "aws.states" and detail.get("name"):
        return _execution(needs, str(detail["name"]))
    return "not of interest"


def _metric_alarm(needs: Listener, detail: dict[str, Any]) -> str:
    state = detail.get("state")
    if not isinstance(state, dict) or state.get("value") != "ALARM":
        return "no alarm"
    check = _check_of(detail)
    since = needs.clock.now() - AROUND
    recent = (needs.incidents.get(i) for i in needs.incidents.open_incidents())
    matched = any(
        moment(i.opened_at) >= since and not i.synthetic and check in (None, i.check) for i in recent
    )
    needs.numbers.put({LOST: float(not matched)})
    return (
        "matched"
        if matched
        else f"no incident for metric alarm {one_line(str(detail.get('alarmName')), 100)}"
    )


def _check_of(detail: dict[str, Any]) -> Check | None:
    """The check whose metric fired; None when the event does not say."""
    text = json.dumps(detail.get("configuration"))
    return next((check for metric, check in CHECKS.items() if f'"{metric.value}"' in text), None)


def _execution(needs: Listener, name: str) -> str:
    """An execution ended badly: its incident is ended at once, not at the next look."""
    incident_id = name.rpartition("-")[0]
    if incident_id not in needs.incidents.open_incidents():
        return "no open incident of this execution"
    incident = needs.incidents.get(incident_id)
    same = execution_name(incident) == name and not incident.state.terminal
    if not same or not abandoned.is_abandoned(needs, incident, needs.clock.now()):
        return f"incident {incident_id} goes on, or has ended"
    abandoned.end(needs, incident)
    return f"ended incident {incident_id}"


def _instance(needs: Listener, instance_id: str, detail: dict[str, Any]) -> str:
    summary = detail.get("HealthSummary")
    text = one_line(json.dumps(summary if summary is not None else detail), 300)
    for incident_id in needs.incidents.open_incidents():
        incident = needs.incidents.get(incident_id)
        if not incident.state.terminal and instance_id in {t.instance_id for t in incident.targets}:
            needs.incidents.audit(incident_id, "HyperPod says", text, needs.clock.now())
            return f"noted at incident {incident_id}"
    return "no incident of this instance"
