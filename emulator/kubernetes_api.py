"""The fake Kubernetes API server: HTTPS on loopback, own CA, bearer tokens. In: requests of the Lambdas, of
kubectl, of the kubernetes client. Out: `KubernetesState` read and changed, answers as the real server gives
them.

Served: discovery, nodes (get, list, patch, put), pods (get, list, delete, eviction). Not served: watch,
create.
"""

from __future__ import annotations

import copy
import json
import secrets
import socket
import ssl
import threading
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import certificates, eks_token
from .kubernetes import KubernetesState, NotFoundError, Object
from .kubernetes_patch import PATCHES, PatchError, selected
from .names import LOOPBACK
from .timers import Timers


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request as it arrived, for tests that ask who did what; the token is not kept."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any
    user: str  # "iam" (EKS token), "admin" (the kubeconfig's token) or "" (refused)


class StatusError(Exception):
    """An answer other than success, as a v1 Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class KubernetesServer:
    """Serves a state; close it to free the port. `requests` is the audit log."""

    def __init__(self, state: KubernetesState, *, cluster: str, secret_key: str, folder: Path) -> None:
        self.state, self.cluster = state, cluster
        self.requests: list[ApiRequest] = []
        self.admin_token = secrets.token_urlsafe(24)
        self._secret_key = secret_key
        certificate = certificates.make()
        self.authority = certificate.authority
        pem = folder / "kubernetes.pem"
        pem.touch(mode=0o600)
        pem.write_bytes(certificate.certificate + certificate.key)
        self._server = _HttpsServer(self, pem)
        self.url = f"https://{LOOPBACK}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.05),
            name="emulator-k8s-api",
            daemon=True,
        )
        self._thread.start()

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig (JSON is YAML) for kubectl, with the administrator's token."""
        authority = path.with_suffix(".ca.pem")
        authority.write_bytes(self.authority)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "local", "cluster": {"server": self.url, "certificate-authority": str(authority)}}
            ],
            "users": [{"name": "admin", "user": {"token": self.admin_token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "admin"}}],
            "current-context": "local",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def close(self) -> None:
        """Stop listening and close every connection."""
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        self._thread.join(timeout=5)

    def user_of(self, authorization: str) -> str:
        """Who a bearer token stands for.

        Raises:
            StatusError: 401, for any other token.
        """
        token = authorization.removeprefix("Bearer ")
        if secrets.compare_digest(token.encode(), self.admin_token.encode()):
            return "admin"
        try:
            eks_token.check(token, cluster=self.cluster, secret_key=self._secret_key)
        except eks_token.TokenError as e:
            raise StatusError(401, "Unauthorized", f"Unauthorized: {e}") from e
        return "iam"

    def answer(self, request: ApiRequest) -> tuple[int, Object]:
        """Status code and object for an authenticated request.

        Raises:
            StatusError: everything that is not a success.
        """
        parts = [p for p in request.path.split("/") if p]
        if request.method == "GET" and request.path in DISCOVERY:
            return 200, DISCOVERY[request.path]
        if request.query.get("watch") in ("1", "true"):
            raise StatusError(400, "BadRequest", "the local Kubernetes serves no watch: list again instead")
        with self.state.lock:
            if parts[:3] == ["api", "v1", "nodes"]:
                return self._nodes(request, parts[3:])
            if parts == ["api", "v1", "pods"] and request.method == "GET":
                return 200, self._list("Pod", request, list(self.state.pods.values()))
            if parts[:3] == ["api", "v1", "namespaces"] and parts[4:5] == ["pods"]:
                return self._pods(request, parts[3], parts[5:])
        raise StatusError(404, "NotFound", f"the server could not find the requested resource {request.path}")

    def _nodes(self, request: ApiRequest, rest: list[str]) -> tuple[int, Object]:
        if not rest and request.method == "GET":
            return 200, self._list("Node", request, list(self.state.nodes.values()))
        if len(rest) != 1:
            raise StatusError(405, "MethodNotAllowed", "not served by the local Kubernetes")
        node = _found("nodes", self.state, "Node", rest[0])
        if request.method == "GET":
            return 200, node
        if request.method not in ("PATCH", "PUT"):
            raise StatusError(405, "MethodNotAllowed", "not served by the local Kubernetes")
        changed = _changed(node, request)
        _check_node(node, changed)
        return 200, changed if "dryRun" in request.query else self.state.put_node(changed)

    def _pods(self, request: ApiRequest, namespace: str, rest: list[str]) -> tuple[int, Object]:
        if not rest and request.method == "GET":
            pods = [p for (where, _), p in self.state.pods.items() if where == namespace]
            return 200, self._list("Pod", request, pods)
        if not rest:
            raise StatusError(405, "MethodNotAllowed", "not served by the local Kubernetes")
        pod = _found("pods", self.state, "Pod", (namespace, rest[0]))
        if request.method == "GET" and len(rest) == 1:
            return 200, pod
        evicting = request.method == "POST" and rest[1:] == ["eviction"]
        if not evicting and not (request.method == "DELETE" and len(rest) == 1):
            raise StatusError(405, "MethodNotAllowed", "not served by the local Kubernetes")
        options = (request.body or {}).get("deleteOptions") or {} if evicting else request.body or {}
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted not in (None, pod["metadata"]["uid"]):
            raise StatusError(
                409, "Conflict", f"the UID in the precondition ({wanted}) does not match the pod"
            )
        if evicting and rest[0] in self.state.eviction_blocked:
            raise StatusError(
                429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget."
            )
        if options.get("dryRun") or "dryRun" in request.query:
            return 200, pod
        pod = self.state.terminate_pod(rest[0], namespace=namespace)
        success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return (201, success) if evicting else (200, pod)

    def _list(self, kind: str, request: ApiRequest, objects: list[Object]) -> Object:
        labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        return {
            "kind": f"{kind}List",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": self.state.resource_version},
            "items": [o for o in objects if selected(o, labels, fields)],
        }


