"""Job start: is the job really where it says it runs? Verified while the pods live, stored for `locate`.

In: an "SDC Node Registered" event. Out: a registration row, verified or with the reason why not,
and the mode row of the quarantine table: agents hold while it is missing, and not every alarm gets to be
contained.
"""

from __future__ import annotations

from dataclasses import dataclass

from training_agent.contract import (
    ContractError,
    DetailType,
    NodeRegistration,
    Place,
    decode,
    encode,
    instance_id_of,
)

from ..domain.errors import HaltedError
from ..domain.times import stamp
from ..domain.world import ClusterNode, Registered
from ..ports import Clock, Cluster, Controls, Kubernetes, Quarantine, Registrations
from ..settings import RegisterSettings
from .envelope import open_envelope
from .mode_row import tell_mode

JOB_UID_LABEL = "training.sdc/job-uid"
JOB_NAME_LABEL = "training.sdc/job-name"


@dataclass(frozen=True, slots=True)
class Needs:
    settings: RegisterSettings
    registrations: Registrations
    controls: Controls
    quarantine: Quarantine
    cluster: Cluster
    kubernetes: Kubernetes
    clock: Clock


def run(needs: Needs, body: str) -> str:
    """Store one node's registration; returns one word for the log.

    Raises:
        RetryableError: Kubernetes, HyperPod or the table did not answer; the queue delivers again.
    """
    try:
        envelope = open_envelope(body, DetailType.NODE_REGISTERED)
        registration = decode(NodeRegistration, envelope.detail)
    except ContractError as e:
        return f"rejected: {e}"
    if envelope.replayed:
        return "rejected: replayed from an archive"
    if registration.cluster != needs.settings.cluster_name:
        return "rejected: another cluster"
    node, reason = _verify(needs, registration)
    needs.registrations.put(
        Registered(
            job_uid=registration.job.uid,
            attempt=registration.job.attempt,
            node=registration.node,
            text=encode(registration),
            verified=reason == "",
            reason=reason,
            launch_time=node.launch_time if node else None,
            group=node.group if node else None,
            stored_at=stamp(needs.clock.now()),
        )
    )
    told = _tell_mode(needs)
    return ("verified" if reason == "" else f"unverified: {reason}") + told


def _tell_mode(needs: Needs) -> str:
    """A mode that cannot be read stays unwritten, and the registration counts all the same."""
    try:
        tell_mode(needs)
    except HaltedError as e:
        return f"; {e}"
    return ""


def _verify(needs: Needs, registration: NodeRegistration) -> tuple[ClusterNode | None, str]:
    """The HyperPod node and "", or the first thing that does not hold."""
    instance_id = instance_id_of(registration.node)
    if instance_id is None or registration.instance_id != instance_id:
        return None, "the node name carries no HyperPod instance id, or another one than claimed"
    node = next((n for n in needs.cluster.nodes() if n.instance_id == instance_id), None)
    if node is None:
        return None, f"instance {instance_id} is not in the cluster"
    if not registration.places:
        return node, "no rank is registered"
    for place in registration.places:
        reason = _verify_place(needs, registration, place)
        if reason:
            return node, reason
    return node, ""


def _verify_place(needs: Needs, registration: NodeRegistration, place: Place) -> str:
    if place.node != registration.node or place.instance_id != registration.instance_id:
        return f"rank {place.rank} is registered with another node"
    if place.pod_name is None or place.pod_uid is None:
        return f"rank {place.rank} names no pod"
    pod = needs.kubernetes.pod(registration.job.namespace, place.pod_name)
    if pod is None or pod.uid != place.pod_uid:
        return f"the pod of rank {place.rank} does not exist"
    if pod.node != registration.node:
        return f"the pod of rank {place.rank} runs on another node"
    if pod.labels.get(JOB_UID_LABEL) != registration.job.uid:
        return f"the pod of rank {place.rank} belongs to another job"
    account = f"{pod.namespace}/{pod.service_account}"
    if account not in needs.settings.accounts:
        return f"the pod of rank {place.rank} runs as {account}, which is no service account of training"
    return ""
