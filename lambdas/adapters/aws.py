"""Shared by the AWS adapters: clients with bounded time, and service errors turned into ours."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ..domain.errors import ConflictError, RefusedError, ThrottledError, UnavailableError

_THROTTLED = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "ProvisionedThroughputExceededException",
        "RequestThrottled",
    }
)
_UNAVAILABLE = frozenset(
    {"InternalServerError", "InternalFailure", "InternalError", "ServiceUnavailable", "RequestTimeout"}
)
_CONFLICT = frozenset(
    {"ConditionalCheckFailedException", "TransactionConflictException", "ConflictException"}
)


@functools.cache
def client(service: str) -> Any:
    """One boto3 client per service and process; the environment names region and endpoint."""
    config = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"})
    return boto3.client(service, config=config)


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Turn botocore's errors into retryable or permanent ones of ours."""
    try:
        yield
    except ClientError as e:
        raise _ours(action, e) from e
    except BotoCoreError as e:
        raise UnavailableError(f"{action}: no answer ({type(e).__name__})") from e


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _ours(action: str, error: ClientError) -> Exception:
    code = code_of(error)
    text = f"{action}: {code}: {error.response.get('Error', {}).get('Message', '')}"
    if code in _THROTTLED:
        return ThrottledError(text)
    if code in _CONFLICT:
        return ConflictError(text)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _UNAVAILABLE or status >= 500:
        return UnavailableError(text)
    return RefusedError(text, code)
