"""An alarm as a Kubernetes Event on the pods of the named ranks: `kubectl describe pod` shows it.

In: an alarm, on the ranks that publish. Out: one `create events` per pod at the API server, with the pod's
own service account. Off by default, best effort: it needs the Role in `examples/hyperpod/pod-events.yaml`.
The event's name follows from the alarm, so that a second publisher or a later try makes no second one. Next:
`report.beside` runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import Alarm, delivery_key
from ..settings import AgentSettings
from ..spool import name_of
from .types import StepChecks

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where every pod finds token and authority
REASON = "SilentDataCorruption"
TIMEOUT_S = 3.0  # of each operation on the socket
MAX_PODS = 16
_MESSAGE_BYTES = 1024  # the API server takes no more
_CONFLICT = 409


@dataclass(frozen=True, slots=True)
class ApiServer:
    """How a pod reaches the API server; the token is read anew each time, since it is rotated."""

    url: str
    account: Path = ACCOUNT

    @classmethod
    def of_this_pod(cls, environ: Mapping[str, str] | None = None, account: Path = ACCOUNT) -> ApiServer:
        """From KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which Kubernetes sets."""
        env = os.environ if environ is None else environ
        host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", account)

    def create(self, namespace: str, event: Mapping[str, Any]) -> None:
        """POST one event; one of the same name is as good.

        Raises
        ------
        OSError: no token, not reached, not allowed (`urllib.error.HTTPError` with the code).
        """
        token = (self.account / "token").read_text().strip()
        trust = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        request = urllib.request.Request(  # noqa: S310 - https by construction
            f"{self.url}/api/v1/namespaces/{namespace}/events",
            json.dumps(event).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
            method="POST",
        )
        # the API server is inside the cluster: a proxy for the outside world must not get the token
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        try:
            with direct.open(request, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as e:
            with e:
                if e.code != _CONFLICT:
                    raise OSError(f"HTTP {e.code}: {e.read(200)!r}") from None


class PodEvents:
    """See `report.beside.Sink`."""

    name = "the pods' events"

    def __init__(self, settings: AgentSettings, server: ApiServer | None = None) -> None:
        self._settings = settings
        self._server = server or ApiServer.of_this_pod()
        self._lock = threading.Lock()
        self._waiting: list[dict[str, Any]] = []

    def progress(self, step: int, checks: StepChecks) -> None:
        """Healthy steps are no event."""

    def alarm(self, alarm: Alarm) -> None:
        """Note an alarm."""
        with self._lock:
            self._waiting = events_of(alarm, self._settings)

    def send(self) -> None:
        """Create what waits; what fails waits for the next call, and keeps no other pod from its event.

        Raises
        ------
        OSError: see `ApiServer.create`; the last one.
        """
        with self._lock:
            waiting = list(self._waiting)
        failed: OSError | None = None
        for event in waiting:
            try:
                self._server.create(event["metadata"]["namespace"], event)
            except OSError as e:
                failed = e
                continue
            with self._lock:
                self._waiting.remove(event)
        if failed is not None:
            raise failed


def events_of(alarm: Alarm, settings: AgentSettings) -> list[dict[str, Any]]:
    """One core/v1 Event per pod: those of the named ranks, else the pod of this process."""
    places = [f.place for f in alarm.findings if f.place is not None]
    pods = {p.pod_name: p.pod_uid for p in places if p.pod_name}
    if not pods and settings.pod_name:
        pods = {settings.pod_name: settings.pod_uid}
    return [_event(alarm, settings, name, uid) for name, uid in list(pods.items())[:MAX_PODS]]


def _event(alarm: Alarm, settings: AgentSettings, pod: str, uid: str | None) -> dict[str, Any]:
    ranks = ", ".join(str(f.rank) for f in alarm.findings if f.place and f.place.pod_name == pod)
    who = f"names rank {ranks} in this pod" if ranks else "names no pod"
    first, last = alarm.suspect_window
    text = (
        f"SDC check {alarm.check.value} at step {alarm.step} of job {alarm.job.name} {who}; suspect window "
        f"{first} to {last}; alarm {delivery_key(alarm)}, attempt {alarm.job.attempt}"
        + (f"; kernels {alarm.kernels}" if alarm.kernels else "")
    )
    moment = alarm.time.partition(".")[0].removesuffix("Z") + "Z"  # metav1.Time has whole seconds
    namespace = alarm.job.namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod[:200]}.sdc-{_short(name_of(alarm))}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": namespace,
            "name": pod,
            **({"uid": uid} if uid else {}),
        },
        "reason": REASON,
        "message": text.encode()[:_MESSAGE_BYTES].decode(errors="ignore"),
        "type": "Warning",
        "source": {"component": "training-sdc-agent", "host": settings.node},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "reportingComponent": "training.sdc/agent",
        "reportingInstance": settings.pod_name or settings.node,
    }


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
