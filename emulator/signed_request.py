"""API Gateway's AWS_IAM authorizer: who signed this request? In: a request. Out: the caller's ARN.

Signature Version 4 with the signature in the Authorization header, for execute-api in our region; the body's
hash is part of it, so that a body cannot be exchanged. One key pair exists. Source: AWS Signature Version 4,
"Create a signed AWS API request".
"""

from __future__ import annotations

import hashlib
import hmac
import re
import urllib.parse
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

from .names import ACCESS_KEY, REGION, SECRET_KEY, USER_ARN

_AUTHORIZATION = re.compile(
    r"^AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>\d{8}/[^/]+/[^/]+/aws4_request), ?"
    r"SignedHeaders=(?P<headers>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})$"
)
LIFETIME = timedelta(minutes=5)


class SignatureError(ValueError):
    """Not signed, or not by a key that this account knows, or not for this request."""


def caller(
    method: str, target: str, headers: Mapping[str, str], body: bytes, now: datetime | None = None
) -> str:
    """ARN of whoever signed the request.

    Raises:
        SignatureError: with the reason.
    """
    given = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    found = _AUTHORIZATION.match(given.get("authorization", ""))
    if found is None:
        raise SignatureError("no Authorization header of Signature Version 4")
    if found["key"] != ACCESS_KEY:
        raise SignatureError(f"unknown access key {found['key']}")
    if found["scope"].split("/")[1:3] != [REGION, "execute-api"]:
        raise SignatureError(f"signed for {found['scope']}, not for execute-api in {REGION}")
    names = found["headers"].split(";")
    if not {"host", "x-amz-date"} <= set(names):
        raise SignatureError("host and x-amz-date are not signed")
    _check_age(given.get("x-amz-date", ""), now or datetime.now(timezone.utc))
    url = urllib.parse.urlsplit(target)
    canonical = "\n".join(
        [
            method,
            urllib.parse.quote(url.path or "/", safe="/~"),
            "&".join(sorted(url.query.split("&"))) if url.query else "",
            *(f"{name}:{given.get(name, '')}" for name in names),
            "",
            ";".join(names),
            hashlib.sha256(body).hexdigest(),
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", given["x-amz-date"], found["scope"], digest])
    key = f"AWS4{SECRET_KEY}".encode()
    for part in found["scope"].split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected, found["signature"]):
        raise SignatureError("the signature does not fit this request")
    return USER_ARN


def _check_age(text: str, now: datetime) -> None:
    try:
        made = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        raise SignatureError(f"x-amz-date is {text!r}") from None
    if abs(now - made) > LIFETIME:
        raise SignatureError(f"signed at {text}, more than five minutes away from now")
