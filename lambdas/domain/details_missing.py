"""A metric of the agent fired and its event never came: what is known then, and the mail about it.

In: the metric's alarm as CloudWatch told it, the jobs that run. Out: names under which events and alarms of a
check are found, and a mail. A metric names neither rank nor node, so that nothing here is acted on.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from training_agent.contract import Check, Metric

from .approval import Fact
from .incident import Incident
from .letter import Letter, render
from .messages import one_line, subject, when
from .times import moment, stamp

CHECKS = {
    Metric.NONFINITE_GRAD: Check.NONFINITE,
    Metric.REPLAY_MISMATCH: Check.REPLAY,
    Metric.DIVERGENT_TENSORS: Check.WEIGHTS,
    Metric.REDUCTION_MISMATCH: Check.REDUCTION,
}
METRICS = {check: metric for metric, check in CHECKS.items()}
NOT_KNOWN = "not known"  # the job's name, where none is known to have put the metric
MEANS = {
    Check.NONFINITE: "A rank's gradient was NaN or Inf, and no event says whose.",
    Check.REPLAY: "A micro-batch gave other bits on another node, and no event says whose.",
    Check.WEIGHTS: "Replicas that must be equal hold different weights, and no event says which.",
    Check.REDUCTION: "An all-reduce did not give the mean of the gradients, and no event says more.",
}
TODO = (
    'Find the alarm itself: the job\'s workers print it as one line, "sdc":"alarm", before they end with '
    "code 3, and it lies in $SDC_SHARED_DIR/spool.",
    "Treat the nodes that it names as suspect until somebody has looked: `kubectl cordon` is yours here.",
    "Find out why the event did not come: `sdc doctor` in a pod of the job (its permission and the bus), "
    "messages in AlarmDeadLetters, the alarm AlarmsRejected (docs/operate.md, AlarmsWithoutIncident).",
)
COMMANDS = (
    "kubectl get pods -A -L training.sdc/job-name -o wide",
    'kubectl logs -n NAMESPACE POD | grep \'"sdc":"alarm"\'',
)


@dataclass(frozen=True, slots=True)
class Fired:
    """A metric's alarm went into ALARM, or a job put the metric while it was on already."""

    check: Check
    at: str  # UTC, ISO 8601 with Z
    body: str  # the event, or what was read, for the record
    alarm: str = ""  # its name in CloudWatch; empty: the metric itself was read
    reason: str = ""  # CloudWatch's own sentence


@dataclass(frozen=True, slots=True)
class Jobs:
    """Which jobs run, and whose metric it is; names only."""

    fired: tuple[str, ...] = ()  # whose event is looked for; of an incident one at most
    running: tuple[str, ...] = ()
    unread: str = ""  # why it is not known

    @property
    def name(self) -> str:
        """Of the one that put the metric and whose event is lost."""
        return next(iter(self.fired), NOT_KNOWN)


def heard_of(check: Check) -> str:
    """Subject of the history in which each alarm event of a check leaves an entry."""
    return f"heard#{check.value}"


def delivery_of(check: Check, job: str) -> str:
    """One incident for all alarms of a check's metric by one job, while it stands."""
    return f"metric#{check.value}#{job}"


def reason_of(fired: Fired) -> str:
    """One sentence, kept with the incident."""
    what = f"alarm {fired.alarm} fired" if fired.alarm else f"{METRICS[fired.check].value} was above zero"
    return (
        f"details missing: the metric {what} at {when(fired.at)}, and no alarm event of check "
        f"{fired.check.value} came with it"
    )


def details_mail(incident: Incident, fired: Fired, jobs: Jobs, patience: timedelta) -> tuple[str, str]:
    """Tell people what is known and where to look; `patience`: how long a late event still counts."""
    until = when(stamp(moment(incident.opened_at) + patience))
    facts = (
        ("Incident", incident.id),
        ("Check", fired.check.value),
        ("Metric alarm", fired.alarm),
        ("Fired", when(fired.at)),
        ("CloudWatch says", fired.reason),
        ("Job that put the metric", ", ".join(jobs.fired) or jobs.unread or "none of those that run now"),
        ("Jobs that run", ", ".join(jobs.running) or jobs.unread or "none"),
    )
    body = Letter(
        opening=(
            "A metric of the training agent fired, and the alarm that belongs to it has not come.",
            "Nothing was touched, and nothing will be: a metric names no node, so this one is for people.",
        ),
        meaning=(MEANS[fired.check],),
        todo=(
            *TODO,
            f"If the event comes before {until} it is taken up as usual and this incident joins it: you get "
            "the usual mail then. From that time on this one is yours alone.",
        ),
        facts=tuple(Fact(label, one_line(text)) for label, text in facts if text),
        commands=COMMANDS,
    )
    return subject(incident, "details missing"), render(body)
