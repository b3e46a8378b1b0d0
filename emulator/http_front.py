"""API Gateway's HTTP API in front of the page's functions. In: HTTP on loopback. Out: payload format 2.0
for the function behind the matching route, and its answer as HTTP.

Only the template's routes exist; everything else is 404, as there. Form bodies arrive base64 encoded,
header names in lower case, cookies apart. Source: AWS's "Working with Lambda proxy integrations for HTTP
APIs".
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import signed_request
from .lambda_runtime import Outcome
from .names import ACCOUNT, LOOPBACK
from .plan import Route

TEXT_TYPES = ("application/json", "application/xml", "application/javascript")
MAX_BODY = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer, for tests; bodies are left out."""

    method: str
    path: str
    status: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back over HTTP."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class HttpFront:
    """Serves routes that are given later (`routes`), because the template needs the address first."""

    def __init__(self, invoke: Callable[[str, Any], Outcome], *, api_id: str = "local") -> None:
        self.routes: Sequence[Route] = ()
        self.api_id = api_id
        self.exchanges: list[Exchange] = []
        self._invoke = invoke
        self._server = _Server((LOOPBACK, 0), _Handler)
        self._server.front = self
        self.url = f"http://{LOOPBACK}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.05),
            name="emulator-http-api",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    def answer(self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
        """Route one request, call the function, translate its answer."""
        path = urllib.parse.urlsplit(target).path
        found = match(self.routes, method, path)
        if found is None:
            answer = _message(404, "Not Found")
        elif len(body) > MAX_BODY:
            answer = _message(413, "Request Entity Too Large")
        else:
            answer = self._call(*found, method, target, headers, body)
        self.exchanges.append(Exchange(method, path, answer.status))
        return answer

    def _call(
        self,
        route: Route,
        parameters: dict[str, str],
        method: str,
        target: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
    ) -> Answer:
        if not route.permitted:
            return _message(500, "Internal Server Error")
        event = payload(route, parameters, method, target, headers, body, api_id=self.api_id)
        if route.signed:
            try:
                caller = signed_request.caller(method, target, dict(headers), body)
            except signed_request.SignatureError:
                return _message(403, "Forbidden")
            event["requestContext"]["authorizer"] = {"iam": {"accountId": ACCOUNT, "userArn": caller}}
        return translate(self._invoke(route.function, event))


def match(routes: Sequence[Route], method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The most specific route for a request, and its path parameters (decoded)."""
    best: tuple[tuple[int, int], Route, dict[str, str]] | None = None
    parts = path.split("/")
    for route in routes:
        if route.method not in (method, "ANY"):
            continue
        wanted = route.path.split("/")
        if len(wanted) != len(parts):
            continue
        parameters, literal = {}, 0
        for want, part in zip(wanted, parts, strict=True):
            if want.startswith("{") and want.endswith("}") and part:
                parameters[want[1:-1]] = urllib.parse.unquote(part)
            elif want == part:
                literal += 1
            else:
                break
        else:
            rank = (literal, int(route.method != "ANY"))
            if best is None or rank > best[0]:
                best = (rank, route, parameters)
    return None if best is None else best[1:]


def payload(
    route: Route,
    parameters: Mapping[str, str],
    method: str,
    target: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    *,
    api_id: str,
) -> dict[str, Any]:
    """The event of payload format 2.0; members without content are absent, as AWS leaves them out."""
    url = urllib.parse.urlsplit(target)
    joined: dict[str, str] = {}
    cookies: list[str] = []
    for name, value in headers:
        if name.lower() == "cookie":
            cookies += [c.strip() for c in value.split(";") if c.strip()]
        else:
            key = name.lower()
            joined[key] = f"{joined[key]},{value}" if key in joined else value
    now = datetime.now(timezone.utc)
    host = joined.get("host", "")
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route.key,
        "rawPath": url.path,
        "rawQueryString": url.query,
        "headers": joined | {"x-forwarded-for": LOOPBACK, "x-forwarded-proto": "http"},
        "requestContext": {
            "accountId": ACCOUNT,
            "apiId": api_id,
            "domainName": host,
            "domainPrefix": host.split(".")[0],
            "http": {
                "method": method,
                "path": url.path,
                "protocol": "HTTP/1.1",
                "sourceIp": LOOPBACK,
                "userAgent": joined.get("user-agent", ""),
            },
            "requestId": str(uuid.uuid4()),
            "routeKey": route.key,
            "stage": "$default",
            "time": now.strftime("%d/%b/%Y:%H:%M:%S +0000"),
            "timeEpoch": int(now.timestamp() * 1000),
        },
        "isBase64Encoded": False,
    }
    if cookies:
        event["cookies"] = cookies
    if parameters:
        event["pathParameters"] = dict(parameters)
    if url.query:
        query: dict[str, str] = {}
        for key, value in urllib.parse.parse_qsl(url.query, keep_blank_values=True):
            query[key] = f"{query[key]},{value}" if key in query else value
        event["queryStringParameters"] = query
    if body:
        event |= _body(body, joined.get("content-type", ""))
    return event


def translate(outcome: Outcome) -> Answer:
    """HTTP for a function's answer: a structured one, or plain JSON with status 200; errors are 500."""
    if outcome.failed:
        return _message(500, "Internal Server Error")
    result = outcome.json()
    if not isinstance(result, dict) or "statusCode" not in result:
        return Answer(200, [("content-type", "application/json")], outcome.payload)
    text = result.get("body") or ""
    body = base64.b64decode(text) if result.get("isBase64Encoded") else str(text).encode()
    headers = [(str(k).lower(), str(v)) for k, v in (result.get("headers") or {}).items()]
    if not any(k == "content-type" for k, _ in headers):
        headers.append(("content-type", "text/plain;charset=UTF-8"))
    headers += [("set-cookie", str(c)) for c in result.get("cookies") or []]
    return Answer(int(result["statusCode"]), headers, body)


def _body(body: bytes, content_type: str) -> dict[str, Any]:
    kind = content_type.split(";")[0].strip().lower()
    if kind.startswith("text/") or kind in TEXT_TYPES:
        try:
            return {"body": body.decode(), "isBase64Encoded": False}
        except UnicodeDecodeError:
            pass
    return {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}


def _message(status: int, text: str) -> Answer:
    return Answer(status, [("content-type", "application/json")], json.dumps({"message": text}).encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    front: HttpFront


class _Handler(BaseHTTPRequestHandler):
    timeout = 60
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent; `HttpFront.exchanges` is the log."""

    def handle_any(self) -> None:
        """One request, one answer, then the connection closes."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.front.answer(self.command, self.path, list(self.headers.items()), body)
        self.send_response(answer.status)
        for name, value in answer.headers:
            if name not in ("content-length", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = handle_any  # noqa: N815
