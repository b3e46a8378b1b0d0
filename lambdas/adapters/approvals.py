"""The approval table. The task token is read by one method only; everything else projects it away."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from training_agent.contract import decode, encode

from ..domain.approval import Answer, Approval, ApprovalState
from ..domain.times import stamp
from .dynamodb import Item, Table

_SHOWN = ("document", "state", "mailed", "answer", "reason", "decided_at", "decided_by")
_NAMES = {"#state": "state"}
_PENDING = "#state = :pending"


class ApprovalTable:
    """Implements `ports.Approvals`."""

    def __init__(self, name: str) -> None:
        self._table = Table(name)

    def create(self, approval: Approval, task_token: str) -> None:
        self._table.put(
            {
                "approval_id": approval.approval_id,
                "incident_id": approval.incident_id,
                "document": encode(approval),
                "state": approval.state.value,
                "mailed": approval.mailed,
                "expires_at": approval.expires_at,
                "task_token": task_token,
            },
            "attribute_not_exists(approval_id)",
        )

    def get(self, approval_id: str) -> Approval | None:
        item = self._table.get(_key(approval_id), attributes=_SHOWN)
        if item is None:
            return None
        return replace(
            decode(Approval, item["document"], max_bytes=None),
            state=ApprovalState(item["state"]),
            mailed=bool(item["mailed"]),
            answer=Answer(item["answer"]) if "answer" in item else None,
            reason=item.get("reason", ""),
            decided_at=item.get("decided_at"),
            decided_by=item.get("decided_by", ""),
        )

    def renew_token(self, approval_id: str, task_token: str) -> None:
        exists = "attribute_exists(approval_id)"
        self._table.update(_key(approval_id), "SET task_token = :token", {":token": task_token}, exists)

    def mark_mailed(self, approval_id: str) -> None:
        exists = "attribute_exists(approval_id)"
        self._table.update(_key(approval_id), "SET mailed = :true", {":true": True}, exists)

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
            _PENDING,
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
        values = {":state": state.value, ":pending": ApprovalState.PENDING.value}
        return self._table.update(_key(approval_id), "SET #state = :state", values, _PENDING, _NAMES)


def _key(approval_id: str) -> Item:
    return {"approval_id": approval_id}