class LocalKubernetes(KubernetesState):
    """State and server in one: what the local cloud hands out as `kubernetes`."""

    def __init__(self, timers: Timers, *, cluster: str, secret_key: str, folder: Path) -> None:
        super().__init__(timers)
        self.server = KubernetesServer(self, cluster=cluster, secret_key=secret_key, folder=folder)

    @property
    def url(self) -> str:
        """Address of the API server."""
        return self.server.url

    @property
    def requests(self) -> list[ApiRequest]:
        """Every request so far."""
        return self.server.requests

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for kubectl; returns `path`."""
        return self.server.kubeconfig(path)

    def close(self) -> None:
        """Stop the server, then the delivery of changes."""
        self.server.close()
        super().close()


def _found(plural: str, state: KubernetesState, kind: str, key: Any) -> Object:
    try:
        return state.get(kind, key)
    except NotFoundError:
        name = key if isinstance(key, str) else key[1]
        raise StatusError(404, "NotFound", f'{plural} "{name}" not found') from None


def _changed(node: Object, request: ApiRequest) -> Object:
    if request.method == "PUT":
        wanted, changed = request.body, copy.deepcopy(request.body)
    else:
        patch = PATCHES.get(request.content_type.split(";")[0])
        if patch is None:
            raise StatusError(415, "UnsupportedMediaType", f"{request.content_type} is no patch format")
        wanted = request.body if isinstance(request.body, dict) else {}
        try:
            changed = patch(node, request.body)
        except PatchError as e:
            raise StatusError(422, "Invalid", f"the patch does not apply: {e}") from e
    meta = node["metadata"]
    if (wanted.get("metadata") or {}).get("resourceVersion") not in (None, meta["resourceVersion"]):
        text = f'Operation cannot be fulfilled on nodes "{meta["name"]}": the object has been modified; '
        raise StatusError(
            409, "Conflict", text + "please apply your changes to the latest version and try again"
        )
    return dict(changed)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        raise StatusError(400, "BadRequest", "the body is not JSON") from None


def _check_node(old: Object, new: Object) -> None:
    meta = new.get("metadata")
    if not isinstance(meta, dict) or meta.get("name") != old["metadata"]["name"]:
        raise StatusError(400, "BadRequest", "the name of the object does not match the name on the URL")
    for field in ("labels", "annotations"):
        values = meta.get(field) or {}
        if not all(isinstance(v, str) for v in values.values()):
            raise StatusError(422, "Invalid", f"metadata.{field}: values must be strings")
        meta[field] = values
    new["status"] = old["status"]  # a subresource: patches of the main object do not reach it
    meta["uid"], meta["creationTimestamp"] = old["metadata"]["uid"], old["metadata"]["creationTimestamp"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: _HttpsServer

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent; `KubernetesServer.requests` is the log."""

    def handle_any(self) -> None:
        """Authenticate, log, answer."""
        owner = self.server.owner
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            try:
                user = owner.user_of(self.headers.get("Authorization", ""))
            except StatusError:
                owner.requests.append(self._request("", None))
                raise
            request = self._request(user, _parsed(raw))
            owner.requests.append(request)
            code, answer = owner.answer(request)
        except StatusError as e:
            code = e.code
            answer = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            answer |= {"reason": e.reason, "message": e.message, "code": e.code}
        out = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    do_GET = do_PATCH = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

    def _request(self, user: str, body: Any) -> ApiRequest:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        content_type = self.headers.get("Content-Type") or ""
        return ApiRequest(self.command, url.path, query, content_type, body, user)


class _HttpsServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: KubernetesServer, pem: Path) -> None:
        self.owner = owner
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem)
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__((LOOPBACK, 0), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands on the connection's own thread, so that a silent client blocks nobody."""
        request.settimeout(10)
        try:
            with self._context.wrap_socket(request, server_side=True) as secured:
                with self._open_lock:
                    self._open.add(secured)
                try:
                    super().finish_request(secured, client_address)
                finally:
                    with self._open_lock:
                        self._open.discard(secured)
        except (OSError, ValueError):
            pass  # the client hung up or does not trust us: its own business

    def close_connections(self) -> None:
        """Shut idle keep-alive connections down; their threads close the sockets."""
        with self._open_lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


def _resource(name: str, kind: str, *, namespaced: bool, verbs: str, **more: Any) -> Object:
    singular = kind.lower() if "/" not in name else ""
    base = {"name": name, "singularName": singular, "namespaced": namespaced, "kind": kind}
    return base | {"verbs": verbs.split()} | more


_EVICTION = _resource(
    "pods/eviction", "Eviction", namespaced=True, verbs="create", group="policy", version="v1"
)
DISCOVERY: dict[str, Object] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _resource("nodes", "Node", namespaced=False, verbs="get list patch update", shortNames=["no"]),
            _resource("pods", "Pod", namespaced=True, verbs="get list delete", shortNames=["po"]),
            _EVICTION,
        ],
    },
}
