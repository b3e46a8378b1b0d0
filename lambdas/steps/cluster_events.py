"""What HyperPod and CloudWatch say on the default bus, five minutes late: matched with our incidents.

Used by `reconcile`. In: one event. Out: an audit entry at the incident of that instance; where a check's
metric raised an alarm and no alarm event of that check came, a number and an incident for people
(`details_missing`); the end of an incident whose execution ended badly. No node is acted on.
"""

from __future__ import annotations

import json
from datetime import timezone
from typing import Any, Protocol

from training_agent.contract import Check

from ..domain.details_missing import CHECKS, Fired
from ..domain.incident import execution_name
from ..domain.messages import one_line
from ..domain.times import moment, stamp
from . import abandoned, details_missing

LOST = "alarms_without_incident"


class Listener(abandoned.Undertaker, details_missing.Finder, Protocol):
    """The reconciler's needs."""


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
        return _metric_alarm(needs, detail, event.get("time"), body)
    if source == "aws.sagemaker" and detail.get("InstanceId"):
        return _instance(needs, str(detail["InstanceId"]), detail)
    if source == "aws.states" and detail.get("name"):
        return _execution(needs, str(detail["name"]))
    return "not of interest"


def _metric_alarm(needs: Listener, detail: dict[str, Any], time: Any, body: str) -> str:
    state = detail.get("state")
    if not isinstance(state, dict) or state.get("value") != "ALARM":
        return "no alarm"
    name, check = one_line(str(detail.get("alarmName")), 255), _check_of(detail)
    at = _fired_at(needs, time)
    if check is None:  # the rule lets no such alarm through; the number tells people
        found = details_missing.came(needs, tuple(Check), moment(at) - details_missing.AROUND)
        needs.numbers.put({LOST: float(not found)})
        return f"no event for {name}, which is on no metric of ours"
    fired = Fired(check, at, body, name, one_line(str(state.get("reason", ""))))
    found, lost = details_missing.lost_of(needs, fired)
    needs.numbers.put({LOST: float(bool(lost))})
    taken = "; ".join(details_missing.take(needs, fired, jobs) for jobs in lost)
    return taken or f"matched with incident {found}"


def _fired_at(needs: Listener, time: Any) -> str:
    """The event's own time, now when it has none."""
    try:
        return stamp(moment(str(time)).astimezone(timezone.utc))
    except ValueError:
        return stamp(needs.clock.now())


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
