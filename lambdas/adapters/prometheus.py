"""Prometheus' query API, as the observability add-on's managed workspace serves it (signed for `aps`).

In: GPU UUIDs and a moment. Out: the highest value of each measure in the half hour around it, None without
a workspace. One instant query per measure; no data stays no data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import boto3
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

from ..domain.errors import RefusedError, UnavailableError
from ..domain.telemetry import Measure, Reading

AROUND = timedelta(minutes=15)
TIMEOUT = urllib3.Timeout(connect=3, read=5)


class Prometheus:
    """Implements `ports.Telemetry`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._http = urllib3.PoolManager(timeout=TIMEOUT, retries=False)

    def around(self, gpu_uuids: Sequence[str], at: datetime) -> tuple[Reading, ...] | None:
        if not self._url:
            return None
        gpus = "|".join(g for g in gpu_uuids if g.replace("-", "").isalnum())  # they come over the wire
        minutes = int(2 * AROUND.total_seconds() // 60)
        return tuple(
            Reading(m, self._highest(f'max(max_over_time({m.value}{{UUID=~"{gpus}"}}[{minutes}m]))', at))
            for m in Measure
        )

    def _highest(self, query: str, at: datetime) -> float | None:
        moment = (at + AROUND).timestamp()
        url = f"{self._url}/api/v1/query?" + urlencode({"query": query, "time": f"{moment:.3f}"})
        try:
            answer = self._http.request("GET", url, headers=_signed(url))
        except urllib3.exceptions.HTTPError as e:
            raise UnavailableError(f"Prometheus query: no answer ({type(e).__name__})") from e
        if answer.status != 200:
            raise RefusedError(f"Prometheus query: HTTP {answer.status}", str(answer.status))
        return _value(answer.data)


def _value(body: bytes) -> float | None:
    """The one sample of an instant vector.

    Raises:
        RefusedError: not an answer of the query API.
    """
    try:
        answer: Any = json.loads(body)
        results = answer["data"]["result"] if answer["status"] == "success" else None
        return float(results[0]["value"][1]) if results else None
    except (ValueError, KeyError, IndexError, TypeError) as e:
        raise RefusedError("Prometheus query: the answer cannot be read", "Unreadable") from e


def _signed(url: str) -> dict[str, str]:
    session = boto3.Session()
    request = AWSRequest(method="GET", url=url)
    SigV4Auth(session.get_credentials(), "aps", session.region_name).add_auth(request)
    return dict(request.headers)
