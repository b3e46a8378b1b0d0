"""The reporter of a real job: first the disk, then the log, then AWS.

In: what the guard calls. Out: spool, log line, termination log, `quarantine.json`; events and metrics through
`report.publisher`, what is optional through `report.beside`. Nothing here raises into training, and no file
system or network that hangs keeps an alarm from its other ways out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from .._patience import FILES_S, within
from ..clients import ClientFactory, boto3_client
from ..contract import (
    Alarm,
    DetailType,
    Env,
    NodeRegistration,
    Place,
    delivery_key,
    encode,
    to_plain,
)
from ..log_line import log_line
from ..quarantine import add_to_record, entries_of
from ..settings import AgentSettings
from ..spool import spool_of
from .beside import Beside, Sink
from .event_bus import Event, alarm_event
from .metrics import MetricState
from .otlp import Otlp
from .pod_event import PodEvents
from .publisher import Publisher
from .types import StepChecks

FLUSH_S = 10.0  # at most, before a rank goes on to leave
_TERMINATION_LOG_BYTES = 4096  # Kubernetes cuts after that


def choose_publishers(places: Sequence[Place]) -> frozenset[int]:
    """Ranks that send alarms: the lowest, and the lowest on another node in case the first's is dying.

    On one node its second rank: the first may be killed while it sends.
    """
    by_rank = sorted(places, key=lambda p: p.rank)
    home = by_rank[0].node
    others = sorted(by_rank[1:], key=lambda p: (p.node == home, p.rank))
    return frozenset({by_rank[0].rank, *(p.rank for p in others[:1])})


def job_reporter(
    settings: AgentSettings,
    rank: int,
    *,
    publishers: Collection[int] | None = None,
    client: ClientFactory = boto3_client,
    metrics_every_s: float = 60.0,
) -> JobReporter:
    """Make the reporter of this rank.

    Parameters
    ----------
    settings: of this process.
    rank: global rank.
    publishers: ranks that send alarms; by default `choose_publishers` of the ranks that `attach` guards
        together. Duplicates are dropped by delivery key. The lowest of those ranks alone keeps
        `quarantine.json` and the metrics; every rank spools and logs.
    client: makes boto3-like clients, by service name.
    metrics_every_s: interval of the metrics, seconds.
    """
    return JobReporter(settings, rank, publishers, client, metrics_every_s)


class JobReporter:
    """See `report.types.GroupReporter` for what each method promises."""

    def __init__(
        self,
        settings: AgentSettings,
        rank: int,
        publishers: Collection[int] | None,
        client: ClientFactory,
        metrics_every_s: float,
    ) -> None:
        self._settings = settings
        self._rank = rank
        self._publishers = publishers
        self._metrics_every_s = metrics_every_s
        # Until `among` says who the others are.
        self._publishes = _sends_by_default(rank) if publishers is None else rank in publishers
        self._leads = rank == 0
        self._metrics: MetricState | None = None
        self._spool = spool_of(settings)
        self._publisher: Publisher | None = None
        if settings.event_bus:
            self._publisher = Publisher(
                settings.event_bus,
                client,
                metrics_every_s=metrics_every_s,
                on_sent=self._mark_sent,
            )
            self._measure()
            if self._publishes or os.environ.get(Env.LOCAL_RANK, "0") == "0":  # who registers a node
                self._publisher.prepare()
        self._beside = Beside(self._sinks(), metrics_every_s)

    def among(self, places: Sequence[Place]) -> None:
        """Take the part of this rank in its group: rank 0 may be in none, or in another one."""
        leads, publishes = self._rank == min(p.rank for p in places), self._publishes
        if self._publishers is None:
            publishes = self._rank in choose_publishers(places)
        if (leads, publishes) != (self._leads, self._publishes):
            self._leads, self._publishes = leads, publishes
            self._measure()
            self._beside = Beside(self._sinks(), self._metrics_every_s)  # the one before told nobody yet

    @property
    def dropped(self) -> int:
        """Events that were not sent so far: the queue was full, or all tries failed."""
        return 0 if self._publisher is None else self._publisher.dropped

    def started(self, registration: NodeRegistration | None) -> None:
        """Publish the node's registration, and alarms that an earlier start could not send."""
        if self._publisher is None:
            return
        publisher = self._publisher
        if registration is not None:
            event = Event(DetailType.NODE_REGISTERED, encode(registration))
            self._try("publish the registration", lambda: self._offer(publisher, event))
        if self._publishes:
            self._try("re-send the spool", lambda: self._resend(publisher))

    def progress(self, step: int, checks: StepChecks) -> None:
        """Note an applied step for the metrics."""
        if self._metrics is not None and self._publisher is not None:
            self._metrics.progress(step, checks)
            self._publisher.alive()
        self._beside.progress(step, checks)

    def alarm(self, alarm: Alarm) -> None:
        """Spool, log, termination log, quarantine record; then send and wait at most `FLUSH_S` seconds."""
        key = delivery_key(alarm)
        self._write("spool the alarm", lambda: self._spool.put(alarm))
        log_line("alarm", rank=self._rank, delivery_key=key, alarm=to_plain(alarm))
        self._write("write the termination log", lambda: self._write_termination_log(alarm, key))
        if self._leads:
            self._write("write the record of suspects", lambda: self._quarantine(alarm))
        until = time.monotonic() + FLUSH_S
        self._try("tell the collector and the pods", lambda: self._beside.alarm(alarm))
        if self._publisher is not None:
            publisher = self._publisher
            self._try("send the alarm", lambda: self._send(publisher, alarm))
        self._beside.flush(until - time.monotonic())

    def close(self) -> None:
        """Send the last metrics and end the threads."""
        until = time.monotonic() + FLUSH_S
        self._beside.want()
        if self._publisher is not None:
            self._publisher.want_metrics()
            self._publisher.close(FLUSH_S)
        self._beside.close(until - time.monotonic())

    def _sinks(self) -> list[Sink]:
        settings = self._settings
        sinks: list[Sink] = []
        if settings.otlp_endpoint and self._leads:
            sinks.append(Otlp(settings.otlp_endpoint, settings, lambda: self.dropped))
        if settings.pod_events and self._publishes:
            sinks.append(PodEvents(settings))
        return sinks

    def _measure(self) -> None:
        if self._leads and self._metrics is None and self._publisher is not None:
            self._metrics = MetricState(self._settings.cluster, self._settings.job.name)
            self._publisher.measure(self._metrics)

    def _send(self, publisher: Publisher, alarm: Alarm) -> None:
        if self._publishes:
            self._offer(publisher, alarm_event(alarm))
        if self._metrics is not None:
            self._metrics.alarm(alarm)
            publisher.want_metrics()
        publisher.flush(FLUSH_S)

    def _resend(self, publisher: Publisher) -> None:
        for alarm in self._spool.unsent():
            self._offer(publisher, alarm_event(alarm))

    def _offer(self, publisher: Publisher, event: Event) -> None:
        if event.fits:
            publisher.offer(event)
        else:
            log_line(
                "warning", message=f"{event.detail_type.value} is too large for an event and was not sent."
            )

    def _mark_sent(self, event: Event) -> None:
        if event.key is not None:
            key = event.key
            self._try("mark an alarm as sent", lambda: self._spool.mark_sent(key))

    def _quarantine(self, alarm: Alarm) -> None:
        if self._settings.shared_dir is not None:
            add_to_record(self._settings.shared_dir, entries_of(alarm))

    def _write_termination_log(self, alarm: Alarm, key: str) -> None:
        if self._settings.termination_log is None:
            return
        ranks = ", ".join(map(str, alarm.named_ranks)) or "nobody"
        resume = f"step {alarm.resume_from.step}" if alarm.resume_from else "no checkpoint"
        text = (
            f"SDC alarm {key}: check {alarm.check.value} at step {alarm.step} of job {alarm.job.name}, "
            f"named ranks: {ranks}; suspect window {alarm.suspect_window[0]} to {alarm.suspect_window[1]}; "
            f"resume from {resume}.\n"
        )
        # Written in place: Kubernetes mounts this very file, a renamed one would not be seen.
        with self._settings.termination_log.open("wb") as f:
            f.write(text.encode()[:_TERMINATION_LOG_BYTES])

    def _write(self, what: str, act: Callable[[], object]) -> None:
        self._try(what, lambda: within(FILES_S, act))

    def _try(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - what fails must not keep the alarm from its other ways out
            log_line("warning", rank=self._rank, message=f"Could not {what}: {type(e).__name__}: {e}")


def _sends_by_default(rank: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Rank 0, and the first rank of another node; where there is one node only, its second rank."""
    sizes = [environ.get(name, "1") for name in (Env.LOCAL_WORLD_SIZE, Env.WORLD_SIZE)]
    on_a_node, in_all = (int(size) if size.isdecimal() else 1 for size in sizes)
    return rank in (0, on_a_node if on_a_node < in_all else 1)
