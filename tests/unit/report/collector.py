"""An OpenTelemetry collector's OTLP/HTTP receiver that can be told to misbehave. In: POSTs. Out: `bodies`."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.patience import PATIENCE_S


class Collector:
    """Listens until the `with` block ends."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        self.answer = b"{}"
        self.open = threading.Event()  # closed: connections are taken, nobody answers
        self.open.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.collector = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)

    def values(self, name: str) -> list[float]:
        """What came in under a metric's name, oldest first."""
        found = []
        for body in self.bodies:
            (resource,) = body["resourceMetrics"]
            (scope,) = resource["scopeMetrics"]
            for metric in scope["metrics"]:
                if metric["name"] == name:
                    (point,) = (metric.get("sum") or metric["gauge"])["dataPoints"]
                    found.append(float(point.get("asInt", point.get("asDouble"))))
        return found


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def do_POST(self) -> None:
        collector: Collector = self.server.collector  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        collector.open.wait(PATIENCE_S)
        if collector.status == 200:
            assert self.headers["Content-Type"] == "application/json"
            collector.paths.append(self.path)
            collector.bodies.append(json.loads(body))
        try:
            self.send_response(collector.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(collector.answer)))
            self.end_headers()
            self.wfile.write(collector.answer)
        except OSError:
            return  # the agent has given up
