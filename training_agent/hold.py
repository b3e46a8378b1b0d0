"""Keeps a restarted job off suspect hardware: the first thing that a training script calls, before torch.

In: the settings, `quarantine.json` and the quarantine table. Out: a return when all ranks may join, after any
time on hold; or `RefusedNodeError`. Next: `import torch`, the process group, `training_agent.attach`.

An alarm ends the job, and its operator restarts the processes in the same pods on the same node within
seconds, long before anybody approves a replacement; refusing by exit code would burn its restart budget. So
all ranks wait alike, until the pod is evicted, the quarantine is released, or `hold_timeout` ends.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from . import exit_codes, restarts
from .clients import ClientFactory, boto3_client
from .contract import Place
from .errors import ConfigurationError, RefusedNodeError, ReproducibleError
from .hold_judge import Judge, shorten
from .hold_lines import HoldLines
from .log_line import log_line
from .placement_files import Judgement, PlacementFiles
from .report.resend import Resender
from .settings import AgentSettings, Worker
from .warn_once import warn_once

PLACEMENT_TIMEOUT = timedelta(minutes=15)  # for the other ranks' files; torchrun starts workers together
_LOOK_S = 0.1  # at files
_RESEND_S = 30.0  # between tries to send what the spool still has
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
    heartbeat: until the second JSON line `{"sdc": "holding", ...}` of each node's first rank; then twice as
        long from line to line, up to five minutes. The first one says why and what to do next.
    client: makes the DynamoDB client.

    Raises
    ------
    RefusedNodeError: `hold_timeout` ended (exit code 5).
    ReproducibleError: the same step failed on different nodes over several starts (exit code 6).
    ConfigurationError: ranks of this attempt never wrote their place, or nobody can write (exit code 4).
    """
    exit_codes.install()
    worker = worker or Worker.from_env()
    if settings.shared_dir is None:
        log_line(
            "warning", message="SDC_SHARED_DIR is not set: a restarted job cannot be kept off a suspect node."
        )
        return HoldResult(False, timedelta(0))
    place = settings.place(worker.rank, worker.local_rank)
    try:
        files = PlacementFiles(settings.shared_dir, settings.job.attempt, place, worker.world_size)
        rank = _Rank(settings, place, files, heartbeat)
        if place.rank == 0:
            return rank.lead(Judge(settings, client), Resender(settings, client), poll)
        return rank.follow()
    except OSError as e:
        raise ConfigurationError(
            f"The shared folder cannot be used: {e}. Mount it writable in all pods; SDC_SHARED_DIR names it."
        ) from e


class _Rank:
    """One rank's waiting: for the others' files, then for the word."""

    def __init__(
        self, settings: AgentSettings, place: Place, files: PlacementFiles, heartbeat: timedelta
    ) -> None:
        self._settings = settings
        self._place = place
        self._files = files
        self._began = time.monotonic()
        self._lines = HoldLines(place, settings.job.attempt, heartbeat.total_seconds())
        self._reasons: tuple[str, ...] = ()

    def lead(self, judge: Judge, resender: Resender, poll: timedelta) -> HoldResult:
        """Rank 0: judge all places again and again, and tell the others."""
        self._wait_for_places()
        places = self._files.places()
        self._stop_if_reproducible()
        resend_at = 0.0
        while True:
            judgement = judge.judge(places)
            if judgement.word == "hold" and time.monotonic() >= resend_at:
                resend_at = time.monotonic() + _RESEND_S
                self._resend(resender)
            if judgement.word == "hold" and self._timed_out():
                judgement = Judgement("refuse", judgement.reasons)
            self._files.say(judgement)
            done = self._obey(judgement)
            if done is not None:
                return done
            time.sleep(poll.total_seconds())

    def _stop_if_reproducible(self) -> None:
        assert self._settings.shared_dir is not None
        found = restarts.look(self._settings.shared_dir)
        if found is not None:
            stop = Judgement("stop", (found.text,))
            self._files.say(stop)
            self._obey(stop)

    def follow(self) -> HoldResult:
        """Return at rank 0's word; time out alone when rank 0 is gone."""
        self._wait_for_places()
        while True:
            judgement = self._files.heard()
            if self._timed_out(_GRACE_S) and (judgement is None or judgement.word == "hold"):
                judgement = Judgement("refuse", self._reasons or ("rank 0 gave no word",))
            if judgement is None:
                self._lines.say("waiting", "for rank 0's word")
            else:
                done = self._obey(judgement)
                if done is not None:
                    return done
            self._files.missing()  # writes this rank's file again, should rank 0 have restarted
            time.sleep(_LOOK_S)

    def _resend(self, resender: Resender) -> None:
        why = resender.try_once()
        if why is not None:
            kind = why.partition(":")[0]
            warn_once(kind, f"The alarm that holds this job has not reached the event bus: {why}")

    def _wait_for_places(self) -> None:
        while missing := self._files.missing():
            if self._waited_s() > PLACEMENT_TIMEOUT.total_seconds():
                raise ConfigurationError(
                    f"Ranks {shorten(missing)} of attempt {self._settings.job.attempt} wrote no place to "
                    f"{self._files.folder} within {PLACEMENT_TIMEOUT}. Check that SDC_SHARED_DIR is the same "
                    "shared folder, and SDC_ATTEMPT the same number, in all pods."
                )
            self._lines.say("waiting", f"for the places of ranks {shorten(missing)}")
            time.sleep(_LOOK_S)

    def _obey(self, judgement: Judgement) -> HoldResult | None:
        if judgement.word == "go":
            held = bool(self._reasons)
            if held:
                self._lines.released()
            return HoldResult(held, timedelta(seconds=self._waited_s()), self._reasons)
        if judgement.word == "stop":
            raise ReproducibleError(" ".join(judgement.reasons))
        if judgement.word == "refuse":
            raise RefusedNodeError(
                f"Held for {timedelta(seconds=round(self._waited_s()))} and not released: "
                f"{'; '.join(judgement.reasons)}. {self._next()}; SDC_HOLD_TIMEOUT_SECONDS sets how long a "
                "start waits."
            )
        self._reasons = judgement.reasons
        self._lines.say("holding", "; ".join(judgement.reasons), next=self._next())
        return None

    def _next(self) -> str:
        """Who can let the job go: the incident's answer, or where no pipeline has one a person alone."""
        if self._settings.quarantine_table is not None:
            return "Decide on the incident (its mail has the link), or move the job to other nodes"
        return (
            "No pipeline decides on it (SDC_QUARANTINE_TABLE is not set): look into the alarm, then let it "
            f"go by `sdc clear --shared-dir {self._settings.shared_dir} --all --reason ...` (without --all "
            "it lists what is held), or move the job to other nodes"
        )

    def _waited_s(self) -> float:
        return time.monotonic() - self._began

    def _timed_out(self, grace_s: float = 0.0) -> bool:
        return self._waited_s() >= self._settings.hold_timeout.total_seconds() + grace_s
