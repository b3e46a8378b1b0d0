"""The tables in memory, with the conditions that the real ones have (tested in test_tables.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from lambdas.domain.approval import Answer, Approval, ApprovalState, Link
from lambdas.domain.errors import ConflictError, PermanentError
from lambdas.domain.incident import Effect, EffectState, Incident
from lambdas.domain.policy import Breaker, Control
from lambdas.domain.times import stamp
from lambdas.domain.world import Delivery, HistoryEntry, Registered
from training_agent.contract import Mode

START = datetime(2026, 1, 1, 0, 10, 30, tzinfo=timezone.utc)
LAUNCHED = "2025-12-31T00:00:00.000000Z"
APPROVER = "oncall@example.com"


class FakeClock:
    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at


class FakeIncidents:
    def __init__(self) -> None:
        self.rows: dict[str, Incident] = {}
        self.alarms: dict[str, str] = {}
        self.deliveries: dict[tuple[str, str | None], Delivery] = {}
        self.evidence: dict[tuple[str, str, int], str] = {}
        self.kept: dict[tuple[str, str, int], str] = {}
        self.restarts: defaultdict[str, int] = defaultdict(int)
        self.trail: list[tuple[str, str, str]] = []
        self.rejected: list[str] = []
        self.gates: dict[str, str] = {}
        self.effects: dict[tuple[str, str], Effect] = {}
        self.forgotten: set[str] = set()
        self.past: list[HistoryEntry] = []

    def delivery(self, key: str, node: str | None) -> Delivery | None:
        return self.deliveries.get((key, node))

    def open(self, incident: Incident, alarm_text: str, earlier: Delivery | None) -> bool:
        key = (incident.delivery_key, incident.node)
        if self.deliveries.get(key) != earlier or incident.id in self.rows:
            return False
        self.deliveries[key] = Delivery(incident.id, incident.sequence, incident.job.attempt)
        self.rows[incident.id] = incident
        self.alarms[incident.id] = alarm_text
        return True

    def get(self, incident_id: str) -> Incident:
        if incident_id not in self.rows:
            raise PermanentError(f"no incident {incident_id}")
        return self.rows[incident_id]

    def alarm(self, incident_id: str) -> str:
        return self.alarms.get(incident_id, "")

    def save(self, incident: Incident) -> Incident:
        if self.rows[incident.id].version != incident.version:
            raise ConflictError("changed by somebody else")
        self.rows[incident.id] = replace(incident, version=incident.version + 1)
        return self.rows[incident.id]

    def append_evidence(self, incident_id: str, key: str, attempt: int, text: str, at: datetime) -> None:
        row = self.rows[incident_id]
        if (incident_id, key, attempt) not in self.evidence:
            self.evidence[incident_id, key, attempt] = text
            self.kept[incident_id, key, attempt] = stamp(at)
            self.restarts[incident_id] += row.delivery_key == key and row.job.attempt < attempt

    def occurrences(self, incident_id: str) -> tuple[tuple[str, int], ...]:
        return tuple((key, attempt) for owner, key, attempt in self.evidence if owner == incident_id)

    def kept_at(self, incident_id: str, key: str, attempt: int) -> str | None:
        return self.kept.get((incident_id, key, attempt))

    def open_incidents(self) -> tuple[str, ...]:
        return tuple(i for i in self.rows if i not in self.forgotten)

    def forget_open(self, incident_id: str) -> None:
        self.forgotten.add(incident_id)

    def effects_of(self, incident_id: str) -> tuple[Effect, ...]:
        return tuple(e for (owner, _), e in self.effects.items() if owner == incident_id)

    def audit(self, incident_id: str, what: str, result: str, at: datetime) -> None:
        self.trail.append((incident_id, what, result))

    def reject(self, reason: str, source: str, excerpt: str, at: datetime) -> None:
        self.rejected.append(reason)

    def take_gate(self, gate: str, incident_id: str) -> str:
        return self.gates.setdefault(gate, incident_id)

    def free_gate(self, gate: str, incident_id: str) -> None:
        if self.gates.get(gate) == incident_id:
            del self.gates[gate]

    def effect(self, incident_id: str, name: str) -> Effect | None:
        return self.effects.get((incident_id, name))

    def intend(self, incident_id: str, name: str, at: datetime) -> bool:
        if (incident_id, name) in self.effects:
            return False
        self.effects[incident_id, name] = Effect(name, EffectState.INTENT, "", stamp(at))
        return True

    def conclude(self, incident_id: str, name: str, result: str, at: datetime) -> None:
        begun = self.effects.get((incident_id, name))
        since = begun.at if begun is not None else stamp(at)  # the row keeps when it was intended
        self.effects[incident_id, name] = Effect(name, EffectState.RESULT, result, since)

    def remember(self, entry: HistoryEntry) -> None:
        if entry not in self.past:
            self.past.append(entry)

    def history(self, subject: str, since: str = "") -> tuple[HistoryEntry, ...]:
        return tuple(e for e in self.past if e.subject == subject and e.at >= since)


class FakeApprovals:
    def __init__(self) -> None:
        self.rows: dict[str, Approval] = {}
        self.tokens: dict[str, str] = {}
        self.links: dict[str, Link] = {}

    def create(self, approval: Approval, task_token: str) -> None:
        self.rows.setdefault(approval.approval_id, approval)
        self.tokens[approval.approval_id] = task_token

    def get(self, approval_id: str) -> Approval | None:
        return self.rows.get(approval_id)

    def add_link(self, secret_hash: str, link: Link) -> None:
        self.links.setdefault(secret_hash, link)

    def link(self, secret_hash: str) -> Link | None:
        return self.links.get(secret_hash)

    def mark_mailed(self, approval_id: str, approver: str) -> None:
        row = self.rows[approval_id]
        self.rows[approval_id] = replace(row, mailed=tuple(sorted({*row.mailed, approver})))

    def decide(self, approval_id: str, answer: Answer, reason: str, by: str, at: datetime) -> bool:
        row = self.rows[approval_id]
        if row.state is not ApprovalState.PENDING or row.expired(at):
            return False
        self.rows[approval_id] = replace(
            row,
            state=ApprovalState.DECIDED,
            answer=answer,
            reason=reason,
            decided_by=by,
            decided_at=stamp(at),
        )
        return True

    def task_token(self, approval_id: str) -> str | None:
        return self.tokens.get(approval_id)

    def mark_delivered(self, approval_id: str) -> None:
        row = self.rows[approval_id]
        if row.state is ApprovalState.DECIDED:
            self.rows[approval_id] = replace(row, state=ApprovalState.DELIVERED)

    def end(self, approval_id: str, state: ApprovalState) -> bool:
        row = self.rows.get(approval_id)
        if row is None or (row.state is not ApprovalState.PENDING and state is not ApprovalState.SUPERSEDED):
            return False
        self.rows[approval_id] = replace(row, state=state)
        return True


class FakeRegistrations:
    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, str], Registered] = {}

    def put(self, registered: Registered) -> None:
        key = (registered.job_uid, registered.attempt, registered.node)
        if key not in self.rows or not self.rows[key].verified:
            self.rows[key] = registered

    def get(self, job_uid: str, attempt: int, node: str) -> Registered | None:
        return self.rows.get((job_uid, attempt, node))

    def nodes(self, job_uid: str, attempt: int) -> int:
        return sum(r.verified for k, r in self.rows.items() if k[:2] == (job_uid, attempt))

    def after(self, job_uid: str, attempt: int) -> tuple[Registered, ...]:
        later = sorted(k for k in self.rows if k[0] == job_uid and k[1] > attempt)
        return tuple(self.rows[k] for k in later)


class FakeQuarantine:
    def __init__(self) -> None:
        self.mode: Mode | None = None
        self.rows: dict[str, dict[str, Any]] = {}

    def put_mode(self, mode: Mode) -> None:
        self.mode = mode

    def hold(self, subject: str, occurrences: Sequence[str], incident_id: str, at: datetime) -> None:
        row = self._row(subject, occurrences)
        row["holders"].add(incident_id)
        row |= {"state": "held", "delivery_key": occurrences[-1], "incident_id": incident_id}

    def release(self, subject: str, occurrences: Sequence[str], incident_id: str, at: datetime) -> bool:
        row = self._row(subject, occurrences)
        row["holders"].discard(incident_id)
        if row["holders"]:
            return False
        row |= {"state": "released", "delivery_key": occurrences[-1], "incident_id": incident_id}
        return True

    def _row(self, subject: str, occurrences: Sequence[str]) -> dict[str, Any]:
        row = self.rows.setdefault(subject, {"holders": set(), "delivery_keys": set()})
        row["delivery_keys"] |= set(occurrences)
        return row

    def state(self, subject: str) -> str | None:
        return self.rows[subject]["state"] if subject in self.rows else None


class FakeControls:
    def __init__(self) -> None:
        self.control = Control(mode=None, kill_switch=False)
        self.locks: dict[str, str] = {}
        self.replaced: defaultdict[str, dict[str, datetime]] = defaultdict(dict)  # by instance group
        self.breaker_reason: str | None = None  # None: closed
        self.breaker_closed_by: list[tuple[str, str]] = []
        self.reads = 0

    def read(self) -> Control:
        self.reads += 1
        return self.control

    def lock(self, name: str, holder: str) -> bool:
        return self.locks.setdefault(name, holder) == holder

    def unlock(self, name: str, holder: str) -> None:
        if self.locks.get(name) == holder:
            del self.locks[name]

    def replacements(self, group: str) -> dict[str, datetime]:
        return dict(self.replaced[group])

    def count_replacement(self, group: str, incident_id: str, at: datetime) -> None:
        kept = {i: t for i, t in self.replaced[group].items() if t > at - timedelta(days=1)}
        self.replaced[group] = kept | {incident_id: at}

    def breaker(self) -> Breaker:
        return Breaker(open=self.breaker_reason is not None, reason=self.breaker_reason or "")

    def open_breaker(self, reason: str, incident_id: str, at: datetime) -> None:
        self.breaker_reason = self.breaker_reason if self.breaker_reason is not None else reason

    def close_breaker(self, reason: str, by: str, at: datetime) -> bool:
        if self.breaker_reason is None:
            return False
        self.breaker_reason = None
        self.breaker_closed_by.append((by, reason))
        return True
