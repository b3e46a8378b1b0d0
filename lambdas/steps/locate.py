"""Ranks -> node -> instance -> GPU, from the verified registration and a re-read launch time; then the gate.

In: an OPENING incident with claims. Out: proven targets and `contain`, "joined" when another open incident
holds the instance, "waiting" for a registration under way, or a human when anything is not provable. Touches
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from training_agent.contract import Alarm, Mode, NodeRegistration, Place, decode, instance_id_of

from ..domain import findings
from ..domain.decision_table import Contain, evaluate
from ..domain.drill import DRILL_INSTANCE, DRILL_NODE
from ..domain.errors import ConflictError, NeedsHumanError, UnavailableError, WorldChangedError
from ..domain.incident import Incident, State, Target
from ..domain.policy import Control
from ..domain.times import moment, stamp
from ..domain.world import ClusterNode, Registered
from ..ports import Bus, Clock, Cluster, Incidents, Registrations
from ..settings import LocateSettings
from .outcome import StepResult, alarm_of, amend, facts_of, findings_of, record

MAX_JOINED = (
    20  # evidence that is decided with; more of it is kept, decides nothing, and is let go in the end
)
WAIT_SECONDS = 15
GATE_WAIT_SECONDS = 60
MAX_GATE_WAITS = 60  # an hour: what names nobody ends at a human, or the reconciler ends it
MAX_WAITS = 8  # two minutes: an alarm can overtake the registration in the queues
CLOCK_SKEW = timedelta(minutes=10)  # a node's clock against AWS's


class _StillComing(UnavailableError):
    """The registration may be on its way: waited for by the state machine, whose retries are too short."""


@dataclass(frozen=True, slots=True)
class Needs:
    settings: LocateSettings
    incidents: Incidents
    registrations: Registrations
    cluster: Cluster
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    incident = needs.incidents.get(incident_id)
    if incident.state is State.JOINED:
        return StepResult("joined", "the evidence was appended to the open incident of this instance")
    if incident.state.terminal:  # an execution that was redriven, of an incident that has ended without it
        return StepResult("joined", f"it has ended as {incident.state.value}: nothing more is done")
    if incident.state is not State.OPENING:
        return StepResult("located", "located before")
    alarm = alarm_of(needs.incidents, incident)
    nodes = needs.registrations.nodes(incident.job.uid, incident.job.attempt)
    incident = replace(incident, nodes=nodes)
    try:
        targets = _prove(needs, incident, alarm)
    except _StillComing as e:
        record(needs, incident, incident.tried("locate"), str(e))
        return StepResult("waiting", str(e), WAIT_SECONDS)
    # Kept before the gate is taken: whoever closes this incident after a crash frees the right gate.
    located = record(needs, incident, replace(incident, targets=targets), "proven")
    holder = _take_gates(needs, located)
    if holder != incident.id:
        if _succeeds(needs, holder, located):
            story = f"incident {holder} suspects the node and names nobody: its end is waited for"
            record(needs, located, located.tried("gate"), story)
            return StepResult("waiting", story, GATE_WAIT_SECONDS)
        story = _join(needs, holder, located, alarm)
        record(needs, located, replace(located, let_go_at=stamp(needs.clock.now())).to(State.JOINED), story)
        return StepResult("joined", story)
    where = ", ".join(f"{t.node} (GPU {', '.join(t.gpu_uuids) or 'unknown'})" for t in targets) or "the job"
    story = f"ranks {', '.join(map(str, incident.ranks)) or 'none'} are on {where}"
    record(needs, located, located.to(State.LOCATED), story)
    return StepResult("located", story)


def _succeeds(needs: Needs, holder_id: str, located: Incident) -> bool:
    """Evidence that names a node is decided by itself: what names nobody learns of it, and ends soon."""
    holder = needs.incidents.get(holder_id)
    if located.node is None or holder.node is not None or located.tries.get("gate", 0) >= MAX_GATE_WAITS:
        return False

    def tell(row: Incident) -> Incident:
        _require_open(needs, row)
        full = located.id in row.joined or len(row.joined) >= MAX_JOINED
        return row if full else replace(row, joined=(*row.joined, located.id))

    amend(needs, holder_id, tell)
    return True


def _join(needs: Needs, holder_id: str, located: Incident, alarm: Alarm) -> str:
    """Hand the located evidence to the open incident, whose next step decides with it.

    The holder's row is written conditionally, so it cannot close in between without having seen this.
    """
    text, now = needs.incidents.alarm(located.id), needs.clock.now()
    earlier = needs.incidents.occurrences(located.id)  # what came in while it was on its way
    for key, attempt in ((located.delivery_key, alarm.job.attempt), *earlier):
        needs.incidents.append_evidence(holder_id, key, attempt, text, now)

    def add(holder: Incident) -> Incident:
        _require_open(needs, holder)
        # Whoever joined this one while it held a part of its gates comes along.
        new = [i for i in (located.id, *located.joined) if i not in holder.joined]
        joined = (*holder.joined, *new)[:MAX_JOINED]
        if joined == holder.joined:
            return holder
        targets = tuple(_with(t, located.targets) for t in holder.targets)
        return replace(holder, joined=joined, targets=targets)

    kept = located.id in amend(needs, holder_id, add).joined
    needs.incidents.audit(holder_id, "second evidence", f"incident {located.id}", now)
    does = "decides with" if kept else "keeps"
    return f"joined: incident {holder_id} is open for it and {does} this evidence"


def _require_open(needs: Needs, holder: Incident) -> None:
    """Whoever ended it may have died before it freed its gates.

    Raises:
        ConflictError: it has ended; the next try takes the gate.
    """
    if holder.state.terminal:
        free_gates(needs.incidents, holder)
        raise ConflictError(f"incident {holder.id} has ended: its gates are free now")


def _with(target: Target, others: tuple[Target, ...]) -> Target:
    """The same node with the GPUs and ranks that the second evidence accuses."""
    for other in others:
        if other.instance_id == target.instance_id:
            target = replace(
                target,
                ranks=tuple(sorted({*target.ranks, *other.ranks})),
                gpu_uuids=tuple(dict.fromkeys((*target.gpu_uuids, *other.gpu_uuids))),
            )
    return target


def gates_of(incident: Incident) -> tuple[str, ...]:
    """One open incident per instance, and per job when nobody is named; in one order for all."""
    job = () if incident.instance_id else (f"job#{incident.job.uid}",)
    return (*job, *sorted(f"instance#{t.instance_id}" for t in incident.targets))


def free_gates(incidents: Incidents, incident: Incident) -> None:
    """Those that it holds; what another has taken stays."""
    for gate in gates_of(incident):
        incidents.free_gate(gate, incident.id)


def _take_gates(needs: Needs, incident: Incident) -> str:
    """All of them, or none: the incident itself, or whoever holds the first that was not free."""
    taken: list[str] = []
    for gate in gates_of(incident):
        holder = needs.incidents.take_gate(gate, incident.id)
        if holder == incident.id:
            taken.append(gate)
            continue
        for mine in taken:
            needs.incidents.free_gate(mine, incident.id)
        return holder
    return incident.id


def _prove(needs: Needs, incident: Incident, alarm: Alarm) -> tuple[Target, ...]:
    if incident.synthetic:
        return (Target(DRILL_NODE, DRILL_INSTANCE, "drill", alarm.time, incident.ranks, (), True),)
    own = findings_of(alarm, incident)
    facts = facts_of(needs.incidents, incident, alarm, Mode.OBSERVE, Control(None, kill_switch=False))
    if incident.node is None and evaluate(own, facts).contain not in (Contain.CORDON, Contain.ISOLATE):
        return ()  # nothing on any node will be touched, so no node has to be proven
    by_node: dict[str, list[Place]] = {}
    for place in findings.places(own):
        by_node.setdefault(place.node, []).append(place)
    if not by_node:
        raise NeedsHumanError("the alarm accuses somebody and says not where: nothing was touched")
    members = {n.instance_id: n for n in needs.cluster.nodes()}
    return tuple(
        _prove_node(needs, incident, alarm, node, by_node[node], members) for node in sorted(by_node)
    )


def _prove_node(
    needs: Needs,
    incident: Incident,
    alarm: Alarm,
    node: str,
    claims: Sequence[Place],
    members: dict[str, ClusterNode],
) -> Target:
    registered = _registered(needs, incident, node)
    instance_id = instance_id_of(node)
    if instance_id is None:
        raise NeedsHumanError(f"{node} carries no HyperPod instance id")
    member = members.get(instance_id)
    if member is None:
        raise WorldChangedError(f"instance {instance_id} is not in the cluster any more")
    if registered.launch_time is None or moment(registered.launch_time) != moment(member.launch_time):
        raise WorldChangedError(f"instance {instance_id} was launched again since the job registered")
    if moment(alarm.time) + CLOCK_SKEW < moment(member.launch_time):
        raise WorldChangedError(f"the alarm is older than instance {instance_id}")
    registration = decode(NodeRegistration, registered.text)
    if registration.job.namespace != alarm.job.namespace:  # the replay's Job is offered there
        raise NeedsHumanError(f"the job registered on {node} from another namespace than the alarm names")
    seats = {p.rank: p for p in registration.places}
    gpus = []
    for claim in claims:
        seat = seats.get(claim.rank)
        if seat is None or seat.instance_id != instance_id:
            raise NeedsHumanError(f"rank {claim.rank} did not register on {node}")
        if claim.gpu_uuid is not None and claim.gpu_uuid != seat.gpu_uuid:
            raise NeedsHumanError(f"rank {claim.rank} registered another GPU than the alarm names")
        gpus.append(seat.gpu_uuid)
    return Target(
        node=node,
        instance_id=instance_id,
        group=member.group,
        launch_time=member.launch_time,
        ranks=tuple(c.rank for c in claims),
        gpu_uuids=tuple(g for g in gpus if g is not None),
        running_in_group=sum(m.group == member.group and m.status == "Running" for m in members.values()),
    )


def _registered(needs: Needs, incident: Incident, node: str) -> Registered:
    found = needs.registrations.get(incident.job.uid, incident.job.attempt, node)
    if found is None:
        if incident.tries.get("locate", 0) < MAX_WAITS:
            raise _StillComing(f"{node} has not registered yet for attempt {incident.job.attempt}")
        raise NeedsHumanError(f"the job never registered on {node} (attempt {incident.job.attempt})")
    if not found.verified:
        raise NeedsHumanError(f"the registration of {node} could not be verified: {found.reason}")
    return found
