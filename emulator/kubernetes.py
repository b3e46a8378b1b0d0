"""State of the fake Kubernetes cluster: nodes and pods. In: `kubernetes_api` (HTTPS), `hyperpod`, the fake of
the training operator. Out: a stream of changes to those who asked for it.

Objects are the JSON of the real API. Every write gets a new resourceVersion; a write that names an old one is
a conflict. Changes are delivered on one thread, in order, after the write: a callback may call back.
"""

from __future__ import annotations

import copy
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .kubernetes_objects import (
    Object,
    follow_unschedulable,
    gpus_asked,
    node_object,
    now,
    own_unschedulable,
    place,
    pod_object,
)
from .timers import Timers

log = logging.getLogger(__name__)

GRACE_SECONDS = 30.0  # from an eviction or a delete until the pod is gone, scaled


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch delivers: `action` is ADDED, MODIFIED or DELETED, `kind` Node or Pod."""

    action: str
    kind: str
    object: Object

    @property
    def name(self) -> str:
        """metadata.name of the object."""
        return str(self.object["metadata"]["name"])


class NotFoundError(KeyError):
    """No such node or pod."""


class ExistsError(ValueError):
    """There is an object of that name."""


class KubernetesState:
    """Nodes and pods, with the few controllers that the pipeline can notice.

    `nodes` and `pods` are snapshots (copies); pods are keyed by (namespace, name).
    """

    def __init__(self, timers: Timers) -> None:
        self.lock = threading.RLock()
        self.eviction_blocked: set[str] = set()  # pod names that a disruption budget protects
        self._timers = timers
        self._nodes: dict[str, Object] = {}
        self._pods: dict[tuple[str, str], Object] = {}
        self._events: dict[tuple[str, str], Object] = {}
        self._version = 1000
        self._callbacks: list[Callable[[Change], None]] = []
        self._changes: queue.Queue[Change | None] = queue.Queue()
        self._watcher = threading.Thread(target=self._deliver, name="emulator-k8s-watch", daemon=True)
        self._watcher.start()

    @property
    def nodes(self) -> dict[str, Object]:
        """Name -> node object."""
        with self.lock:
            return copy.deepcopy(self._nodes)

    @property
    def pods(self) -> dict[tuple[str, str], Object]:
        """(namespace, name) -> pod object."""
        with self.lock:
            return copy.deepcopy(self._pods)

    @property
    def resource_version(self) -> str:
        """The version of the whole store, for lists."""
        return str(self._version)

    def on_change(self, callback: Callable[[Change], None]) -> None:
        """Call `callback` for every change from now on, one after the other, on one thread."""
        with self.lock:
            self._callbacks.append(callback)

    def close(self) -> None:
        """End the delivery of changes."""
        self._changes.put(None)
        self._watcher.join(timeout=5)

    def get(self, kind: str, key: Any) -> Object:
        """One object (a copy); `key` is a name for nodes, (namespace, name) for pods.

        Raises:
            NotFoundError: there is none.
        """
        with self.lock:
            store: dict[Any, Object] = self._nodes if kind == "Node" else self._pods
            if key not in store:
                raise NotFoundError(key)
            return copy.deepcopy(store[key])

    def add_node(
        self, name: str, *, labels: dict[str, str], annotations: dict[str, str], gpus: int, provider_id: str
    ) -> None:
        """A node joins, Ready and schedulable."""
        with self.lock:
            self._nodes[name] = node_object(name, labels, annotations, gpus, provider_id)
            self._changed("ADDED", "Node", self._nodes[name])

    def remove_node(self, name: str) -> None:
        """A node vanishes, and with it the pods that stood on it."""
        with self.lock:
            gone = self._nodes.pop(name, None)
            if gone is None:
                return
            self._changed("DELETED", "Node", gone)
            for key in [k for k, p in self._pods.items() if p["spec"].get("nodeName") == name]:
                self._changed("DELETED", "Pod", self._pods.pop(key))

    def label_node(self, name: str, labels: dict[str, str]) -> None:
        """Set labels, as HyperPod's health agent does; silently nothing when the node is gone."""
        with self.lock:
            if name in self._nodes:
                node = copy.deepcopy(self._nodes[name])
                node["metadata"]["labels"].update(labels)
                self.put_node(node)

    def put_node(self, node: Object, manager: str = "kubectl") -> Object:
        """Store what `manager` changed; taint and managed fields follow spec.unschedulable, as in the real
        API."""
        with self.lock:
            name = node["metadata"]["name"]
            if name not in self._nodes:
                raise NotFoundError(name)
            follow_unschedulable(node)
            own_unschedulable(self._nodes[name], node, manager)
            self._nodes[name] = node
            self._changed("MODIFIED", "Node", node)
            return copy.deepcopy(node)

    def create_pod(
        self,
        name: str,
        *,
        namespace: str = "default",
        node: str | None = None,
        labels: dict[str, str] | None = None,
        service_account: str = "default",
        gpus: int = 0,
        owner: tuple[str, str] = ("PyTorchJob", "job"),
    ) -> Object:
        """Create a pod: Running on `node`, or Pending without a place. `owner` is its controller's kind,
        name."""
        pod = pod_object(name, namespace, labels or {}, service_account, gpus, owner)
        with self.lock:
            if (namespace, name) in self._pods:
                raise ValueError(f"pod {namespace}/{name} exists already")
            self._pods[namespace, name] = pod
            if node is not None:
                place(pod, node)
            self._changed("ADDED", "Pod", pod)
            return copy.deepcopy(pod)

    def bind_pod(self, name: str, node: str, *, namespace: str = "default") -> Object:
        """Place a pending pod; it runs at once."""
        with self.lock:
            if (namespace, name) not in self._pods:
                raise NotFoundError((namespace, name))
            if node not in self._nodes:
                raise NotFoundError(node)
            place(self._pods[namespace, name], node)
            self._changed("MODIFIED", "Pod", self._pods[namespace, name])
            return copy.deepcopy(self._pods[namespace, name])

    def delete_pod(self, name: str, *, namespace: str = "default") -> None:
        """Remove a pod at once (no grace), when it is there."""
        with self.lock:
            pod = self._pods.pop((namespace, name), None)
            if pod is not None:
                self._changed("DELETED", "Pod", pod)

    def terminate_pod(self, name: str, *, namespace: str = "default") -> Object:
        """Begin a graceful end, as delete and eviction do: deletionTimestamp now, gone after the grace
        period."""
        with self.lock:
            if (namespace, name) not in self._pods:
                raise NotFoundError((namespace, name))
            pod = self._pods[namespace, name]
            if "deletionTimestamp" not in pod["metadata"]:
                pod["metadata"]["deletionTimestamp"] = now()
                pod["metadata"]["deletionGracePeriodSeconds"] = int(GRACE_SECONDS)
                self._changed("MODIFIED", "Pod", pod)
                uid = pod["metadata"]["uid"]
                self._timers.after(GRACE_SECONDS, lambda: self._finish(name, namespace, uid))
            return copy.deepcopy(pod)

    def create_event(self, namespace: str, event: Object) -> Object:
        """Store an Event.

        Raises:
            ExistsError: there is one of that name.
        """
        with self.lock:
            key = (namespace, event["metadata"]["name"])
            if key in self._events:
                raise ExistsError(f'events "{key[1]}" already exists')
            self._events[key] = copy.deepcopy(event)
            self._version += 1  # nobody watches events
            self._events[key]["metadata"]["resourceVersion"] = str(self._version)
            return copy.deepcopy(self._events[key])

    def events_in(self, namespace: str) -> list[Object]:
        """The Events of a namespace, oldest first."""
        with self.lock:
            return [copy.deepcopy(e) for (where, _), e in self._events.items() if where == namespace]

    def free_nodes(self, gpus: int) -> list[str]:
        """Names of schedulable nodes where a pod that asks for `gpus` fits now, as the scheduler sees it."""
        with self.lock:
            used: dict[str, int] = {}
            for pod in self._pods.values():
                where = pod["spec"].get("nodeName")
                used[where] = used.get(where, 0) + gpus_asked(pod)
            return [
                name
                for name, node in self._nodes.items()
                if not any(t["effect"] == "NoSchedule" for t in node["spec"].get("taints", []))
                and int(node["status"]["allocatable"]["nvidia.com/gpu"]) - used.get(name, 0) >= gpus
            ]

    def _finish(self, name: str, namespace: str, uid: str) -> None:
        with self.lock:
            pod = self._pods.get((namespace, name))
            if pod is not None and pod["metadata"]["uid"] == uid:
                self.delete_pod(name, namespace=namespace)

    def _changed(self, action: str, kind: str, obj: Object) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._changes.put(Change(action, kind, copy.deepcopy(obj)))

    def _deliver(self) -> None:
        while (change := self._changes.get()) is not None:
            for callback in list(self._callbacks):
                try:
                    callback(change)
                except Exception:
                    log.exception(
                        "a watcher of the fake Kubernetes failed on %s %s", change.action, change.name
                    )
