"""The Grafana dashboard for HyperPod's observability add-on; `python -m infra.grafana` writes its JSON.

In: the names of `training_agent.contract.prometheus` and of DCGM's exporter. Out: `training-sdc.json`, to be
imported into the add-on's Grafana; a test fails when it is stale. docs/operate.md says what to look for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambdas.domain.telemetry import Measure
from training_agent.contract import Metric
from training_agent.contract.prometheus import CLUSTER_LABEL, JOB_LABEL, prometheus_name

FILE = Path(__file__).parent / "training-sdc.json"
SCHEMA_VERSION = 39  # of Grafana 10.4, which Amazon Managed Grafana serves; newer ones migrate it
COLUMNS, HEIGHT = 24, 7
SOURCE = {"type": "prometheus", "uid": "${source}"}
JOBS = f'{{{CLUSTER_LABEL}=~"$cluster",{JOB_LABEL}=~"$job"}}'


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: what it shows, and what to look for in one sentence."""

    title: str
    look: str
    queries: tuple[str, ...]
    width: int = 8
    legend: str = f"{{{{{JOB_LABEL}}}}}"
    unit: str = "short"
    alarming: bool = False  # anything above zero is


def _grown(metric: Metric) -> str:
    """How much a counter grew; a start that begins at zero again is no fall."""
    return f"sum by ({JOB_LABEL}) (increase({prometheus_name(metric)}{JOBS}[$__rate_interval]))"


def _now(metric: Metric, how: str = "max") -> str:
    return f"{how} by ({JOB_LABEL}) ({prometheus_name(metric)}{JOBS})"


ALARMS = (
    Panel("Non-finite gradients", "Above zero: a rank's gradient was NaN or Inf. Read the incident.",
          (_grown(Metric.NONFINITE_GRAD),), 6, alarming=True),
    Panel("Replay mismatches", "Above zero: a micro-batch gave other bits on another GPU. Read the incident.",
          (_grown(Metric.REPLAY_MISMATCH),), 6, alarming=True),
    Panel("Divergent tensors", "Above zero: replicas hold different weights. Resume from before the window.",
          (_grown(Metric.DIVERGENT_TENSORS),), 6, alarming=True),
    Panel("Checksum of a reduction", "Above zero: an all-reduce did not give the mean. Nobody is named.",
          (_grown(Metric.REDUCTION_MISMATCH),), 6, alarming=True),
)  # fmt: skip
LOOKED_AT = (
    Panel("Audits passed", "A steady line. Zero while the job trains: nothing is replayed.",
          (_grown(Metric.AUDITS_DONE),)),
    Panel("Audits skipped", "Should stay zero. As many as are due: replays are off, the job's log says why.",
          (_grown(Metric.AUDITS_SKIPPED),), alarming=True),
    Panel("Layer audits passed", "Where they are on: one block of a step each. Zero elsewhere.",
          (_grown(Metric.LAYER_AUDITS_DONE),)),
    Panel("Layer audits skipped", "Should stay near zero. Growing: a block cannot be compared, see the log.",
          (_grown(Metric.LAYER_AUDITS_SKIPPED),)),
    Panel("Steps since the last passed audit", "Teeth of `audit_every` steps. Climbing: no audit passes.",
          (_now(Metric.LAST_PASS_AGE_STEPS),)),
    Panel("Steps between audits", "Where audits follow the outcome. A drop: a start, or suspicion.",
          (_now(Metric.AUDIT_EVERY_STEPS),)),
    Panel("Heartbeats", "One for each job that trains. A gap: the agent hangs, or the job has ended.",
          (_now(Metric.HEARTBEAT, "count"),)),
    Panel("Overhead", "Time inside replays and weight checks. A jump: another schedule, or a slow peer.",
          (_now(Metric.OVERHEAD_PERCENT),), unit="percent"),
    Panel("Messages dropped", "Should stay zero: what the agent could not send. Alarms are on the disk too.",
          (_grown(Metric.DROPPED_MESSAGES),), alarming=True),
)  # fmt: skip
GPUS = (
    Panel("Xid, last", "An Xid at the time of an alarm supports it; none exonerates nothing.",
          (f"max by (Hostname, gpu) ({Measure.XID.value})",), legend="{{Hostname}} GPU {{gpu}}"),
    Panel("Uncorrected ECC errors", "Memory that reports its faults; silent ones are not among them.",
          (f"max by (Hostname, gpu) ({Measure.ECC_DOUBLE_BIT.value})",), legend="{{Hostname}} GPU {{gpu}}"),
    Panel("GPU temperature", "The accused GPU against its neighbours, before the alarm.",
          (f"max by (Hostname, gpu) ({Measure.TEMPERATURE.value})",),
          legend="{{Hostname}} GPU {{gpu}}", unit="celsius"),
)  # fmt: skip
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Alarms: anything above zero", ALARMS),
    ("Is it being looked at?", LOOKED_AT),
    ("What the GPUs' own counters say (advanced DCGM metrics of the add-on)", GPUS),
)


def dashboard() -> dict[str, Any]:
    """Grafana's JSON model."""
    return {
        "uid": "training-sdc",
        "title": "Silent data corruption",
        "description": "Alarms of training jobs, whether they are being checked, and the GPUs' own counters.",
        "tags": ["training-sdc", "hyperpod"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": [_source(), *map(_variable, ("cluster", "job"), (CLUSTER_LABEL, JOB_LABEL))]},
        "panels": list(_placed(ROWS)),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(name: str, label: str) -> dict[str, Any]:
    heart = prometheus_name(Metric.HEARTBEAT)
    within = f'{{{CLUSTER_LABEL}=~"$cluster"}}' if label == JOB_LABEL else ""
    query = f"label_values({heart}{within}, {label})"
    return {"name": name, "label": name.capitalize(), "type": "query", "datasource": SOURCE,
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2, "hide": 0,
            "includeAll": True, "multi": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}}  # fmt: skip


def _placed(rows: Sequence[tuple[str, Sequence[Panel]]]) -> Iterator[dict[str, Any]]:
    """Rows of panels from the left; a row that is full goes on below."""
    number, y = 0, 0
    for title, panels in rows:
        number += 1
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [],
               "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y}}  # fmt: skip
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + HEIGHT
            number += 1
            yield _graph(number, panel, {"h": HEIGHT, "w": panel.width, "x": x, "y": y})
            x += panel.width
        y += HEIGHT


def _graph(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}] + [{"color": "red", "value": 1e-9}] * panel.alarming
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.look,
        "gridPos": place,
        "datasource": SOURCE,
        "targets": [
            {"refId": chr(65 + i), "datasource": SOURCE, "expr": query, "legendFormat": panel.legend}
            for i, query in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "color": {"mode": "thresholds" if panel.alarming else "palette-classic"},
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"
