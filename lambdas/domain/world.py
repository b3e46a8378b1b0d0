"""What stores, HyperPod and Kubernetes answer, as values: `ports` and the steps speak in them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delivery:
    """The newest incident that a delivery key opened for a node."""

    incident_id: str
    sequence: int
    attempt: int


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """What happened before on an instance or GPU, or for a job."""

    subject: str
    incident_id: str
    what: str  # decision row, or the node for a job's history
    at: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A stored registration; `verified` says whether Kubernetes and HyperPod agreed."""

    job_uid: str
    attempt: int
    node: str
    text: str  # the registration's canonical JSON
    verified: bool
    reason: str  # why not, "" when verified
    launch_time: str | None
    group: str | None
    stored_at: str


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One row of ListClusterNodes."""

    instance_id: str
    group: str
    status: str
    launch_time: str


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What DescribeCluster says that matters here."""

    node_recovery: str  # "Automatic" (HyperPod's default) or "None"
    on_start_checks: dict[str, tuple[str, ...]]  # by group: are newcomers screened?
    karpenter: bool = False  # nodes come and go with the demand of pods
    complete: frozenset[str] = frozenset()  # groups that have as many instances as they are meant to


@dataclass(frozen=True, slots=True)
class ReplaceAnswer:
    """Answer of BatchReplaceClusterNodes for one id: accepted, or the error code of `Failed[]`."""

    accepted: bool
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class KubeNode:
    name: str
    uid: str
    resource_version: str
    unschedulable: bool
    annotations: dict[str, str]
    labels: dict[str, str]
    set_by_us: bool = False  # `unschedulable`: by the pipeline, and by nobody since


@dataclass(frozen=True, slots=True)
class KubePod:
    namespace: str
    name: str
    uid: str
    node: str | None
    labels: dict[str, str]
    leaving: bool  # has a deletion timestamp, or has ended
    started_at: str | None = None
    service_account: str = ""
