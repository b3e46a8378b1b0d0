"""Touching a node: permission asked right before, ownership respected, read back after.

Used by `contain`, `confirm` and `resume`. A human's act wins: what somebody else cordoned is never
uncordoned.
"""

from __future__ import annotations

from typing import Protocol

from training_agent.contract import Mode

from ..domain import policy
from ..domain.errors import ConflictError, NeedsHumanError, PermanentError
from ..domain.incident import EffectState, Incident, State, Target
from ..domain.times import stamp
from ..domain.world import KubeNode, KubePod
from ..ports import Clock, Controls, Incidents, Kubernetes
from .outcome import CORDON
from .register import JOB_UID_LABEL

CORDONED_BY = "training.sdc/cordoned-by"
CORDONED_REASON = "training.sdc/cordoned-reason"
CORDONED_AT = "training.sdc/cordoned-at"
CONFLICTS = 4  # writes in between that one call rides out


class Deployed(Protocol):
    @property
    def mode(self) -> Mode: ...


class Permitted(Protocol):
    @property
    def settings(self) -> Deployed: ...
    @property
    def controls(self) -> Controls: ...


class Hands(Permitted, Protocol):
    @property
    def incidents(self) -> Incidents: ...
    @property
    def kubernetes(self) -> Kubernetes: ...
    @property
    def clock(self) -> Clock: ...


def permit(needs: Permitted, needed: Mode, effect: str) -> None:
    """Read mode and kill switch now; raise HaltedError when they forbid the effect."""
    policy.require(needs.settings.mode, needs.controls.read(), needed, effect)


def require_admission_policy(needs: Hands, target: Target) -> None:
    """Prove that the API server forbids us the label on which HyperPod replaces a node.

    "May patch nodes" would otherwise mean "may have nodes replaced", without budget and approval.

    Raises:
        NeedsHumanError: it would have let us, or the node is gone.
    """
    node = _node(needs, target)
    if not needs.kubernetes.refuses_health_label(node):
        raise NeedsHumanError(
            f"the API server would let the pipeline set the health label of {node.name}: the admission "
            "policy is not installed, so nothing was touched. Run: kubectl apply -f infra/eks_access/"
        )


def ours(node: KubeNode, incident: Incident) -> bool:
    """Is the node cordoned, by this incident, and by nobody since?

    A person who uncordons and cordons again leaves our annotation where it was; who set the field last
    tells the two apart.
    """
    return node.unschedulable and node.set_by_us and node.annotations.get(CORDONED_BY) == incident.id


def predecessor(needs: Hands, incident: Incident, target: Target) -> Incident | None:
    """The ended incident of ours whose cordon stands on the node, unless a person keeps it there."""
    node = _node(needs, target)
    by = node.annotations.get(CORDONED_BY, "")
    if not (node.unschedulable and node.set_by_us and by) or by == incident.id:
        return None
    try:
        former = needs.incidents.get(by)
    except PermanentError:
        return None
    kept = former.state is State.REJECTED_KEPT
    return former if former.state.terminal and not kept else None


def cordon(
    needs: Hands, incident: Incident, target: Target, reason: str, former: Incident | None = None
) -> bool:
    """Cordon and annotate, read back; False when somebody else had cordoned it before (respected).

    What the ended incident `former` left cordoned is taken over, if it is still its own.

    Raises:
        NeedsHumanError: the node is gone.
        ConflictError: others kept writing the node.
    """
    for _ in range(CONFLICTS):
        node = _node(needs, target)
        if node.unschedulable and not (former is not None and ours(node, former)):
            if not ours(node, incident):
                by = node.annotations.get(CORDONED_BY, "") if node.set_by_us else ""
                needs.incidents.audit(
                    incident.id,
                    "cordon",
                    f"respected: cordoned by {by or 'somebody else'}",
                    needs.clock.now(),
                )
            return ours(node, incident)
        permit(needs, Mode.CONTAIN, f"cordon of {target.node}")
        now = needs.clock.now()
        marks = {CORDONED_BY: incident.id, CORDONED_REASON: reason[:200], CORDONED_AT: stamp(now)}
        needs.incidents.intend(incident.id, CORDON + target.node, now)
        try:
            needs.kubernetes.patch_node(node, unschedulable=True, annotations=dict(marks))
        except ConflictError:
            continue
        if ours(_node(needs, target), incident):
            needs.incidents.conclude(incident.id, CORDON + target.node, "cordoned", needs.clock.now())
            return True
    raise ConflictError(f"{target.node} kept changing while it was being cordoned")


def uncordon(needs: Hands, incident: Incident, target: Target) -> str:
    """Take back our own cordon; says what was found when it is not ours any more.

    The node says whether there is something to take back: a containment that broke off may have set it again
    after the row of the last one was written.
    """
    # Evidence after a release contains the node once more: each decision's uncordon is an effect of its own.
    decision = incident.decided_on + incident.failures_seen
    name = f"uncordon:{target.node}" + (f"#{decision}" if decision else "")
    effect = needs.incidents.effect(incident.id, name)
    done = effect is not None and effect.state is EffectState.RESULT
    for _ in range(CONFLICTS):
        node = needs.kubernetes.node(target.node)
        if node is None:
            return f"{target.node} is gone"
        if not ours(node, incident):
            if done:
                return f"{target.node} was uncordoned"
            return f"{target.node} is not cordoned by this incident (any more): left as it is"
        permit(needs, Mode.CONTAIN, f"uncordon of {target.node}")
        marks: dict[str, str | None] = {CORDONED_BY: None, CORDONED_REASON: None, CORDONED_AT: None}
        needs.incidents.intend(incident.id, name, needs.clock.now())
        try:
            needs.kubernetes.patch_node(node, unschedulable=False, annotations=marks)
        except ConflictError:
            continue
        needs.incidents.conclude(incident.id, name, "uncordoned", needs.clock.now())
        return f"{target.node} was uncordoned"
    raise ConflictError(f"{target.node} kept changing while it was being uncordoned")


def evict_job(needs: Hands, incident: Incident, target: Target) -> tuple[int, tuple[str, ...]]:
    """Evict this job's pods from the node; (how many, pods of other jobs that were left alone)."""
    evicted, others = 0, []
    for pod in needs.kubernetes.pods_on(target.node):
        if pod.leaving or JOB_UID_LABEL not in pod.labels:
            continue
        if pod.labels[JOB_UID_LABEL] != incident.job.uid:
            others.append(f"{pod.namespace}/{pod.name}")
            continue
        permit(needs, Mode.CONTAIN, f"eviction of {pod.namespace}/{pod.name}")
        needs.incidents.audit(incident.id, "evict", f"{pod.namespace}/{pod.name}", needs.clock.now())
        needs.kubernetes.evict(pod)
        evicted += 1
    return evicted, tuple(others)


def job_pods(needs: Hands, incident: Incident, target: Target) -> tuple[KubePod, ...]:
    """Pods of the incident's job that are still on the node."""
    return tuple(
        p
        for p in needs.kubernetes.pods_on(target.node)
        if p.labels.get(JOB_UID_LABEL) == incident.job.uid and not p.leaving
    )


def _node(needs: Hands, target: Target) -> KubeNode:
    node = needs.kubernetes.node(target.node)
    if node is None:
        raise NeedsHumanError(f"{target.node} is gone from Kubernetes: nothing is left to contain")
    return node
