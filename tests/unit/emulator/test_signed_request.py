"""The local IAM authorizer: botocore's own signatures fit, and nothing else does."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from emulator.names import ACCESS_KEY, REGION, SECRET_KEY, USER_ARN
from emulator.signed_request import SignatureError, caller

PATH = "/incidents/3f1c9a0b7d2e4685/decision"
BODY = b'{"decision": "approve"}'


def signed(
    *, key: str = ACCESS_KEY, secret: str = SECRET_KEY, service: str = "execute-api", region: str = REGION
) -> dict[str, str]:
    request = AWSRequest("POST", f"http://127.0.0.1:8080{PATH}?b=2&a=1", data=BODY)
    SigV4Auth(Credentials(key, secret), service, region).add_auth(request)
    return {"host": "127.0.0.1:8080", **dict(request.headers)}


def test_a_signature_of_botocore_names_the_caller() -> None:
    assert caller("POST", f"{PATH}?b=2&a=1", signed(), BODY) == USER_ARN


@pytest.mark.parametrize(
    "wrong",
    [{"key": "AKIASOMEBODYELSE0000"}, {"secret": "x"}, {"service": "sts"}, {"region": "eu-west-1"}],
)
def test_another_key_service_or_region_does_not(wrong: dict[str, str]) -> None:
    with pytest.raises(SignatureError):
        caller("POST", f"{PATH}?b=2&a=1", signed(**wrong), BODY)


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", f"{PATH}?b=2&a=1", BODY),
        ("POST", f"{PATH}?b=2&a=2", BODY),
        ("POST", f"{PATH.replace('3f', '4f')}?b=2&a=1", BODY),
        ("POST", f"{PATH}?b=2&a=1", b'{"decision": "release"}'),
    ],
)
def test_nothing_of_a_signed_request_can_be_exchanged(method: str, target: str, body: bytes) -> None:
    with pytest.raises(SignatureError, match="does not fit"):
        caller(method, target, signed(), body)


def test_an_old_or_unsigned_request_is_refused() -> None:
    later = datetime.now(timezone.utc) + timedelta(minutes=6)
    with pytest.raises(SignatureError, match="five minutes"):
        caller("POST", f"{PATH}?b=2&a=1", signed(), BODY, later)
    with pytest.raises(SignatureError, match="no Authorization"):
        caller("POST", PATH, {"host": "x"}, BODY)
