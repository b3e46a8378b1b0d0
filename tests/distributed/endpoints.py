"""AWS in trouble, one path per kind of trouble: what a publisher meets. In: HTTP. Out: answers, or none.

`<url>/<kind>/` is an endpoint of boto3. What each kind took is in `events`.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.patience import PATIENCE_S

SLOW_S = 3.0
KINDS = ("well", "slow", "hole", "5xx", "throttled", "partial", "expired")


class TroubledAws:
    """Serves until the `with` block ends."""

    def __init__(self) -> None:
        self.events: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.troubled = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> TroubledAws:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)

    def environment(self, kind: str) -> dict[str, str]:
        """Variables of a job whose AWS is in this kind of trouble."""
        urls = {"refused": "http://127.0.0.1:9", "dns": "http://no-such-host.invalid"}
        keys = {} if kind == "credentials" else {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        return {
            "AWS_ENDPOINT_URL": urls.get(kind, f"{self.url}/{kind}/"),
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "NO_PROXY": "*",
            **keys,
        }


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def do_POST(self) -> None:
        aws: TroubledAws = self.server.troubled  # type: ignore[attr-defined]
        kind = self.path.strip("/").split("/")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        putting = "PutEvents" in self.headers.get("X-Amz-Target", "")
        if kind == "hole":
            aws.over.wait(PATIENCE_S)
            return None
        if kind == "slow":
            time.sleep(SLOW_S - 0.5 if putting else 0.1)  # the client's patience is 3 s
        if kind == "5xx":
            return self._answer(503, {"message": "unavailable"})
        if kind in ("throttled", "expired"):
            code = {"throttled": "ThrottlingException", "expired": "ExpiredTokenException"}[kind]
            return self._answer(400, {"__type": code, "message": "no"})
        if not putting:
            return self._answer(200, {})
        entries = json.loads(body)["Entries"]
        if kind == "partial":
            failed = [{"ErrorCode": "InternalFailure", "ErrorMessage": "no"} for _ in entries]
            return self._answer(200, {"FailedEntryCount": len(failed), "Entries": failed})
        aws.events[kind] += entries
        taken = [{"EventId": str(n)} for n in range(len(entries))]
        return self._answer(200, {"FailedEntryCount": 0, "Entries": taken})

    def _answer(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            return  # the client has given up or was killed
