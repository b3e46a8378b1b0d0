"""What HyperPod and CloudWatch say on the default bus, five minutes late: matched with our incidents.

Used by `reconcile`. In: one event. Out: an audit entry at the incident of that instance; a number when a
check's metric raised an alarm and no incident was opened for it (its event was lost). Nothing is acted on.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Protocol

from ..domain.messages import one_line
from ..domain.times import moment
from ..ports import Clock, Incidents, Numbers

AROUND = timedelta(minutes=15)  # the event is five minutes late, metrics are a few minutes wide
LOST = "alarms_without_incident"


class Listener(Protocol):
    @property
    def incidents(self) -> Incidents: ...
    @property
    def numbers(self) -> Numbers: ...
    @property
    def clock(self) -> Clock: ...


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
    return "not of interest"


def _metric_alarm(needs: Listener, detail: dict[str, Any]) -> str:
    state = detail.get("state")
    if not isinstance(state, dict) or state.get("value") != "ALARM":
        return "no alarm"
    since = needs.clock.now() - AROUND
    recent = (needs.incidents.get(i) for i in needs.incidents.open_incidents())
    matched = any(moment(i.opened_at) >= since and not i.synthetic for i in recent)
    needs.numbers.put({LOST: float(not matched)})
    return (
        "matched"
        if matched
        else f"no incident for metric alarm {one_line(str(detail.get('alarmName')), 100)}"
    )


def _instance(needs: Listener, instance_id: str, detail: dict[str, Any]) -> str:
    summary = detail.get("HealthSummary")
    text = one_line(json.dumps(summary if summary is not None else detail), 300)
    for incident_id in needs.incidents.open_incidents():
        incident = needs.incidents.get(incident_id)
        if not incident.state.terminal and instance_id in {t.instance_id for t in incident.targets}:
            needs.incidents.audit(incident_id, "HyperPod says", text, needs.clock.now())
            return f"noted at incident {incident_id}"
    return "no incident of this instance"
