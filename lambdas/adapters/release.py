"""The release by an operator, done by the one function that may uncordon: called and waited for."""

from __future__ import annotations

import functools
import json
from typing import Any

import boto3
from botocore.config import Config

from ..domain.errors import UnavailableError
from .aws import translated

READ_TIMEOUT_S = 25  # a cold start and a few patches; the HTTP API gives up after 30


class ResumeFunction:
    """Implements `ports.Releaser`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def release(self, incident_id: str, by: str, reason: str) -> tuple[bool, str]:
        asked = {"incident_id": incident_id, "release": {"by": by, "reason": reason}}
        with translated("release by an operator"):
            answer = single_attempt_client().invoke(
                FunctionName=self._name, Payload=json.dumps(asked).encode()
            )
            told = json.loads(answer["Payload"].read())
        if answer.get("FunctionError"):
            raise UnavailableError(f"the release broke off: {str(told.get('errorMessage'))[:300]}")
        return told["outcome"] == "released", str(told["story"])


@functools.cache
def single_attempt_client() -> Any:
    """It waits for another function; calling again is harmless, and left to the caller."""
    config = Config(connect_timeout=3, read_timeout=READ_TIMEOUT_S, retries={"total_max_attempts": 1})
    return boto3.client("lambda", config=config)
