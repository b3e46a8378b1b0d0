"""Rank 0's judgement: may the ranks of this attempt compute where they stand?

In: the places of all ranks, `quarantine.json`, the quarantine table. Out: go, or hold with reasons for
people. Used by `training_agent.hold`, again at every poll.
"""

from __future__ import annotations

from collections.abc import Iterable

from .clients import ClientFactory
from .contract import (
    ContractError,
    Mode,
    Place,
    QuarantineEntry,
    gpu_subject,
    instance_subject,
    job_subject,
)
from .placement_files import Judgement
from .quarantine import covers, read_record
from .quarantine_table import QuarantineTable, Row, TableUnreadableError
from .settings import AgentSettings
from .warn_once import warn_once


class Judge:
    """Rank 0's judgement over all places; unknown is not healthy, except where nothing accuses anybody."""

    def __init__(self, settings: AgentSettings, client: ClientFactory) -> None:
        self._settings = settings
        self._table = (
            QuarantineTable(settings.quarantine_table, client) if settings.quarantine_table else None
        )

    def judge(self, places: tuple[Place, ...]) -> Judgement:
        """Return go, or hold with one reason per suspect on which a rank stands."""
        assert self._settings.shared_dir is not None
        try:
            entries = read_record(self._settings.shared_dir).entries
        except (ContractError, OSError) as e:
            return self._unless_observing(
                f"the record of suspects cannot be read ({e}): repair or restore it"
            )
        accused = tuple(e for e in entries if any(covers(e, p) for p in places))
        if self._table is None:
            return _judgement(_why(e, places) for e in accused)
        try:
            if self._table.mode() is Mode.OBSERVE:
                return Judgement("go")
            rows = self._table.rows(self._subjects(places, accused))
        except TableUnreadableError as e:
            return self._without_table(accused, places, e)
        # A row that is held counts whoever put it there, another job included, and outweighs released ones.
        reasons = [f"{r.subject} is quarantined" for r in rows.values() if r.held]
        free = [e for e in accused if self._is_free(e, rows)]
        reasons += [_why(e, places) for e in accused if e not in free]
        return _judgement(reasons)

    def _subjects(self, places: tuple[Place, ...], accused: tuple[QuarantineEntry, ...]) -> list[str]:
        subjects = [job_subject(self._settings.job.uid)]
        for place in places:
            subjects += _subjects_of(place)
        for entry in accused:
            subjects += _subjects_of(entry)
        return subjects

    def _is_free(self, entry: QuarantineEntry, rows: dict[str, Row]) -> bool:
        # An alarm that names nobody is one incident of the job: its row then speaks for the places involved,
        # also where an earlier alarm has left a row of their own.
        subjects = [*_subjects_of(entry), job_subject(self._settings.job.uid)]
        return any(rows[s].releases(entry) for s in subjects if s in rows)

    def _without_table(
        self, accused: tuple[QuarantineEntry, ...], places: tuple[Place, ...], why: TableUnreadableError
    ) -> Judgement:
        warn_once(why, f"{why}. Nobody is released until it answers.")
        return _judgement(f"{_why(e, places)}; the table gives no answer" for e in accused)

    def _unless_observing(self, reason: str) -> Judgement:
        try:
            observing = self._table is not None and self._table.mode() is Mode.OBSERVE
        except TableUnreadableError:
            observing = False
        return Judgement("go") if observing else Judgement("hold", (reason,))


def _subjects_of(seat: Place | QuarantineEntry) -> list[str]:
    instance = [instance_subject(seat.instance_id)] if seat.instance_id else []
    return instance + ([gpu_subject(seat.gpu_uuid)] if seat.gpu_uuid else [])


def _judgement(reasons: Iterable[str]) -> Judgement:
    unique = tuple(dict.fromkeys(reasons))
    return Judgement("hold", unique) if unique else Judgement("go")


def _why(entry: QuarantineEntry, places: tuple[Place, ...]) -> str:
    ranks = [p.rank for p in places if covers(entry, p)]
    since = f"(alarm {entry.delivery_key[:8]} of {entry.time})"
    if entry.instance_id is None and entry.gpu_uuid is None:
        return f"the whole job is held {since}"
    subject = entry.instance_id or entry.gpu_uuid
    return f"rank {shorten(ranks)} stands on quarantined {subject} {since}"


def shorten(ranks: Iterable[int]) -> str:
    """The first eight ranks, for a sentence."""
    listed = list(ranks)
    shown = ", ".join(map(str, listed[:8]))
    return shown if len(listed) <= 8 else f"{shown} and {len(listed) - 8} more"
