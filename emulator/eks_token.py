"""Checks EKS bearer tokens as aws-iam-authenticator does, with the local cloud's one key pair.

A token is a presigned STS GetCallerIdentity URL, base64url, with the cluster name in a signed header whose
value is not in the URL: the server puts its own name in and verifies the signature, so a token for another
cluster does not fit. Source: aws-iam-authenticator's token format; AWS Signature Version 4.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import urllib.parse
from datetime import datetime, timedelta, timezone

PREFIX = "k8s-aws-v1."
LIFETIME = timedelta(minutes=15)
ALGORITHM = "AWS4-HMAC-SHA256"


class TokenError(ValueError):
    """The token is not acceptable; the text says why."""


def check(token: str, *, cluster: str, secret_key: str, now: datetime | None = None) -> str:
    """Access key id of a token that was signed with this secret for this cluster within the last 15 minutes.

    Raises:
        TokenError: with the reason.
    """
    if not token.startswith(PREFIX):
        raise TokenError("the token does not begin with k8s-aws-v1.")
    encoded = token.removeprefix(PREFIX)
    try:
        url = urllib.parse.urlsplit(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
    except (binascii.Error, UnicodeDecodeError) as e:
        raise TokenError("the token is not base64url") from e
    if url.scheme != "https" or not re.fullmatch(r"sts(\.[a-z0-9-]+)?\.amazonaws\.com", url.netloc):
        raise TokenError(f"the token's host {url.netloc!r} is not STS")
    query = dict(urllib.parse.parse_qsl(url.query))
    if query.get("Action") != "GetCallerIdentity":
        raise TokenError("the token's action is not GetCallerIdentity")
    signed = query.get("X-Amz-SignedHeaders", "").split(";")
    if signed != ["host", "x-k8s-aws-id"]:
        raise TokenError(f"the token signs the headers {signed}, not host and x-k8s-aws-id")
    _check_age(query.get("X-Amz-Date", ""), now or datetime.now(timezone.utc))
    if not hmac.compare_digest(_signature(url, query, cluster, secret_key), query.get("X-Amz-Signature", "")):
        raise TokenError(f"the signature does not fit: not our key, or not for the cluster {cluster}")
    return query["X-Amz-Credential"].split("/", 1)[0]


def _check_age(text: str, now: datetime) -> None:
    try:
        made = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError as e:
        raise TokenError(f"X-Amz-Date is {text!r}") from e
    if not -timedelta(minutes=1) <= now - made <= LIFETIME:
        raise TokenError(f"the token is of {text} and lives for 15 minutes")


def _signature(url: urllib.parse.SplitResult, query: dict[str, str], cluster: str, secret_key: str) -> str:
    quoted = sorted(
        (urllib.parse.quote(k, safe="-_.~"), urllib.parse.quote(v, safe="-_.~"))
        for k, v in query.items()
        if k != "X-Amz-Signature"
    )
    canonical = "\n".join(
        [
            "GET",
            url.path or "/",
            "&".join(f"{k}={v}" for k, v in quoted),
            f"host:{url.netloc}",
            f"x-k8s-aws-id:{cluster}",
            "",
            "host;x-k8s-aws-id",
            hashlib.sha256(b"").hexdigest(),
        ]
    )
    scope = query.get("X-Amz-Credential", "").split("/", 1)[-1]
    text = "\n".join([ALGORITHM, query["X-Amz-Date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
