"""The agent's metrics for an OpenTelemetry collector, by OTLP/HTTP in JSON; HyperPod's add-on runs one.

In: progress and alarm, on rank 0. Out: one POST per interval to `<endpoint>/v1/metrics`. Counts are
cumulative over this start, as Prometheus stores want them, so that a lost POST loses nothing. The standard
library is enough: no protobuf, no second exporter thread in the training image. Next: `report.beside`.

Source: OTLP 1.x, JSON encoding (64-bit integers are strings) and its answer's `partialSuccess`.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from ..contract import Alarm, Metric
from ..contract.prometheus import CLUSTER_LABEL, COUNTERS, JOB_LABEL
from ..settings import AgentSettings
from .metrics import Overhead, counts
from .types import StepChecks

TIMEOUT_S = 3.0  # of each operation on the socket
_CUMULATIVE = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE
_ANSWER_BYTES = 64 * 1024
_COUNT = "{count}"  # in braces: a unit of "1" would become a part of the gauge's name in Prometheus


class Otlp:
    """See `report.beside.Sink`.

    Parameters
    ----------
    endpoint: base address of the collector's OTLP/HTTP receiver, such as `http://collector:4318`.
    settings: name the cluster, job and node, which become attributes of the resource.
    dropped: how many events were not sent so far.
    """

    name = "the OpenTelemetry collector"

    def __init__(self, endpoint: str, settings: AgentSettings, dropped: Callable[[], int]) -> None:
        self._url = endpoint.rstrip("/") + "/v1/metrics"
        self._resource = {
            "service.name": "training-sdc-agent",
            "k8s.node.name": settings.node,
            "k8s.namespace.name": settings.job.namespace,
            "k8s.pod.name": settings.pod_name or "",
            "sdc.job.uid": settings.job.uid,
            "sdc.attempt": str(settings.job.attempt),
        }
        self._labels = {CLUSTER_LABEL: settings.cluster, JOB_LABEL: settings.job.name}
        self._dropped = dropped
        self._lock = threading.Lock()
        self._began_ns = time.time_ns()
        self._step: int | None = None
        self._last_pass = 0
        self._audit_every: int | None = None
        self._sums = dict.fromkeys(COUNTERS, 0)
        self._overhead = Overhead()

    def progress(self, step: int, checks: StepChecks) -> None:
        """Note an applied step."""
        with self._lock:
            self._step = step
            self._last_pass = checks.last_audit_pass or 0
            self._sums[Metric.AUDITS_DONE] += int(checks.audited)
            self._sums[Metric.AUDITS_SKIPPED] = checks.audits_skipped
            self._sums[Metric.LAYER_AUDITS_DONE] += int(checks.layer_audited or 0)
            self._sums[Metric.LAYER_AUDITS_SKIPPED] = checks.layer_audits_skipped
            self._audit_every = checks.audit_every
            self._overhead.add(checks.seconds)

    def alarm(self, alarm: Alarm) -> None:
        """Note an alarm."""
        with self._lock:
            for metric, count in counts(alarm).items():
                self._sums[metric] += count

    def send(self) -> None:
        """POST what stands now.

        Raises
        ------
        OSError: not reached, or refused (`urllib.error.HTTPError`).
        ValueError: the collector took only a part.
        """
        with self._lock:
            sums = {**self._sums, Metric.DROPPED_MESSAGES: self._dropped()}
            gauges: dict[Metric, float] = {Metric.HEARTBEAT: 1}
            gauges[Metric.OVERHEAD_PERCENT] = self._overhead.take()
            if self._audit_every is not None:
                gauges[Metric.AUDIT_EVERY_STEPS] = self._audit_every
            if self._step is not None:
                gauges[Metric.LAST_PASS_AGE_STEPS] = self._step - self._last_pass
        body = encode(self._resource, self._labels, sums, gauges, self._began_ns, time.time_ns())
        request = urllib.request.Request(  # noqa: S310 - the settings accept http and https only
            self._url, body, {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            said = answer.read(_ANSWER_BYTES)
        rejected = _rejected(said)
        if rejected:
            raise ValueError(f"{rejected} data points were rejected: {said[:200]!r}")


def encode(
    resource: Mapping[str, str],
    labels: Mapping[str, str],
    sums: Mapping[Metric, int],
    gauges: Mapping[Metric, float],
    began_ns: int,
    now_ns: int,
) -> bytes:
    """An ExportMetricsServiceRequest in OTLP's JSON; times are nanoseconds since 1970.

    The resource says who speaks; `labels` stand at each data point, where Prometheus makes labels of them.
    """
    point = {"timeUnixNano": str(now_ns), "attributes": _attributes(labels)}
    metrics: list[dict[str, Any]] = [
        {
            "name": metric.value,
            "unit": _COUNT,
            "sum": {
                "aggregationTemporality": _CUMULATIVE,
                "isMonotonic": True,
                "dataPoints": [{"startTimeUnixNano": str(began_ns), **point, "asInt": str(value)}],
            },
        }
        for metric, value in sums.items()
    ]
    metrics += [
        {
            "name": metric.value,
            "unit": "%" if metric is Metric.OVERHEAD_PERCENT else _COUNT,
            "gauge": {"dataPoints": [{**point, "asDouble": float(value)}]},
        }
        for metric, value in gauges.items()
    ]
    scope = {"scope": {"name": "training_agent"}, "metrics": metrics}
    request = {
        "resourceMetrics": [{"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scope]}]
    }
    return json.dumps(request, separators=(",", ":")).encode()


def _attributes(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": k, "value": {"stringValue": v}} for k, v in values.items() if v]


def _rejected(answer: bytes) -> int:
    """Data points that the collector did not take; an answer that is no JSON says nothing."""
    try:
        return int(json.loads(answer or b"{}").get("partialSuccess", {}).get("rejectedDataPoints", 0))
    except (ValueError, TypeError, AttributeError):
        return 0
