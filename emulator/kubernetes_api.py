"""What the fake Kubernetes API answers. In: an authenticated request and the state. Out: a status code and an
object, the state changed; `kubernetes_server` puts it on the wire. No sockets here.

Served: discovery, nodes (get, list, patch, put), pods (get, list, delete, eviction), events (create, list).
Not served: watch, any other create.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from .kubernetes import ExistsError, KubernetesState, NotFoundError
from .kubernetes_access import VERBS, ClusterAccess, DeniedError
from .kubernetes_discovery import DISCOVERY
from .kubernetes_objects import Object, check_event
from .kubernetes_patch import PATCHES, PatchError, selected


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request as it arrived, for tests that ask who did what; the token is not kept."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any
    user: str  # access key id (EKS token), "admin" (the kubeconfig's token) or "" (refused)
    groups: tuple[str, ...] = ()


class StatusError(Exception):
    """An answer other than success, as a v1 Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class KubernetesApi:
    """Answers requests about one state."""

    def __init__(self, state: KubernetesState, access: ClusterAccess) -> None:
        self.state, self.access = state, access

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
        try:
            return self._served(request, parts)
        except DeniedError as e:
            raise StatusError(e.code, e.reason, str(e)) from e

    def _served(self, request: ApiRequest, parts: list[str]) -> tuple[int, Object]:
        with self.state.lock:
            if parts[:3] == ["api", "v1", "nodes"]:
                return self._nodes(request, parts[3:])
            if parts == ["api", "v1", "pods"] and request.method == "GET":
                self._authorize(request, "pods", named=False)
                return 200, self._list("Pod", request, list(self.state.pods.values()))
            if parts[:3] == ["api", "v1", "namespaces"] and parts[4:5] == ["pods"]:
                return self._pods(request, parts[3], parts[5:])
            if parts[:3] == ["api", "v1", "namespaces"] and parts[4:] == ["events"]:
                return self._events(request, parts[3])
        raise StatusError(404, "NotFound", f"the server could not find the requested resource {request.path}")

    def _authorize(
        self, request: ApiRequest, resource: str, *, named: bool, namespace: str | None = None
    ) -> None:
        verb = "list" if request.method == "GET" and not named else VERBS[request.method]
        self.access.authorize(request.groups, verb, resource, request.user, namespace)

    def _events(self, request: ApiRequest, namespace: str) -> tuple[int, Object]:
        self._authorize(request, "events", named=False, namespace=namespace)
        if request.method == "GET":
            return 200, self._list("Event", request, self.state.events_in(namespace))
        if request.method != "POST":
            raise StatusError(405, "MethodNotAllowed", "not served by the local Kubernetes")
        try:
            return 201, self.state.create_event(namespace, check_event(request.body, namespace))
        except ValueError as e:
            conflict = isinstance(e, ExistsError)
            raise StatusError(
                409 if conflict else 422, "AlreadyExists" if conflict else "Invalid", str(e)
            ) from e

    def _nodes(self, request: ApiRequest, rest: list[str]) -> tuple[int, Object]:
        self._authorize(request, "nodes", named=bool(rest))
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
        self.access.admit(request.groups, "UPDATE", node, changed)
        if "dryRun" in request.query:
            return 200, changed
        return 200, self.state.put_node(changed, request.query.get("fieldManager", "OpenAPI-Generator"))

    def _pods(self, request: ApiRequest, namespace: str, rest: list[str]) -> tuple[int, Object]:
        self._authorize(request, "/".join(["pods", *rest[1:]]), named=bool(rest))
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
