"""AWS as the caller: clients with short timeouts, and requests signed for the approval API.

In: region, the caller's credentials as boto3 finds them. Out: answers, or `CannotAskError` that says which
permission is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import boto3
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from ..clients import own_region
from .failures import CannotAskError

_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized")
_STALE = ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException")
_REGION_OF_API = re.compile(r"\.execute-api\.([a-z0-9-]+)\.amazonaws\.com")
LOG_IN = "Log in (`aws sso login`, or AWS_PROFILE=...), then try again."


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the approval API."""

    status: int
    body: Mapping[str, Any]


class Aws:
    """The caller's session."""

    def __init__(self, region: str | None = None, make: Callable[[str], Any] | None = None) -> None:
        self._region = region
        self._make = make
        self._session: Any = None
        self._http = urllib3.PoolManager(timeout=urllib3.Timeout(connect=5, read=35), retries=False)

    @property
    def session(self) -> Any:
        """boto3's session, made when first needed."""
        if self._session is None:
            self._session = boto3.session.Session(region_name=self._region or own_region())
        return self._session

    def client(self, service: str) -> Any:
        """A client that answers or gives up within seconds."""
        if self._make is not None:
            return self._make(service)
        config = Config(connect_timeout=5, read_timeout=15, retries={"total_max_attempts": 2})
        return self.session.client(service, config=config)

    def signed(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Answer:
        """One request to the approval API; the server records whose it was.

        Raises:
            CannotAskError: no credentials, no region, no answer, or not allowed.
        """
        answer = self._signed("execute-api", method, url, body)
        if answer.status == 403:
            said = answer.body.get("message") or answer.body.get("error") or "forbidden"
            raise CannotAskError(
                f"{url} does not let you in: {said}.",
                "Ask the operator to attach the stack's SignedApproverPolicy to your role; check the region.",
            )
        return answer

    def prometheus(self, base: str, query: str) -> Answer:
        """One instant query of an Amazon Managed Prometheus workspace.

        Raises:
            CannotAskError: as `signed`.
        """
        url = f"{base.rstrip('/')}/api/v1/query?" + urlencode({"query": query})
        answer = self._signed("aps", "GET", url, None)
        if answer.status != 200:
            raise CannotAskError(
                f"The Prometheus workspace answered {answer.status}.", "Your role needs aps:QueryMetrics."
            )
        return answer

    def _signed(self, service: str, method: str, url: str, body: Mapping[str, Any] | None) -> Answer:
        data = json.dumps(body).encode() if body is not None else b""
        headers = {"content-type": "application/json"} if data else {}
        request = AWSRequest(method=method, url=url, data=data, headers=headers)
        with explained(f"ask {url}", f"{service}:*"):
            credentials = self.session.get_credentials()
            if credentials is None:
                raise NoCredentialsError
            region = self._region or _region_of(url) or self.session.region_name
            if region is None:
                raise NoRegionError
            SigV4Auth(credentials, service, region).add_auth(request)
        try:
            answer = self._http.request(method, url, body=data or None, headers=dict(request.headers))
        except urllib3.exceptions.HTTPError as e:
            raise CannotAskError(
                f"{url} gives no answer ({type(e).__name__}).", "Check --api and the network's way to AWS."
            ) from e
        return Answer(answer.status, _json(answer.data))


@contextmanager
def explained(what: str, permission: str) -> Iterator[None]:
    """Turn what botocore raises into a sentence with a remedy.

    Raises:
        CannotAskError: whatever AWS refused.
    """
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as e:
        raise CannotAskError(f"Could not {what}: there are no AWS credentials.", LOG_IN) from e
    except NoRegionError as e:
        raise CannotAskError(f"Could not {what}: no region.", "Give --region, or set AWS_REGION.") from e
    except ClientError as e:
        code = str(e.response.get("Error", {}).get("Code", ""))
        message = str(e.response.get("Error", {}).get("Message", ""))[:200]
        remedy = f"Check the name and the region. ({code})"
        if code in _DENIED:
            remedy = f"Your role needs {permission}."
        elif code in _STALE:
            remedy = LOG_IN
        raise CannotAskError(f"Could not {what}: {message or code}.", remedy) from e
    except BotoCoreError as e:
        raise CannotAskError(f"Could not {what}: {e}.", "Check the network's way to AWS.") from e


def _region_of(url: str) -> str | None:
    found = _REGION_OF_API.search(url)
    return found[1] if found else None


def _json(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
