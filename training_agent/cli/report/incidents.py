"""What the pipeline wrote down of one incident: rows of the incident table -> `Record`. Pure.

In: the rows under `incident#<id>` as plain Python, the execution's story. Out: who decided what and when, how
long people and machines took, the alarm itself. The rows are the pipeline's; this reader ignores what it does
not know and leaves out what is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ...contract import Alarm, ContractError, decode
from ..story import Chapter

STATE = "state "  # before a state's name, in the audit trail
DECIDING = (
    "decision",
    "released by an operator",
    "approval expired",
    "question closed",
    "targeted audit",
    "needs a human",
)  # lines of the audit trail that say what was decided, or that nobody did
EARLIEST = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the audit trail."""

    at: datetime
    what: str
    result: str


@dataclass(frozen=True, slots=True)
class Span:
    """How long something took that people wait for; `end` None: it did not come to its end."""

    name: str
    begin: datetime
    end: datetime | None
    said: str  # from what to what

    @property
    def seconds(self) -> float | None:
        return None if self.end is None else max(0.0, (self.end - self.begin).total_seconds())


@dataclass(frozen=True, slots=True)
class Record:
    """One incident, whole."""

    id: str
    state: str
    row: str
    reason: str
    job: str
    job_uid: str
    check: str
    step: int
    ranks: tuple[int, ...]
    node: str
    instance_id: str
    gpu_uuids: tuple[str, ...]
    new_instance_id: str
    resumed_from_step: int | None
    opened_at: datetime
    closed_at: datetime | None
    synthetic: bool
    alarm: Alarm | None
    trail: tuple[Entry, ...]
    spans: tuple[Span, ...]
    story: tuple[Chapter, ...] = ()
    execution: str = ""  # its page in the console

    @property
    def decisions(self) -> tuple[Entry, ...]:
        """Who decided what and when; also what was decided by nobody."""
        return tuple(e for e in self.trail if e.what in DECIDING)


def record(
    items: Sequence[Mapping[str, Any]], story: Sequence[Chapter] = (), execution: str = ""
) -> Record | None:
    """From all rows of one incident; None where its own row is missing or damaged."""
    rows = {str(i["sk"]): i for i in items}
    try:
        document = json.loads(str(rows["state"]["document"]))
        opened = moment(document["opened_at"])
    except (KeyError, ValueError, TypeError):
        return None
    if opened is None:
        return None
    trail = tuple(sorted(_trail(items), key=lambda e: e.at))
    target = (document.get("targets") or [{}])[0]
    job = document.get("job") or {}
    alarm = _alarm(str(rows.get("alarm", {}).get("text", "")))
    return Record(
        id=str(document.get("id", "")),
        state=str(document.get("state", "")),
        row=str(document.get("decision_row") or ""),
        reason=str(document.get("human_reason") or document.get("decision_reason") or ""),
        job=str(job.get("name", "")),
        job_uid=str(job.get("uid", "")),
        check=str(document.get("check", "")),
        step=int(document.get("step", 0)),
        ranks=tuple(document.get("ranks") or ()),
        node=str(document.get("node") or ""),
        instance_id=str(target.get("instance_id") or ""),
        gpu_uuids=tuple(map(str, target.get("gpu_uuids") or ())),
        new_instance_id=str(document.get("new_instance_id") or ""),
        resumed_from_step=document.get("resumed_from_step"),
        opened_at=opened,
        closed_at=moment(document.get("closed_at")),
        synthetic=bool(document.get("synthetic")),
        alarm=alarm,
        trail=trail,
        spans=tuple(_spans(document, opened, alarm, trail)),
        story=tuple(story),
        execution=execution,
    )


def moment(text: object) -> datetime | None:
    """A stored moment; None for what is none."""
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _trail(items: Iterable[Mapping[str, Any]]) -> Iterable[Entry]:
    for item in items:
        kind, _, rest = str(item["sk"]).partition("#")
        at = moment(rest.partition("#")[0])
        if kind == "audit" and at is not None:
            yield Entry(at, str(item.get("what", "")), str(item.get("result", "")))


def _alarm(text: str) -> Alarm | None:
    try:
        return decode(Alarm, text, max_bytes=None)
    except ContractError:
        return None


def _spans(
    document: Mapping[str, Any], opened: datetime, alarm: Alarm | None, trail: Sequence[Entry]
) -> Iterable[Span]:
    """What people wait for, in order; from where the dashboard's durations are taken too."""
    raised = moment(alarm.time) if alarm is not None else None
    if raised is not None:
        yield Span("open", raised, opened, "from the alarm in the job to the incident")
    yield Span("contain", opened, _reached(trail, "CONTAINED"), "from the incident to the cordon")
    asked = _reached(trail, "AWAITING_APPROVAL")
    if asked is not None:
        answered = next((e.at for e in trail if e.what == "decision" and e.at >= asked), None)
        yield Span("approve", asked, answered, "from the question to a person's answer")
    issued = moment(document.get("issued_at"))
    if issued is not None:
        seen = _reached(trail, "CLOSING", issued)
        yield Span("replace", issued, seen, "from the request to a new node that runs")
    closed = moment(document.get("closed_at"))
    begin = _reached(trail, "CLOSING", issued or EARLIEST)
    if begin is not None and closed is not None:
        yield Span("come back", begin, closed, "from there until the job is back")


def _reached(trail: Sequence[Entry], state: str, after: datetime = EARLIEST) -> datetime | None:
    return next((e.at for e in trail if e.what == STATE + state and e.at >= after), None)
