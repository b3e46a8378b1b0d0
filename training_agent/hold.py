"""Keeps a restarted job off suspect hardware: the first thing that a training script calls, before torch.

In: the settings, `quarantine.json` and the quarantine table. Out: a return when all ranks may join, after any
time on hold; or `RefusedNodeError`. Next: `import torch`, the process group, `training_agent.attach`.

An alarm ends the job, and its operator restarts the processes in the same pods on the same node within
seconds, long before anybody approves a replacement; refusing by exit code would burn its restart budget. So
all ranks wait alike, until the pod is evicted, the quarantine is released, or `hold_timeout` ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from . import exit_codes
from .clients import ClientFactory, boto3_client
from .contract import (
    ContractError,
    Mode,
    Place,
    QuarantineEntry,
    gpu_subject,
    instance_subject,
    job_subject,
)
from .errors import ConfigurationError, RefusedNodeError
from .log_line import log_line
from .placement_files import Judgement, PlacementFiles
from .quarantine import covers, read_record
from .quarantine_table import QuarantineTable, Row, TableUnreadableError
from .settings import AgentSettings, Worker

PLACEMENT_TIMEOUT = timedelta(minutes=15)  # for the other ranks' files; torchrun starts workers together
_LOOK_S = 0.1  # at files
_GRACE_S = 30.0  # for rank 0's last word after the timeout


@dataclass(frozen=True, slots=True)
class HoldResult:
    """What the hold did: whether this start had to wait, for how long, and why at last."""

    held: bool
    waited: timedelta
    reasons: tuple[str, ...] = ()


def hold_while_quarantined(
    settings: AgentSettings,
    *,
    worker: Worker | None = None,
    poll: timedelta = timedelta(seconds=2),
    heartbeat: timedelta = timedelta(seconds=5),
    client: ClientFactory = boto3_client,
) -> HoldResult:
    """Return when this start of the job may compute; never imports torch, and boto3 only to ask the table.

    Parameters
    ----------
    settings: of this process; without `shared_dir` ranks cannot know of each other, and nobody holds.
    worker: rank, local rank and world size; by default torchrun's environment variables.
    poll: how often rank 0 reads the record and the table while the job is on hold.
    heartbeat: how often each rank prints one JSON line `{"sdc": "holding", ...}`.
    client: makes the DynamoDB client.

    Raises
    ------
    RefusedNodeError: `hold_timeout` ended (exit code 5).
    ConfigurationError: ranks of this attempt never wrote their place (exit code 4).
    """
    exit_codes.install()
    worker = worker or Worker.from_env()
    if settings.shared_dir is None:
        log_line(
            "warning", message="SDC_SHARED_DIR is not set: a restarted job cannot be kept off a suspect node."
        )
        return HoldResult(False, timedelta(0))
    place = settings.place(worker.rank, worker.local_rank)
    files = PlacementFiles(settings.shared_dir, settings.job.attempt, place, worker.world_size)
    rank = _Rank(settings, place, files, heartbeat)
    if place.rank == 0:
        return rank.lead(_Judge(settings, client), poll)
    return rank.follow()


class _Rank:
    """One rank's waiting: for the others' files, then for the word."""

    def __init__(
        self, settings: AgentSettings, place: Place, files: PlacementFiles, heartbeat: timedelta
    ) -> None:
        self._settings = settings
        self._place = place
        self._files = files
        self._heartbeat_s = heartbeat.total_seconds()
        self._began = time.monotonic()
        self._last_line = self._began
        self._reasons: tuple[str, ...] = ()

    def lead(self, judge: _Judge, poll: timedelta) -> HoldResult:
        """Rank 0: judge all places again and again, and tell the others."""
        self._wait_for_places()
        places = self._files.places()
        while True:
            judgement = judge.judge(places)
            if judgement.word == "hold" and self._timed_out():
                judgement = Judgement("refuse", judgement.reasons)
            self._files.say(judgement)
            done = self._obey(judgement)
            if done is not None:
                return done
            time.sleep(poll.total_seconds())

    def follow(self) -> HoldResult:
        """Return at rank 0's word; time out alone when rank 0 is gone."""
        self._wait_for_places()
        while True:
            judgement = self._files.heard() or Judgement(
                "hold", self._reasons or ("no word from rank 0 yet",)
            )
            if judgement.word == "hold" and self._timed_out(_GRACE_S):
                judgement = Judgement("refuse", judgement.reasons)
            done = self._obey(judgement)
            if done is not None:
                return done
            self._files.missing()  # writes this rank's file again, should rank 0 have restarted
            time.sleep(_LOOK_S)

    def _wait_for_places(self) -> None:
        while missing := self._files.missing():
            if self._waited_s() > PLACEMENT_TIMEOUT.total_seconds():
                raise ConfigurationError(
                    f"Ranks {_short(missing)} of attempt {self._settings.job.attempt} wrote no place to "
                    f"{self._files.folder} within {PLACEMENT_TIMEOUT}. Check that SDC_SHARED_DIR is the same "
                    "shared folder, and SDC_ATTEMPT the same number, in all pods."
                )
            self._line("waiting", f"for the places of ranks {_short(missing)}")
            time.sleep(_LOOK_S)

    def _obey(self, judgement: Judgement) -> HoldResult | None:
        if judgement.word == "go":
            held = bool(self._reasons)
            if held:
                log_line("released", rank=self._place.rank, waited_s=round(self._waited_s(), 1))
            return HoldResult(held, timedelta(seconds=self._waited_s()), self._reasons)
        if judgement.word == "refuse":
            raise RefusedNodeError(
                f"Held for {timedelta(seconds=round(self._waited_s()))} and not released: "
                f"{'; '.join(judgement.reasons)}. Decide on the incident (its mail has the link), or move the job "
                "to other nodes; SDC_HOLD_TIMEOUT_SECONDS sets how long a start waits."
            )
        first = judgement.reasons != self._reasons
        self._reasons = judgement.reasons
        self._line("holding", "; ".join(judgement.reasons), at_once=first)
        return None

    def _line(self, kind: str, why: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._last_line >= self._heartbeat_s:
            self._last_line = now
            place = self._place
            log_line(
                kind,
                rank=place.rank,
                node=place.node,
                attempt=self._settings.job.attempt,
                waited_s=round(self._waited_s(), 1),
                why=why,
            )

    def _waited_s(self) -> float:
        return time.monotonic() - self._began

    def _timed_out(self, grace_s: float = 0.0) -> bool:
        return self._waited_s() >= self._settings.hold_timeout.total_seconds() + grace_s


class _Judge:
    """Rank 0's judgement over all places; unknown is not healthy, except where nothing accuses anybody."""

    def __init__(self, settings: AgentSettings, client: ClientFactory) -> None:
        self._settings = settings
        self._table = (
            QuarantineTable(settings.quarantine_table, client) if settings.quarantine_table else None
        )
        self._warned = False

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
            return _judgement(_why(e, places) + "; no quarantine table is configured" for e in accused)
        try:
            if self._table.mode() is Mode.OBSERVE:
                return Judgement("go")
            rows = self._table.rows(self._subjects(places, accused))
        except TableUnreadableError as e:
            return self._without_table(accused, places, str(e))
        reasons = [f"{r.subject} is quarantined" for r in rows.values() if r.held]
        free = [e for e in accused if self._is_free(e, rows)]
        reasons += [_why(e, places) for e in accused if e not in free]
        return _judgement(reasons)

    def _subjects(self, places: tuple[Place, ...], accused: tuple[QuarantineEntry, ...]) -> list[str]:
        subjects = [job_subject(self._settings.job.uid)]
        for seat in (*places, *accused):
            if seat.instance_id:
                subjects.append(instance_subject(seat.instance_id))
            if seat.gpu_uuid:
                subjects.append(gpu_subject(seat.gpu_uuid))
        return subjects

    def _is_free(self, entry: QuarantineEntry, rows: dict[str, Row]) -> bool:
        own = []
        if entry.instance_id:
            own.append(instance_subject(entry.instance_id))
        if entry.gpu_uuid:
            own.append(gpu_subject(entry.gpu_uuid))
        found = [rows[s] for s in own if s in rows]
        # An alarm that names nobody is one incident of the job: its row then speaks for the places involved.
        job = rows.get(job_subject(self._settings.job.uid))
        found = found or ([job] if job else [])
        return bool(found) and not any(r.held for r in found) and any(r.releases(entry) for r in found)

    def _without_table(
        self, accused: tuple[QuarantineEntry, ...], places: tuple[Place, ...], why: str
    ) -> Judgement:
        if not self._warned:
            self._warned = True
            log_line("warning", message=f"{why}. Nobody is released until it answers.")
        return _judgement(f"{_why(e, places)}; the table gives no answer" for e in accused)

    def _unless_observing(self, reason: str) -> Judgement:
        try:
            observing = self._table is not None and self._table.mode() is Mode.OBSERVE
        except TableUnreadableError:
            observing = False
        return Judgement("go") if observing else Judgement("hold", (reason,))


def _judgement(reasons: Iterable[str]) -> Judgement:
    unique = tuple(dict.fromkeys(reasons))
    return Judgement("hold", unique) if unique else Judgement("go")


def _why(entry: QuarantineEntry, places: tuple[Place, ...]) -> str:
    ranks = [p.rank for p in places if covers(entry, p)]
    since = f"(alarm {entry.delivery_key[:8]} of {entry.time})"
    if entry.instance_id is None and entry.gpu_uuid is None:
        return f"the whole job is held {since}"
    subject = entry.instance_id or entry.gpu_uuid
    return f"rank {_short(ranks)} stands on quarantined {subject} {since}"


def _short(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    shown = ", ".join(map(str, listed[:8]))
    return shown if len(listed) <= 8 else f"{shown} and {len(listed) - 8} more"
