"""The incident table: incidents, alarms, effects, audit trail; delivery keys, gates, history.

The incident itself stands as one JSON document; what people and reports look for is repeated as attributes.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime

from training_agent.contract import decode, encode

from ..domain.errors import ConflictError, PermanentError
from ..domain.incident import Effect, EffectState, Incident
from ..domain.times import stamp
from ..domain.world import Delivery, HistoryEntry
from .dynamodb import Item, Table

OPEN = "open"  # partition of one row per incident that has not ended, for the reconciler


class IncidentTable:
    """Implements `ports.Incidents`."""

    def __init__(self, name: str) -> None:
        self._table = Table(name)

    def delivery(self, key: str, node: str | None) -> Delivery | None:
        item = self._table.get(_delivery_key(key, node))
        return Delivery(item["incident_id"], item["sequence_no"], item["attempt"]) if item else None

    def open(self, incident: Incident, alarm_text: str, earlier: Delivery | None) -> bool:
        attempt = incident.job.attempt
        delivery = {"incident_id": incident.id, "sequence_no": incident.sequence, "attempt": attempt}
        fresh = "attribute_not_exists(pk)"
        standing = "sequence_no = :earlier"
        return self._table.transact_put(
            [
                (
                    {**_delivery_key(incident.delivery_key, incident.node), **delivery},
                    fresh if earlier is None else standing,
                    {} if earlier is None else {":earlier": earlier.sequence},
                ),
                (
                    {
                        **_key(incident.id, "state"),
                        **_attributes(incident),
                        "attempt": attempt,
                        "restart_count": 0,
                    },
                    fresh,
                    {},
                ),
                ({**_key(incident.id, "alarm"), "text": alarm_text}, fresh, {}),
                ({"pk": OPEN, "sk": incident.id}, fresh, {}),
            ]
        )

    def get(self, incident_id: str) -> Incident:
        item = self._table.get(_key(incident_id, "state"))
        if item is None:
            raise PermanentError(f"no incident {incident_id} is in the table")
        return replace(decode(Incident, item["document"], max_bytes=None), version=item["version"])

    def alarm(self, incident_id: str) -> str:
        item = self._table.get(_key(incident_id, "alarm"))
        return str(item["text"]) if item else ""

    def save(self, incident: Incident) -> Incident:
        saved = replace(incident, version=incident.version + 1)
        attributes = {k: v for k, v in _attributes(saved).items() if v is not None}
        names = {f"#{k}": k for k in attributes}
        won = self._table.update(
            _key(incident.id, "state"),
            "SET " + ", ".join(f"#{k} = :{k}" for k in attributes),
            {**{f":{k}": v for k, v in attributes.items()}, ":read": incident.version},
            "#version = :read",
            names,
        )
        if not won:
            raise ConflictError(f"incident {incident.id} was changed by somebody else")
        return saved

    def append_evidence(self, incident_id: str, key: str, attempt: int, text: str, at: datetime) -> None:
        # Beside the text, which can be long; before it, for a retry that finds the text writes nothing more.
        name = {"delivery_key": key, "attempt": attempt, "at": stamp(at)}
        self._table.put(
            {**_key(incident_id, f"occurrence#{key}#{attempt:06d}"), **name}, "attribute_not_exists(pk)"
        )
        item = {**_key(incident_id, f"evidence#{key}#{attempt:06d}"), "text": text, "at": stamp(at)}
        item["end"] = "DUPLICATE"  # of the event: it opened no incident
        if not self._table.put(item, "attribute_not_exists(pk)"):
            return
        self._table.update(
            _key(incident_id, "state"),
            "ADD restart_count :one",
            {":one": 1, ":key": key, ":attempt": attempt},
            "delivery_key = :key AND attempt < :attempt",
        )

    def occurrences(self, incident_id: str) -> tuple[tuple[str, int], ...]:
        items = self._table.query(
            "pk = :pk AND begins_with(sk, :occurrence)",
            {":pk": f"incident#{incident_id}", ":occurrence": "occurrence#"},
        )
        return tuple((i["delivery_key"], i["attempt"]) for i in sorted(items, key=lambda i: str(i["at"])))

    def kept_at(self, incident_id: str, key: str, attempt: int) -> str | None:
        item = self._table.get(_key(incident_id, f"occurrence#{key}#{attempt:06d}"))
        return str(item["at"]) if item else None

    def open_incidents(self) -> tuple[str, ...]:
        return tuple(str(i["sk"]) for i in self._table.query("pk = :pk", {":pk": OPEN}))

    def forget_open(self, incident_id: str) -> None:
        self._table.delete({"pk": OPEN, "sk": incident_id})

    def effects_of(self, incident_id: str) -> tuple[Effect, ...]:
        items = self._table.query(
            "pk = :pk AND begins_with(sk, :effect)",
            {":pk": f"incident#{incident_id}", ":effect": "effect#"},
        )
        return tuple(
            Effect(i["sk"].removeprefix("effect#"), EffectState(i["state"]), i["result"], i["at"])
            for i in items
        )

    def audit(self, incident_id: str, what: str, result: str, at: datetime) -> None:
        sk = f"audit#{stamp(at)}#{secrets.token_hex(4)}"
        self._table.put({**_key(incident_id, sk), "what": what, "result": result})

    def reject(self, reason: str, source: str, excerpt: str, at: datetime) -> None:
        now = stamp(at)
        key = {"pk": f"rejected#{now[:10]}", "sk": f"audit#{now}#{secrets.token_hex(4)}"}
        self._table.put(
            {**key, "reason": reason, "source": source, "excerpt": excerpt, "end": "REJECTED_EVENT"}
        )

    def take_gate(self, gate: str, incident_id: str) -> str:
        key = {"pk": f"gate#{gate}", "sk": "gate"}
        mine = self._table.put(
            {**key, "incident_id": incident_id},
            "attribute_not_exists(pk) OR incident_id = :mine",
            {":mine": incident_id},
        )
        if mine:
            return incident_id
        item = self._table.get(key)
        if item is None:
            raise ConflictError(f"gate {gate} was freed just now")
        return str(item["incident_id"])

    def free_gate(self, gate: str, incident_id: str) -> None:
        self._table.delete(
            {"pk": f"gate#{gate}", "sk": "gate"}, "incident_id = :mine", {":mine": incident_id}
        )

    def effect(self, incident_id: str, name: str) -> Effect | None:
        item = self._table.get(_key(incident_id, f"effect#{name}"))
        return Effect(name, EffectState(item["state"]), item["result"], item["at"]) if item else None

    def intend(self, incident_id: str, name: str, at: datetime) -> bool:
        item = {**_key(incident_id, f"effect#{name}"), "state": EffectState.INTENT.value, "result": ""}
        return self._table.put({**item, "at": stamp(at)}, "attribute_not_exists(pk)")

    def conclude(self, incident_id: str, name: str, result: str, at: datetime) -> None:
        self._table.update(
            _key(incident_id, f"effect#{name}"),
            "SET #state = :state, #result = :result, concluded_at = :at",
            {":state": EffectState.RESULT.value, ":result": result, ":at": stamp(at)},
            names={"#state": "state", "#result": "result"},
        )

    def remember(self, entry: HistoryEntry) -> None:
        key = {"pk": f"history#{entry.subject}", "sk": f"{entry.at}#{entry.incident_id}#{entry.what}"}
        self._table.put({**key, "incident_id": entry.incident_id, "what": entry.what, "at": entry.at})

    def history(self, subject: str, since: str = "") -> tuple[HistoryEntry, ...]:
        items = self._table.query(
            "pk = :pk AND sk >= :since", {":pk": f"history#{subject}", ":since": since or "0"}
        )
        return tuple(HistoryEntry(subject, i["incident_id"], i["what"], i["at"]) for i in items)


def _key(incident_id: str, sk: str) -> Item:
    return {"pk": f"incident#{incident_id}", "sk": sk}


def _delivery_key(key: str, node: str | None) -> Item:
    return {"pk": f"delivery#{key}", "sk": f"node#{node or ''}"}


def _attributes(incident: Incident) -> Item:
    return {
        "document": encode(incident),
        "version": incident.version,
        "state": incident.state.value,
        "incident_id": incident.id,
        "delivery_key": incident.delivery_key,
        "job_uid": incident.job.uid,
        "node": incident.node,
        "instance_id": incident.instance_id,
        "ranks": list(incident.ranks),
        "decision_row": incident.decision_row,
        "decided_rows": list(incident.decided_rows),
        "new_instance_id": incident.new_instance_id,
        "resumed_from_step": incident.resumed_from_step,
        "human_reason": incident.human_reason,
        "opened_at": incident.opened_at,
        "closed_at": incident.closed_at,
        "updated_at": incident.updated_at,
        "synthetic": incident.synthetic,
    }
