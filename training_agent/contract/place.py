"""Where a rank runs. Comes from the environment of its pod, goes into registrations and findings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .names import INSTANCE_ID_PATTERN, NODE_NAME_PREFIX


def instance_id_of(node_name: str) -> str | None:
    """Return the EC2 instance id inside a HyperPod node name, or None when the name carries none.

    HyperPod EKS node names are ``hyperpod-<instance id>``; botocore does not check ids, so this does.
    """
    candidate = node_name.removeprefix(NODE_NAME_PREFIX)
    # fullmatch: `$` alone would accept a trailing line break
    return candidate if re.fullmatch(INSTANCE_ID_PATTERN, candidate) else None


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's seat: node, instance, GPU."""

    rank: int  # global rank, from 0
    local_rank: int  # on its node, from 0
    node: str  # Kubernetes node name
    instance_id: str | None  # None when the node name is not HyperPod's
    gpu_uuid: str | None  # "GPU-..." as the driver prints it; None when unknown
    pod_name: str | None = None
    pod_uid: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """The job as the pipeline knows it: `uid` is unique for ever, `attempt` counts common starts from 1."""

    name: str
    uid: str
    attempt: int = 1
    namespace: str = "default"
