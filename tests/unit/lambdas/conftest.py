"""A world of 3 nodes x 2 GPUs, a registered job, and the handlers wired to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lambdas import observability, wiring
from lambdas.settings import VARIABLES

from .drive import Driver

VALUES = {
    "POWERTOOLS_SERVICE_NAME": "sdc",
    "POWERTOOLS_METRICS_NAMESPACE": "TrainingSDC",
    "LOG_LEVEL": "INFO",
    "MODE": "replace",
    "CLUSTER_NAME": "demo",
    "MAX_ALARM_AGE_SECONDS": "3600",
    "APPROVAL_TIMEOUT_SECONDS": "7200",
    "REVIEW_URL": "https://review.example.com",
    "REPLACEMENTS_PER_DAY": "2",
    "REPLACEMENT_BUDGET_PERCENT": "100",
    "REPLACEMENTS_PER_HOUR": "2",
    "DEEP_CHECK_ENABLED": "true",
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    for name in {n for names in VARIABLES.values() for n in names}:
        monkeypatch.setenv(name, VALUES.get(name, name.lower()))
    # powertools reads its variables at import, which other tests may have done before
    monkeypatch.setattr(observability.metrics.provider, "namespace", VALUES["POWERTOOLS_METRICS_NAMESPACE"])
    yield Driver(monkeypatch)
    wiring.needs.cache_clear()
