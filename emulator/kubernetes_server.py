"""The fake Kubernetes API server: HTTPS on loopback, own CA, bearer tokens. In: requests of the Lambdas, of
kubectl, of the kubernetes client. Out: what `kubernetes_api` answers, and a log of who asked for what.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import certificates, eks_token
from .kubernetes import KubernetesState
from .kubernetes_access import ADMINISTRATORS, ClusterAccess
from .kubernetes_api import ApiRequest, KubernetesApi, StatusError
from .names import LOOPBACK
from .timers import Timers


class KubernetesServer:
    """Serves a state; close it to free the port. `requests` is the audit log.

    `access` holds the rules, `groups` who is in which group: access key id -> groups, as access entries say.
    """

    def __init__(self, state: KubernetesState, *, cluster: str, secret_key: str, folder: Path) -> None:
        self.access = ClusterAccess()
        self.api, self.cluster = KubernetesApi(state, self.access), cluster
        self.groups: dict[str, tuple[str, ...]] = {"admin": (ADMINISTRATORS,)}
        self.requests: list[ApiRequest] = []
        self.admin_token = secrets.token_urlsafe(24)
        self._accounts: dict[str, str] = {}  # service account's token -> its user name
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

    def service_account(self, namespace: str, name: str, folder: Path) -> Path:
        """Write `token` and `ca.crt` as the kubelet mounts them into a pod of this account, into `folder`."""
        token, user = secrets.token_urlsafe(24), f"system:serviceaccount:{namespace}:{name}"
        self._accounts[token] = user
        self.groups[user] = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_bytes(self.authority)
        return folder

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
        if token in self._accounts:
            return self._accounts[token]
        try:
            user = eks_token.check(token, cluster=self.cluster, secret_key=self._secret_key)
        except eks_token.TokenError as e:
            raise StatusError(401, "Unauthorized", f"Unauthorized: {e}") from e
        if user not in self.groups:
            raise StatusError(401, "Unauthorized", f"Unauthorized: no access entry for {user}")
        return user


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
    def access(self) -> ClusterAccess:
        """The rules, as `kubectl apply` and `kubectl delete` change them."""
        return self.server.access

    def let_in(self, user: str, groups: Iterable[str]) -> None:
        """An access entry: who signs with this access key id is in these groups."""
        self.server.groups[user] = tuple(groups)

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: _HttpsServer

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent; `KubernetesServer.requests` is the log."""

    def handle_any(self) -> None:
        """Authenticate, log, answer."""
        owner = self.server.owner
        raw = self._body()
        try:
            try:
                user = owner.user_of(self.headers.get("Authorization", ""))
            except StatusError:
                owner.requests.append(self._request("", None))
                raise
            request = self._request(user, _parsed(raw))
            owner.requests.append(request)
            code, answer = owner.api.answer(request)
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

    def _body(self) -> bytes:
        """Of known length, or in chunks (RFC 9112, 7.1), as kubectl streams a file."""
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return found

    do_GET = do_PATCH = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

    def _request(self, user: str, body: Any) -> ApiRequest:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        content_type = self.headers.get("Content-Type") or ""
        groups = self.server.owner.groups.get(user, ())
        return ApiRequest(self.command, url.path, query, content_type, body, user, groups)


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


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        raise StatusError(400, "BadRequest", "the body is not JSON") from None
