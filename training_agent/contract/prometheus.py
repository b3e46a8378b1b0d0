"""What the agent's metrics are called in Prometheus, after an OpenTelemetry collector has translated them.

In: `Metric`. Out: names. Counters are sums that only grow within one start; a collector appends `_total` to
them. Gauges keep their names: their units are in braces or already the name's end, so nothing is appended
(source: OpenTelemetry's "Prometheus and OpenMetrics Compatibility"; unit "1" would become `_ratio`).
"""

from __future__ import annotations

from .names import Metric

COUNTERS = (
    Metric.NONFINITE_GRAD,
    Metric.REPLAY_MISMATCH,
    Metric.DIVERGENT_TENSORS,
    Metric.REDUCTION_MISMATCH,
    Metric.AUDITS_DONE,
    Metric.AUDITS_SKIPPED,
    Metric.LAYER_AUDITS_DONE,
    Metric.LAYER_AUDITS_SKIPPED,
    Metric.DROPPED_MESSAGES,
)
CLUSTER_LABEL, JOB_LABEL = "cluster", "sdc_job"  # of each series; `job` is Prometheus' own


def prometheus_name(metric: Metric) -> str:
    """Its name in a query."""
    return metric.value + "_total" * (metric in COUNTERS)
