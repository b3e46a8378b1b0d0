"""The registration table: who ran where, by job and attempt. A verified row is never replaced."""

from __future__ import annotations

from datetime import timedelta

from ..domain.times import moment
from ..domain.world import Registered
from .dynamodb import Item, Table

KEPT = timedelta(days=180)  # longer than any job; the table's own expiry


class RegistrationTable:
    """Implements `ports.Registrations`."""

    def __init__(self, name: str) -> None:
        self._table = Table(name)

    def put(self, registered: Registered) -> None:
        self._table.put(
            {
                **_key(registered.job_uid, registered.attempt, registered.node),
                "attempt": registered.attempt,
                "node": registered.node,
                "text": registered.text,
                "verified": registered.verified,
                "reason": registered.reason,
                "launch_time": registered.launch_time,
                "instance_group": registered.group,
                "stored_at": registered.stored_at,
                "expires_at_epoch": int((moment(registered.stored_at) + KEPT).timestamp()),
            },
            "attribute_not_exists(job_uid) OR verified = :no",
            {":no": False},
        )

    def get(self, job_uid: str, attempt: int, node: str) -> Registered | None:
        item = self._table.get(_key(job_uid, attempt, node))
        return _registered(item) if item else None

    def nodes(self, job_uid: str, attempt: int) -> int:
        items = self._table.query(
            "job_uid = :job AND begins_with(attempt_node, :attempt)",
            {":job": job_uid, ":attempt": f"{attempt:06d}#"},
        )
        return sum(bool(i["verified"]) for i in items)

    def after(self, job_uid: str, attempt: int) -> tuple[Registered, ...]:
        items = self._table.query(
            "job_uid = :job AND attempt_node >= :next", {":job": job_uid, ":next": f"{attempt + 1:06d}"}
        )
        return tuple(map(_registered, items))


def _key(job_uid: str, attempt: int, node: str) -> Item:
    return {"job_uid": job_uid, "attempt_node": f"{attempt:06d}#{node}"}


def _registered(item: Item) -> Registered:
    return Registered(
        job_uid=item["job_uid"],
        attempt=item["attempt"],
        node=item["node"],
        text=item["text"],
        verified=item["verified"],
        reason=item["reason"],
        launch_time=item.get("launch_time"),
        group=item.get("instance_group"),
        stored_at=item["stored_at"],
    )
