"""Every route of the API over HTTP: right and wrong methods, sizes, encodings; nothing here decides anything.

Bodies arrive at the functions as API Gateway delivers them: form posts in base64. An unsigned request to a
signed route is refused before its function.
"""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from emulator.cloud import LocalCloud
from emulator.http_front import MAX_BODY
from emulator.names import ACCESS_KEY, REGION, SECRET_KEY
from tests.patience import PATIENCE_S
from tests.workflow.scenario import Scenario

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
UNKNOWN = "0" * 64
# path -> method -> status; a method that is not named has no route and is 404
ROUTES: dict[str, dict[str, int]] = {
    f"/review/{UNKNOWN}": {
        "GET": 404,
        "HEAD": 404,
        "POST": 403,
    },  # POST: no origin, refused before the look-up
    "/review/": {},
    f"/review/{UNKNOWN}/more": {},
    "/review/%2e%2e%2fincidents": {"GET": 404, "HEAD": 404, "POST": 403},
    "/incidents": {"GET": 403},
    "/incidents/inc-1": {"GET": 403},
    "/incidents/inc-1/decision": {"POST": 403},
    "/incidents/inc-1/release": {"POST": 403},
    "/breaker": {"POST": 403},
    "/": {},
    "/favicon.ico": {},
    "/$default": {},
}
SIGNED = {path: answers for path, answers in ROUTES.items() if path.startswith(("/incidents", "/breaker"))}
FORM = "application/x-www-form-urlencoded"


def send(
    cloud: LocalCloud,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """One request, without a client that follows, decodes or corrects."""
    connection = http.client.HTTPConnection(
        urllib.parse.urlsplit(cloud.review_url).netloc, timeout=PATIENCE_S
    )
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_the_table_names_every_route_of_the_template(cloud: LocalCloud) -> None:
    served = {(r.method, len(r.path.split("/")), r.path.split("/")[1]) for r in cloud.stack.plan.routes}
    named = {(m, len(p.split("/")), p.split("/")[1]) for p, answers in ROUTES.items() for m in answers}
    assert served == named


@pytest.mark.parametrize("path", ROUTES)
def test_a_route_answers_its_methods_and_no_other(cloud: LocalCloud, path: str) -> None:
    for method in METHODS:
        status, headers, body = send(cloud, method, path)
        assert status == ROUTES[path].get(method, 404), (method, body)
        if method in ROUTES[path] and path not in SIGNED:
            assert headers["cache-control"] == "no-store"
        assert b"Traceback" not in body and b"arn:aws" not in body


SIGNED_ANSWERS = {
    "/incidents": 200,
    "/incidents/inc-1": 404,
    "/incidents/inc-1/decision": 404,
    "/incidents/inc-1/release": 404,
    "/breaker": 400,
}


@pytest.mark.parametrize("path", SIGNED)
def test_a_signed_route_answers_whoever_signed(cloud: LocalCloud, path: str) -> None:
    """An empty body decides nothing and closes nothing."""
    (method,) = SIGNED[path]
    url = urllib.parse.urljoin(cloud.review_url, path)
    request = AWSRequest(method, url, data=b"" if method == "POST" else None)
    SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "execute-api", REGION).add_auth(request)
    status, headers, body = send(cloud, method, path, b"" if method == "POST" else None, request.headers)
    assert status == SIGNED_ANSWERS[path], body
    assert headers["cache-control"] == "no-store"
    assert b"Traceback" not in body


@pytest.mark.parametrize(
    "path", ["/incidents/inc-1/decision", "/incidents/inc-1/release", "/breaker", f"/review/{UNKNOWN}"]
)
@pytest.mark.parametrize("size", [MAX_BODY + 1, MAX_BODY, 16 * 1024 + 1])
def test_a_body_of_any_size_is_refused_and_breaks_nothing(cloud: LocalCloud, path: str, size: int) -> None:
    """Over API Gateway's limit the function is not called; below it, it reads no more than 16 KB."""
    status, _, _ = send(cloud, "POST", path, b"a" * size, {"Content-Type": FORM})
    assert status == (413 if size > MAX_BODY else 403)


def test_a_form_in_any_encoding_that_is_no_form_decides_nothing(
    cloud: LocalCloud, scenario: Scenario
) -> None:
    scenario.raise_alarm(scenario.culprit())
    path = urllib.parse.urlsplit(scenario.link()).path
    fields = {"decision": "approve", "typed": scenario.instance()[-6:], "reason": "seen"}
    form = urllib.parse.urlencode(fields)
    same = {"Sec-Fetch-Site": "same-origin"}
    bodies: dict[str, tuple[bytes, str]] = {
        "json": (json.dumps(fields).encode(), "application/json"),
        "multipart": (
            b'--x\r\nContent-Disposition: form-data; name="decision"\r\n\r\napprove\r\n--x--',
            "multipart/form-data",
        ),
        "utf-16": (form.encode("utf-16"), FORM),
        "latin-1": (f"{form}ä".encode("latin-1"), FORM),
        "invalid utf-8": (form.encode() + b"\xff\xfe", FORM),
        "gzip": (b"\x1f\x8b\x08" + form.encode(), FORM),
        "every field twice": (f"{form}&{form}".encode(), FORM),
        "eleven fields": (form.encode() + b"&a=1" * 8, FORM),
        "too long": (form.encode() + b"a" * 16 * 1024, FORM),
        "empty": (b"", FORM),
        "nul": (form.replace("approve", "approve%00").encode(), FORM),
    }  # fmt: skip
    for name, (body, kind) in bodies.items():
        status, headers, text = send(cloud, "POST", path, body, {"Content-Type": kind, **same})
        assert status == 400, (name, status, text)
        assert "default-src 'none'" in headers["content-security-policy"], name
    for method in METHODS:
        if method != "POST":
            send(cloud, method, path, form.encode(), {"Content-Type": FORM, **same})
    assert send(cloud, "POST", path, form.encode(), {"Content-Type": FORM})[0] == 403, "no origin"
    assert scenario.row()["state"] == "AWAITING_APPROVAL"
    assert (
        send(cloud, "POST", path, form.replace("approve", "keep").encode(), {"Content-Type": FORM, **same})[0]
        == 200
    )
    assert scenario.end() == "REJECTED_KEPT"
    assert scenario.replace_requests() == []
