"""Small parts: tokens, mail subjects, event inputs, timers, moto's version, the HTTP routes."""

from __future__ import annotations

import base64
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from emulator import eks_token
from emulator.eventbridge import as_delivered, input_of
from emulator.http_front import match, translate
from emulator.lambda_runtime import Outcome
from emulator.mailbox import Mailbox, SubjectError, check_subject
from emulator.moto_patches import SUPPORTED, MotoVersionError, require_version
from emulator.names import function_name_of
from emulator.plan import Route
from emulator.timers import Timers
from tests.patience import PATIENCE_S

SECRET = "the-secret"


def token(
    *, cluster: str = "demo-eks", secret: str = SECRET, host: str = "sts.us-east-1.amazonaws.com",
    action: str = "GetCallerIdentity", header: str = "x-k8s-aws-id",
) -> str:  # fmt: skip
    url = f"https://{host}/?Action={action}&Version=2011-06-15"
    request = AWSRequest("GET", url, headers={header: cluster})
    SigV4QueryAuth(Credentials("AKIAEXAMPLE", secret), "sts", "us-east-1", expires=60).add_auth(request)
    return "k8s-aws-v1." + base64.urlsafe_b64encode(request.url.encode()).decode().rstrip("=")


def test_a_token_of_this_cluster_and_key_is_accepted() -> None:
    eks_token.check(token(), cluster="demo-eks", secret_key=SECRET)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (token(cluster="another"), "not for the cluster demo-eks"),
        (token(secret="stolen"), "not our key"),
        (token(host="sts.evil.example"), "is not STS"),
        (token(action="AssumeRole"), "action"),
        (token(header="x-other"), "signs the headers"),
        ("k8s-aws-v1.%%%", "is not STS|base64url"),
        ("some-other-token", "begin with"),
    ],
)
def test_any_other_token_is_refused(bad: str, message: str) -> None:
    with pytest.raises(eks_token.TokenError, match=message):
        eks_token.check(bad, cluster="demo-eks", secret_key=SECRET)


def test_a_token_lives_for_fifteen_minutes() -> None:
    made, later = token(), datetime.now(timezone.utc) + timedelta(minutes=16)
    with pytest.raises(eks_token.TokenError, match="15 minutes"):
        eks_token.check(made, cluster="demo-eks", secret_key=SECRET, now=later)


@pytest.mark.parametrize("subject", ["", "two\nlines", "é", "x" * 100, " leading"])
def test_subjects_that_sns_refuses(subject: str) -> None:
    if subject:
        with pytest.raises(SubjectError):
            check_subject(subject)
    check_subject("[SDC] hyperpod-i-0123456789abcdef0: review a replacement")


def test_the_mailbox_waits_and_says_what_came_instead() -> None:
    box = Mailbox()
    with pytest.raises(TimeoutError, match="0 came"):
        box.wait_for(timeout=0.01)
    threading.Timer(0.05, box.deliver, ("a@b.c", "second", "body", "arn", {})).start()
    box.deliver("a@b.c", "first", "body", "arn", {})
    assert box.wait_for(lambda m: m.subject == "second", timeout=PATIENCE_S).body == "body"
    with pytest.raises(TimeoutError, match="'first', 'second'"):
        box.wait_for(lambda m: m.subject == "third", timeout=0.01)
    assert [m.subject for m in box] == ["first", "second"]


EVENT: dict[str, Any] = {
    "id": "1", "source": "s", "time": 1_700_000_000.25, "ingestion-time": 1.0, "detail": {"a": {"b": 2}},
}  # fmt: skip


def test_an_event_is_delivered_without_motos_own_fields() -> None:
    assert as_delivered(EVENT) == {
        "id": "1",
        "source": "s",
        "time": "2023-11-14T22:13:20Z",
        "detail": {"a": {"b": 2}},
    }


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({"Input": '{"fixed": 1}'}, '{"fixed": 1}'),
        ({"InputPath": "$.detail.a"}, '{"b": 2}'),
        (
            {"InputTransformer": {"InputPathsMap": {"x": "$.detail.a.b"}, "InputTemplate": '{"got": <x>}'}},
            '{"got": 2}',
        ),
    ],
)
def test_what_a_target_gets(target: dict[str, Any], text: str) -> None:
    assert input_of(target, as_delivered(EVENT)) == text


def test_another_moto_is_refused_with_the_version_to_install() -> None:
    require_version(SUPPORTED)
    with pytest.raises(MotoVersionError, match=f"install moto=={SUPPORTED}"):
        require_version("5.3.0")


@pytest.mark.parametrize("scale", [0, -1, 1.5])
def test_a_time_scale_outside_zero_to_one_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="time_scale"):
        Timers(scale)


def test_timers_run_in_order_of_their_time_and_survive_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    timers, seen, done = Timers(1 / 1000), list[str](), threading.Event()

    def last() -> None:
        seen.append("late")
        done.set()

    timers.after(100, last)
    timers.after(10, lambda: seen.append("early"))
    timers.after(20, lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    assert done.wait(PATIENCE_S)
    timers.close()
    assert seen == ["early", "late"]
    assert "ZeroDivisionError" in caplog.text


def test_closed_timers_run_nothing_more() -> None:
    timers, seen = Timers(1 / 1000), list[int]()
    timers.after(100, lambda: seen.append(1))
    timers.close()
    threading.Event().wait(0.2)
    assert seen == []


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/review/abc", ("show", {"secret": "abc"})),
        ("GET", "/review/special", ("special", {})),
        ("POST", "/review/abc", ("decide", {"secret": "abc"})),
        ("PUT", "/review/abc", ("any", {"x": "abc"})),
        ("GET", "/review/", None),
        ("GET", "/review/a/b", None),
        ("GET", "/other", None),
    ],
)
def test_the_most_specific_route_wins(method: str, path: str, expected: Any) -> None:
    routes = [
        Route("ANY", "/review/{x}", "any"),
        Route("GET", "/review/{secret}", "show"),
        Route("GET", "/review/special", "special"),
        Route("POST", "/review/{secret}", "decide"),
    ]
    found = match(routes, method, path)
    assert (None if found is None else (found[0].function, found[1])) == expected


def test_answers_of_functions_become_http() -> None:
    structured = translate(
        Outcome(b'{"statusCode": 303, "headers": {"Location": "/x"}, "cookies": ["a=1"]}', False)
    )
    assert structured.status == 303
    assert dict(structured.headers) == {
        "location": "/x", "content-type": "text/plain;charset=UTF-8", "set-cookie": "a=1",
    }  # fmt: skip
    encoded = translate(Outcome(b'{"statusCode": 200, "body": "aGk=", "isBase64Encoded": true}', False))
    assert encoded.body == b"hi"
    plain = translate(Outcome(b'{"some": "json"}', False))
    assert (plain.status, plain.body) == (200, b'{"some": "json"}')
    assert translate(Outcome(b'{"errorType": "X"}', True)).status == 500


@pytest.mark.parametrize(
    "name",
    ["fn", "arn:aws:lambda:us-east-1:123456789012:function:fn", "arn:aws:lambda:r:a:function:fn:$LATEST"],
)
def test_function_names_are_read_from_arns(name: str) -> None:
    assert function_name_of(name) == "fn"
