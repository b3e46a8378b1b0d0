"""Every decision row with every answer that a person may give, walked by the synthesized machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from lambdas.domain.decision_table import TABLE
from lambdas.domain.incident import Action
from tests.events import builder
from training_agent.contract import Check, Finding, FindingKind, SecondConfirmation, Verdict

from .asl import Definition
from .fleet import JobRun
from .plant import Plant

DAYS = timedelta(days=3)


Made = Callable[[JobRun], Finding]


def pair(rank: int, verdict: Verdict, second: SecondConfirmation | None = None) -> Made:
    return lambda j: builder.pair(rank, verdict, j.seats, second)


def unnamed(kind: FindingKind, first: int = 2, last: int = 4, **more: Any) -> Made:
    return lambda j: Finding(kind, involved=j.seats[first:last], **more)


@dataclass(frozen=True)
class Case:
    """How a row is reached; `asks` says whether a person is asked before anything is destroyed."""

    row: str
    finding: Made
    asks: bool
    otherwise: str = "HANDED_TO_HUMAN"  # the end when nobody is asked
    check: str = "pass"  # how a deep health check ends
    held: bool = False  # nobody is named: the job is held, and a person is asked to let it resume
    contained: bool = True  # some node is cordoned at the end when nobody releases it


CASES = {
    "S1": Case("S1", unnamed(FindingKind.SOFTWARE), asks=False, contained=False),
    "N0": Case("N0", unnamed(FindingKind.NONFINITE, 3, 4, reproduced=True), asks=False, contained=False),
    "W1": Case("W1", lambda j: builder.weights(3, j.seats), asks=True),
    "W2": Case("W2", unnamed(FindingKind.WEIGHTS, 2, 6), asks=False),
    "C1": Case("C1", lambda j: builder.culprit(3, j.seats), asks=True),
    "C2": Case("C2", lambda j: builder.culprit(3, j.seats, majority=False), asks=True),
    "V1": Case("V1", pair(3, Verdict.PERSISTENT), asks=True),
    "V2 passes": Case("V2", pair(3, Verdict.TRANSIENT), asks=False, otherwise="RELEASED", contained=False),
    "V2 fails": Case("V2", pair(3, Verdict.TRANSIENT), asks=True, check="fail"),
    "V2 stuck": Case("V2", pair(3, Verdict.TRANSIENT), asks=False, check="stuck",
                    otherwise="HEALTHCHECK_STUCK"),
    "V2 never started": Case("V2", pair(3, Verdict.TRANSIENT), asks=False, check="never"),
    "V2 superseded": Case("V2", pair(3, Verdict.TRANSIENT), asks=False, check="superseded"),
    "V3 repeats": Case("V1", pair(3, Verdict.REPLAYER, SecondConfirmation.REPEATS), asks=True),
    "V3 agrees": Case(
        "V2", pair(3, Verdict.REPLAYER, SecondConfirmation.AGREES), asks=False, otherwise="RELEASED",
        contained=False,
    ),
    "V3 unknown": Case("V4", pair(3, Verdict.REPLAYER, SecondConfirmation.UNAVAILABLE), asks=False),
    "V4": Case("V4", pair(3, Verdict.UNATTRIBUTABLE), asks=False),
    "N1": Case(
        "N1",
        lambda j: Finding(FindingKind.NONFINITE, rank=3, place=j.seats[3], reproduced=False),
        asks=False,
    ),
    "R1": Case("R1", lambda j: Finding(FindingKind.REDUCED), asks=True, held=True),
    "X0": Case("X0", lambda j: Finding(FindingKind.CULPRIT), asks=True, held=True),
}  # fmt: skip
HELD = {"approve": "RELEASED", "keep": "REJECTED_KEPT", "release": "EXPIRED", "expire": "EXPIRED"}
ANSWERS = {
    "approve": "REPLACED",
    "keep": "REJECTED_KEPT",
    "release": "REJECTED_RELEASED",
    "expire": "EXPIRED",
}


def expected_end(case: Case, answer: str) -> str:
    """The terminal state that the table documents for this way into a row, and this answer."""
    return (HELD if case.held else ANSWERS)[answer] if case.asks else case.otherwise


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, definition: Definition) -> Plant:
    return Plant(monkeypatch, definition)


def test_every_row_of_the_table_is_among_the_cases() -> None:
    reached = {case.row for case in CASES.values()} | {"V3"}
    assert reached == {row.id for row in TABLE}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", CASES)
def test_each_row_and_answer_ends_where_the_table_says(plant: Plant, name: str, answer: str) -> None:
    case = CASES[name]
    suspect = plant.jobs[0].instances[1]
    plant.world.cluster.check_ends = case.check  # type: ignore[attr-defined]
    (incident,) = plant.alarm(plant.alarm_of(case.finding(plant.jobs[0]), check=Check.REPLAY))
    plant.pump()
    plant.advance(timedelta(hours=12), lambda: incident.id in plant.waiting())
    assert (incident.id in plant.waiting()) is case.asks
    if case.asks and answer != "expire":
        refused = case.held and answer == "release"  # no node is there to be released
        assert plant.human(incident.id, answer) == (400 if refused else 200)
    plant.later(timedelta(hours=1), plant.job_returns)
    plant.advance(DAYS)
    end = plant.incident(incident.id)
    expected = expected_end(case, answer)
    assert end.state.value == expected, plant.execution(incident.id)
    assert end.decided_rows[-1] == case.row
    assert plant.execution(incident.id).status == "SUCCEEDED"
    assert plant.violations() == []
    replaced = expected == "REPLACED"
    assert [i.instance_id for i in plant.watch.issued] == ([suspect] if replaced else [])
    assert plant.watch.calls["cluster.replace"] == (1 if replaced else 0)
    cordoned = [n.name for n in plant.world.kubernetes.nodes.values() if n.unschedulable]
    kept = case.contained and not case.held and expected not in ("REPLACED", "REJECTED_RELEASED", "RELEASED")
    assert bool(cordoned) is kept, cordoned
    if case.held:
        state = plant.world.quarantine.state(f"job#{plant.jobs[0].job.uid}")
        assert state == ("released" if expected == "RELEASED" else "held")
    assert not plant.world.incidents.gates and not plant.world.controls.locks


# Under NodeRecovery Automatic the check itself may replace the node, so that it is asked for first.
CHECKED = {
    "V2 passes": "RELEASED",
    "V2 fails": "REPLACED_BY_HYPERPOD",
    "V2 stuck": "HEALTHCHECK_STUCK",
    "V4": "HANDED_TO_HUMAN",
    "N1": "HANDED_TO_HUMAN",
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", CHECKED)
def test_a16_under_automatic_no_check_starts_unasked_and_nothing_is_replaced_twice(
    plant: Plant, name: str, answer: str
) -> None:
    case = CASES[name]
    facts = plant.world.cluster.facts
    plant.world.cluster.facts = replace(facts, node_recovery="Automatic")
    plant.world.cluster.check_ends = case.check  # type: ignore[attr-defined]
    (incident,) = plant.alarm(plant.alarm_of(case.finding(plant.jobs[0])))
    plant.advance(timedelta(hours=12), lambda: incident.id in plant.waiting())
    assert plant.incident(incident.id).asking is Action.DEEP_CHECK
    assert plant.watch.calls["cluster.start_health_check"] == 0
    if answer != "expire":
        assert plant.human(incident.id, answer) == 200
    plant.later(timedelta(hours=6), plant.job_returns)
    plant.advance(DAYS)
    expected = CHECKED[name] if answer == "approve" else ANSWERS[answer]
    assert plant.incident(incident.id).state.value == expected, plant.execution(incident.id)
    assert plant.watch.calls["cluster.start_health_check"] == (answer == "approve")
    assert plant.watch.calls["cluster.replace"] == 0
    assert plant.violations() == [] and not plant.open_incidents()
    assert not plant.world.incidents.gates and not plant.world.controls.locks
