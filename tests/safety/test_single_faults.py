"""Each call out of the process, hit by each fault once: a safe or correct end, at most one replacement.

The call sites are recorded on the happy paths, not listed by hand; their number is asserted, so that a new
call cannot escape the sweep without somebody noticing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from lambdas.domain.incident import Incident, State
from tests.events import builder
from training_agent.contract import Finding, FindingKind, Verdict

from .asl import Definition
from .plant import Plant
from .wires import Fault, Plan, Site

Story = Callable[[Plant], None]
SITES = 201
LONG = timedelta(days=2)


def answered(plant: Plant, decision: str) -> None:
    """C1, answered by a person who sends the form again when the page asks for it."""
    _open(plant, builder.culprit(3, plant.jobs[0].seats))
    plant.advance(timedelta(hours=1), lambda: bool(plant.waiting()))
    for _ in range(3):
        for incident_id in plant.waiting():
            plant.scan(incident_id)
            plant.human(incident_id, decision)
    _end(plant)


def silence(plant: Plant) -> None:
    _open(plant, builder.culprit(3, plant.jobs[0].seats))
    _end(plant)


def checked(plant: Plant, ends: str) -> None:
    """V2: the deep health check decides, or a person after it."""
    plant.world.cluster.check_ends = ends  # type: ignore[attr-defined]
    _open(plant, builder.pair(3, Verdict.TRANSIENT, plant.jobs[0].seats))
    plant.advance(timedelta(hours=8), lambda: bool(plant.waiting()))
    for incident_id in plant.waiting():
        plant.human(incident_id, "release")
    _end(plant)


def nobody_named(plant: Plant) -> None:
    _open(plant, Finding(FindingKind.NONFINITE, reproduced=True, involved=plant.jobs[0].seats[3:4]))
    _end(plant)


def held(plant: Plant) -> None:
    _open(plant, Finding(FindingKind.REDUCED))
    _end(plant)


def second_evidence(plant: Plant) -> None:
    """The same instance is accused at another step; the first alarm comes again, also after a restart."""
    first = plant.alarm_of(builder.culprit(3, plant.jobs[0].seats))
    plant.alarm(first)
    plant.pump()
    plant.alarm(plant.alarm_of(builder.culprit(2, plant.jobs[0].seats), step=40))
    plant.alarm(first)
    plant.job_returns()
    plant.alarm(plant.alarm_of(builder.culprit(3, plant.jobs[0].seats)))
    _end(plant)


def rejected(plant: Plant) -> None:
    plant.deliver("{}")
    plant.deliver(builder.event(plant.alarm_of(builder.culprit(3), cluster="another")))
    plant.deliver(builder.event(plant.alarm_of(builder.culprit(3), time="2025-12-31T00:00:00Z")))
    _end(plant)


def never_registered(plant: Plant) -> None:
    """Nothing is proven, so nothing is touched, and a human hears of it."""
    plant.world.registrations.rows.clear()
    _open(plant, builder.culprit(3, plant.jobs[0].seats))
    _end(plant)


def alarms_again(plant: Plant) -> None:
    """V2 is released; the job comes back, and the same alarm with it, before the incident has closed."""
    finding = builder.pair(3, Verdict.TRANSIENT, plant.jobs[0].seats)
    _open(plant, finding)
    closing = lambda: any(i.state is State.CLOSING for i in plant.open_incidents())  # noqa: E731
    plant.advance(timedelta(hours=8), closing)
    plant.job_returns()
    _open(plant, finding)
    plant.advance(timedelta(hours=1), lambda: bool(plant.waiting()))
    for incident_id in plant.waiting():
        plant.human(incident_id, "release")
    _end(plant)


def taken_over(plant: Plant) -> None:
    """Nobody is named on two GPUs of a node, then one is: decided on its own when the first has ended."""
    seats = plant.jobs[0].seats
    _open(plant, Finding(FindingKind.PAIR, verdict=Verdict.UNATTRIBUTABLE, involved=seats[2:4]))
    plant.alarm(plant.alarm_of(builder.culprit(3, seats), step=40))
    plant.advance(timedelta(hours=8), lambda: bool(plant.waiting()))
    for incident_id in plant.waiting():
        plant.human(incident_id, "approve")
    _end(plant)


STORIES: dict[str, Story] = {  # the short ones first: a site is tried in the first story that goes past it
    "rejected": rejected,
    "never registered": never_registered,
    "nobody named": nobody_named,
    "kept": lambda p: answered(p, "keep"),
    "nobody answers": silence,
    "second evidence": second_evidence,
    "job held": held,
    "approved": lambda p: answered(p, "approve"),
    "released by a person": lambda p: answered(p, "release"),
    "check passes": lambda p: checked(p, "pass"),
    "check fails": lambda p: checked(p, "fail"),
    "alarms again": alarms_again,
    "taken over": taken_over,
}


def _open(plant: Plant, finding: Finding) -> None:
    plant.alarm(plant.alarm_of(finding))
    plant.pump()


def _end(plant: Plant) -> None:
    plant.later(timedelta(hours=1), plant.job_returns)
    plant.advance(LONG)


def record_stories(definition: Definition) -> dict[str, list[Site]]:
    """Story -> the sites that it goes past."""
    found: dict[str, list[Site]] = {}
    for name in STORIES:
        with pytest.MonkeyPatch.context() as patched:
            plant = Plant(patched, definition)
            STORIES[name](plant)
            assert plant.violations() == [] and not plant.dead_letters
            found[name] = sorted(plant.wires.sites)
    return found


def record_sites(definition: Definition) -> dict[Site, str]:
    """Site -> the first story that goes past it."""
    found: dict[Site, str] = {}
    for name, sites in record_stories(definition).items():
        for site in sites:
            found.setdefault(site, name)
    return found


@pytest.fixture(scope="module")
def recorded(definition: Definition) -> dict[Site, str]:
    return record_sites(definition)


def test_the_number_of_call_sites_is_known(recorded: dict[Site, str]) -> None:
    listing = "\n".join(map(str, sorted(recorded)))
    assert len(recorded) == SITES, f"a call was added or taken away:\n{listing}"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", Fault)
def test_soak_any_single_fault_in_every_story(definition: Definition, fault: Fault) -> None:
    """Not in the first story alone that goes past a site, and at its first and its second call."""
    failures: list[str] = []
    for story, sites in record_stories(definition).items():
        for site, spared in ((site, spared) for site in sites for spared in (0, 1)):
            with pytest.MonkeyPatch.context() as patched:
                plant = Plant(patched, definition)
                plant.wires.plans.append(Plan(site, fault, spared))
                STORIES[story](plant)
                failures += [f"{site}, call {spared + 1} ({story}): {text}" for text in unsafe(plant)]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("fault", Fault)
def test_any_single_fault_leads_to_a_safe_or_correct_end(
    definition: Definition, recorded: dict[Site, str], fault: Fault
) -> None:
    failures: list[str] = []
    for site, story in sorted(recorded.items()):
        with pytest.MonkeyPatch.context() as patched:
            plant = Plant(patched, definition)
            plan = Plan(site, fault)
            plant.wires.plans.append(plan)
            STORIES[story](plant)
            failures += [f"{site} ({story}): {text}" for text in wrong(plant, plan)]
    assert not failures, "\n".join(failures)


def wrong(plant: Plant, plan: Plan) -> list[str]:
    """What is neither safe nor correct after a fault."""
    return [*unsafe(plant), *([] if plan.struck else ["the fault found no call"])]


def unsafe(plant: Plant) -> list[str]:
    """What must not be, whatever failed, once the reconciler has looked: it frees what has ended."""
    plant.wires.plans.clear()
    plant.clockwork("reconcile")
    found = list(plant.violations())
    if plant.watch.calls["cluster.replace"] > 1:
        found.append("BatchReplaceClusterNodes was called more than once")
    for incident in plant.world.incidents.rows.values():
        found += _ended(plant, incident)
    if not visible(plant):
        found.append("nobody can see that something went wrong")
    return found


def _ended(plant: Plant, incident: Incident) -> list[str]:
    runs = [e for e in plant.machine.executions.values() if e.incident_id == incident.id]
    if not incident.state.terminal:
        if any(e.status == "FAILED" for e in runs) or plant.dead_letters:
            return []  # open, and an alarm says so
        return [f"{incident.id} is {incident.state.value} for ever"]
    locks = [name for name, holder in plant.world.controls.locks.items() if holder == incident.id]
    gates = [name for name, holder in plant.world.incidents.gates.items() if holder == incident.id]
    return [f"{incident.id} is {incident.state.value} and holds {locks + gates}"] if locks + gates else []


def visible(plant: Plant) -> bool:
    """A retry, an alarm, or a mail; or nothing went wrong at all."""
    rows = plant.world.incidents.rows.values()
    troubled = any(i.state is State.HANDED_TO_HUMAN or not i.state.terminal for i in rows)
    alarms = plant.dead_letters or any(e.errors for e in plant.machine.executions.values())
    silent = any(i.state is State.EXPIRED and not i.synthetic for i in rows)
    if silent and not any("review expired" in subject for _, subject, _ in plant.world.mail.sent):
        return bool(alarms)
    return not troubled or bool(alarms) or bool(plant.world.mail.sent)
