"""One logger, one metrics buffer (powertools). Logs carry ids and outcomes, never events or tokens."""

from __future__ import annotations

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

logger = Logger(log_uncaught_exceptions=False)
metrics = Metrics()

__all__ = ["MetricUnit", "logger", "metrics"]
