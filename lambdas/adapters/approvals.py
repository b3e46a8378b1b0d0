"""The approval table: approvals, and one row per link that leads to one (hash of its secret, its approver).

The task token is read by one method only; everything else projects it away.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

from training_agent.contract import decode, encode

from ..domain.approval import EVERYBODY, Answer, Approval, ApprovalState, Link
from ..domain.times import stamp
from .dynamodb import Item, Table

_SHOWN = ("document", "state", "mailed", "answer", "reason", "decided_at", "decided_by")
_NAMES = {"#state": "state"}
_PENDING = "#state = :pending"
_EXISTS = "attribute_exists(approval_id)"


class ApprovalTable:
    """Implements `ports.Approvals`."""

    def __init__(self, name: str) -> None:
        self._table = Table(name)

    def create(self, approval: Approval, task_token: str) -> None:
        created = self._table.put(
            {
                "approval_id": approval.approval_id,
                "incident_id": approval.incident_id,
                "document": encode(approval),
                "state": approval.state.value,
                "expires_at": approval.expires_at,
                "task_token": task_token,
            },
            "attribute_not_exists(approval_id)",
        )
        if not created:
            newest = {":token": task_token}
            self._table.update(_key(approval.approval_id), "SET task_token = :token", newest, _EXISTS)

    def add_link(self, secret_hash: str, link: Link) -> None:
        item = {"approval_id": secret_hash, "approval": link.approval_id, "approver": link.approver}
        self._table.put(item, "attribute_not_exists(approval_id)")

    def link(self, secret_hash: str) -> Link | None:
        item = self._table.get(_key(secret_hash), attributes=("approval", "approver", "document"))
        if item is None:
            return None
        if "approval" in item:
            return Link(item["approval"], item["approver"])
        # Before links had rows of their own, the approval stood under the hash of its only secret.
        return Link(secret_hash, "holder of the link") if _is_hash(secret_hash) else None

    def get(self, approval_id: str) -> Approval | None:
        item = self._table.get(_key(approval_id), attributes=_SHOWN)
        if item is None:
            return None
        if "document" not in item:  # a link's row
            return None
        return replace(
            decode(Approval, _without_flag(item["document"]), max_bytes=None),
            state=ApprovalState(item["state"]),
            mailed=_mailed(item.get("mailed", ())),
            answer=Answer(item["answer"]) if "answer" in item else None,
            reason=item.get("reason", ""),
            decided_at=item.get("decided_at"),
            decided_by=item.get("decided_by", ""),
        )

    def mark_mailed(self, approval_id: str, approver: str) -> None:
        self._table.update(_key(approval_id), "ADD mailed :one", {":one": {approver}}, _EXISTS)

    def decide(self, approval_id: str, answer: Answer, reason: str, by: str, at: datetime) -> bool:
        return self._table.update(
            _key(approval_id),
            "SET #state = :decided, answer = :answer, reason = :reason, decided_at = :at, decided_by = :by",
            {
                ":decided": ApprovalState.DECIDED.value,
                ":answer": answer.value,
                ":reason": reason,
                ":at": stamp(at),
                ":by": by,
                ":pending": ApprovalState.PENDING.value,
            },
            f"{_PENDING} AND expires_at > :at",
            _NAMES,
        )

    def task_token(self, approval_id: str) -> str | None:
        item = self._table.get(_key(approval_id), attributes=("task_token",))
        return item.get("task_token") if item else None

    def mark_delivered(self, approval_id: str) -> None:
        self._table.update(
            _key(approval_id),
            "SET #state = :delivered",
            {":delivered": ApprovalState.DELIVERED.value, ":decided": ApprovalState.DECIDED.value},
            "#state = :decided",
            _NAMES,
        )

    def end(self, approval_id: str, state: ApprovalState) -> bool:
        values = {":state": state.value}
        if state is ApprovalState.SUPERSEDED:
            return self._table.update(_key(approval_id), "SET #state = :state", values, _EXISTS, _NAMES)
        values |= {":pending": ApprovalState.PENDING.value}
        return self._table.update(_key(approval_id), "SET #state = :state", values, _PENDING, _NAMES)


def _mailed(value: Any) -> tuple[str, ...]:
    """Approvers; rows of the version before said only whether."""
    return tuple(sorted(value)) if isinstance(value, (list, set)) else (EVERYBODY,) * bool(value)


def _without_flag(document: str) -> str:
    """The version before wrote `"mailed": true|false` into the document; the row's attribute counts."""
    plain = json.loads(document)
    plain.pop("mailed", None)
    return json.dumps(plain)


def _is_hash(key: str) -> bool:
    return len(key) == 64


def _key(approval_id: str) -> Item:
    return {"approval_id": approval_id}
