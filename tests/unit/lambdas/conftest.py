"""A world of 3 nodes x 2 GPUs, a registered job, and the handlers wired to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from botocore.stub import Stubber
from moto import mock_aws

from lambdas import observability, wiring
from lambdas.adapters import aws, sagemaker
from lambdas.domain.incident import Incident
from lambdas.settings import VARIABLES
from tests.events import builder

from .drive import Driver

Stubs = Callable[[str], Stubber]
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
    "APPROVAL_LINKS": "true",
    "TELEMETRY_URL": "",
    "TRAINING_SERVICE_ACCOUNTS": "research/llama,training/training",
    "HEARTBEAT_TIMEOUT_SECONDS": "600",
}

KEYS = {
    "incidents": ("pk", "sk"),
    "approvals": ("approval_id",),
    "registrations": ("job_uid", "attempt_node"),
    "quarantine": ("subject",),
    "controls": ("key",),
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    for name in {n for names in VARIABLES.values() for n in names}:
        monkeypatch.setenv(name, VALUES.get(name, name.lower()))
    # powertools reads its variables at import, which other tests may have done before
    monkeypatch.setattr(observability.metrics.provider, "namespace", VALUES["POWERTOOLS_METRICS_NAMESPACE"])
    yield Driver(monkeypatch)
    wiring.needs.cache_clear()


@pytest.fixture
def approved(driver: Driver) -> Incident:
    """Rank 3's GPU is named, and its replacement approved."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.answer(driver.until_asked(incident))
    return incident


@pytest.fixture(scope="module")
def clients() -> Iterator[None]:
    """Clients made once with dummy credentials: making one takes a quarter of a second."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patched.delenv("AWS_ENDPOINT_URL", raising=False)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patched.setenv(name, "testing")
        for cached in (aws.client, sagemaker.single_attempt_client):
            cached.cache_clear()
        yield
        for cached in (aws.client, sagemaker.single_attempt_client):
            cached.cache_clear()


@pytest.fixture
def stub(clients: None) -> Iterator[Stubs]:
    made: list[Stubber] = []

    def make(service: str) -> Stubber:
        made.append(Stubber(aws.client(service)))
        made[-1].activate()
        return made[-1]

    yield make
    for stubber in made:
        stubber.assert_no_pending_responses()
        stubber.deactivate()


@pytest.fixture
def tables(clients: None) -> Iterator[None]:
    with mock_aws():
        for table, keys in KEYS.items():
            aws.client("dynamodb").create_table(
                TableName=table,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": k, "AttributeType": "S"} for k in keys],
                KeySchema=[
                    {"AttributeName": k, "KeyType": t} for k, t in zip(keys, ("HASH", "RANGE"), strict=False)
                ],
            )
        yield
