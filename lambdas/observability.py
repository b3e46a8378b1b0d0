"""One logger, one metrics buffer (powertools). Logs carry ids and outcomes, never events or tokens."""

from __future__ import annotations

import json
import sys
import time

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from training_agent.contract import METRIC_NAMESPACE

logger = Logger(log_uncaught_exceptions=False)
metrics = Metrics()

__all__ = ["MetricUnit", "logger", "measure", "metrics"]


def measure(name: str, value: float, cluster: str, unit: MetricUnit = MetricUnit.Seconds) -> None:
    """One number under {Cluster} alone, where the dashboard looks for it, whichever function saw it.

    CloudWatch's embedded metric format, one line on stdout; powertools would add the function's name to the
    dimensions.
    """
    shape = {
        "Namespace": METRIC_NAMESPACE,
        "Dimensions": [["Cluster"]],
        "Metrics": [{"Name": name, "Unit": unit.value}],
    }
    about = {"Timestamp": time.time_ns() // 1_000_000, "CloudWatchMetrics": [shape]}
    sys.stdout.write(json.dumps({"_aws": about, "Cluster": cluster, name: value}) + "\n")
