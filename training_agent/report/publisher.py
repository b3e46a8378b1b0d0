"""The thread that talks to AWS, so that training never waits for a network.

In: events and metric state from `report.job`. Out: `report.event_bus` and `PutMetricData`. A bounded queue,
short timeouts, a few tries with growing pauses, one warning, and no exception that leaves this file.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..clients import ClientFactory
from ..contract import METRIC_NAMESPACE
from ..warn_once import warn_once
from . import event_bus
from .event_bus import Event
from .metrics import MetricState

QUEUE_LENGTH = 256
TRIES = 3  # of an alarm, which then waits in the spool
TRIES_OF_OTHERS = 10  # registrations are not spooled, and without one a person must locate the node
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0


@dataclass(slots=True)
class _Waiting:
    event: Event
    tries: int = 0
    not_before: float = 0.0  # time.monotonic()


class Publisher:
    """Sends events, and metrics every `metrics_every_s`, until closed.

    Parameters
    ----------
    bus: name of the event bus.
    client: makes boto3-like clients; called in the thread, so that boto3 is imported there.
    metrics: state to publish from; None on ranks that publish none.
    on_sent: called in the thread with each event that the bus took.
    """

    def __init__(
        self,
        bus: str,
        client: ClientFactory,
        *,
        metrics: MetricState | None = None,
        metrics_every_s: float = 60.0,
        on_sent: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._bus = bus
        self._client = client
        self._metrics = metrics
        self._metrics_every_s = metrics_every_s
        self._on_sent = on_sent
        self._clients: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._busy = False
        self._metrics_wanted = False
        self._metrics_due = 0.0
        self._closing = False
        self._dropped = 0
        self._warned = False
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Events that were not sent: the queue was full, or all tries failed."""
        return self._dropped

    def prepare(self) -> None:
        """Start the thread, which imports boto3 and makes clients: while the model is built, not in a step.

        Both are seconds of Python, for which the training thread would wait at every lock that it gives up.
        """
        with self._changed:
            self._wake()

    def measure(self, metrics: MetricState) -> None:
        """Publish these from now on."""
        with self._changed:
            self._metrics = metrics

    def offer(self, event: Event) -> None:
        """Queue an event; when the queue is full, the oldest that is no alarm gives way, else the new one."""
        with self._changed:
            if len(self._queue) >= QUEUE_LENGTH:
                self._dropped += 1
                victim = next((w for w in self._queue if w.event.key is None), None)
                if victim is None:
                    return
                self._queue.remove(victim)
            self._queue.append(_Waiting(event))
            if event.key is not None:
                for waiting in self._queue:  # with an alarm a registration that still waits goes at once
                    waiting.not_before = 0.0
            self._wake()

    def want_metrics(self) -> None:
        """Publish metrics now rather than at the next interval."""
        with self._changed:
            if self._metrics is not None:
                self._metrics_wanted = True
                self._wake()

    def alive(self) -> None:
        """Start the thread when there are metrics to publish; cheap enough to be called after each step."""
        if self._thread is None and self._metrics is not None:
            with self._changed:
                self._wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until alarms and metrics were sent or given up; False when `timeout_s` ended first."""
        with self._changed:
            if self._thread is None:  # nothing was ever offered, or nobody is there to send it
                return not self._open_work()
            return self._changed.wait_for(lambda: not self._open_work(), timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush, then end the thread."""
        self.flush(timeout_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _open_work(self) -> bool:
        return self._busy or self._metrics_wanted or any(w.event.key for w in self._queue)

    def _wake(self) -> None:
        if self._thread is None and not self._closing:
            thread = threading.Thread(target=self._run, name="sdc-publisher", daemon=True)
            try:
                thread.start()
            except RuntimeError as e:  # no more threads for this process: training must not end by that
                self._warn(f"no thread: {e}", e)
                return
            self._thread = thread
        self._changed.notify_all()

    def _run(self) -> None:
        with suppress(Exception):  # said when something is to be sent
            self._get("events")
            if self._metrics is not None:
                self._get("cloudwatch")
        while True:
            with self._changed:
                while not self._ready():
                    if self._closing:
                        return
                    self._changed.wait(self._pause_s())
                due = self._take()
                metrics = self._metrics_wanted or self._interval_over()
                self._metrics_wanted = False
                self._busy = True
            try:
                for batch in event_bus.batches(due, lambda waiting: waiting.event):
                    self._send(batch)
                if metrics and self._metrics is not None:
                    self._send_metrics(self._metrics)
            except Exception as e:  # noqa: BLE001 - a dead thread would lose the alarms to come
                self._warn(f"{type(e).__name__}: {e}", e)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _ready(self) -> bool:
        now = time.monotonic()
        waiting = any(w.not_before <= now for w in self._queue)
        return self._metrics_wanted or waiting or self._interval_over()

    def _interval_over(self) -> bool:
        """A closed publisher sends what waits and ends, however short its interval is."""
        return self._metrics is not None and not self._closing and time.monotonic() >= self._metrics_due

    def _pause_s(self) -> float:
        now = time.monotonic()
        moments = [w.not_before for w in self._queue]
        if self._metrics is not None:
            moments.append(self._metrics_due)
        return max(min(moments, default=now + 60.0) - now, 0.01)

    def _take(self) -> list[_Waiting]:
        now = time.monotonic()
        due = [w for w in self._queue if w.not_before <= now]
        self._queue = deque(w for w in self._queue if w.not_before > now)
        return due

    def _send(self, batch: list[_Waiting]) -> None:
        cause: Exception | str = "refused"
        try:
            refused, why = event_bus.put(self._get("events"), self._bus, [w.event for w in batch])
        except Exception as e:  # noqa: BLE001 - nothing that AWS or boto3 does may reach training
            refused, why, cause = frozenset(range(len(batch))), f"{type(e).__name__}: {e}", e
        for index, waiting in enumerate(batch):
            if index in refused:
                self._again(waiting, why, cause)
            else:
                self._on_sent(waiting.event)

    def _again(self, waiting: _Waiting, why: str, cause: Exception | str) -> None:
        waiting.tries += 1
        with self._changed:
            if waiting.tries < (TRIES if waiting.event.key else TRIES_OF_OTHERS):
                pause_s = min(FIRST_PAUSE_S * 2 ** (waiting.tries - 1), LONGEST_PAUSE_S)
                waiting.not_before = time.monotonic() + pause_s
                self._queue.append(waiting)
                return
            self._dropped += 1
        self._warn(f"event bus {self._bus}: {why}", cause)

    def _send_metrics(self, metrics: MetricState) -> None:
        self._metrics_due = time.monotonic() + self._metrics_every_s
        data = metrics.take(self._dropped)
        if not data:
            return
        try:
            self._get("cloudwatch").put_metric_data(Namespace=METRIC_NAMESPACE, MetricData=data)
        except Exception as e:  # noqa: BLE001 - as above
            self._warn(f"metrics: {type(e).__name__}: {e}", e)

    def _get(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._client(service)
        return self._clients[service]

    def _warn(self, why: str, cause: Exception | str) -> None:
        if not self._warned:
            self._warned = True
            warn_once(
                cause,
                f"Not everything reaches AWS ({why}). Alarms stay in the spool and the next start "
                "sends them; training goes on. Check the pod's credentials, region and network.",
            )
