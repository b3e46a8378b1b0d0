"""Prometheus' query API, as the observability add-on's managed workspace serves it (signed for `aps`).

In: GPU UUIDs and a moment. Out: each measure minute by minute in the half hour around it, None without a
workspace. One range query per measure; no data stays no data.
"""

from __future__ import annotations

import json
import math
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
STEP = timedelta(minutes=1)
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
        found = []
        for measure in Measure:
            points = self._points(f'max(max_over_time({measure.value}{{UUID=~"{gpus}"}}[1m]))', at)
            found.append(Reading(measure, max(points, default=None), points))
        return tuple(found)

    def _points(self, query: str, at: datetime) -> tuple[float, ...]:
        start, end = ((at + d).timestamp() for d in (-AROUND, AROUND))
        span = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{STEP.total_seconds():g}"}
        url = f"{self._url}/api/v1/query_range?" + urlencode({"query": query, **span})
        try:
            answer = self._http.request("GET", url, headers=_signed(url))
        except urllib3.exceptions.HTTPError as e:
            raise UnavailableError(f"Prometheus query: no answer ({type(e).__name__})") from e
        if answer.status != 200:
            raise RefusedError(f"Prometheus query: HTTP {answer.status}", str(answer.status))
        return _values(answer.data)


def _values(body: bytes) -> tuple[float, ...]:
    """The finite samples of a matrix of at most one series.

    Raises:
        RefusedError: not an answer of the query API.
    """
    try:
        answer: Any = json.loads(body)
        results = answer["data"]["result"] if answer["status"] == "success" else None
        samples = [float(text) for _, text in results[0]["values"]] if results else []
        return tuple(x for x in samples if math.isfinite(x))
    except (ValueError, KeyError, IndexError, TypeError) as e:
        raise RefusedError("Prometheus query: the answer cannot be read", "Unreadable") from e


def _signed(url: str) -> dict[str, str]:
    session = boto3.Session()
    request = AWSRequest(method="GET", url=url)
    SigV4Auth(session.get_credentials(), "aps", session.region_name).add_auth(request)
    return dict(request.headers)
