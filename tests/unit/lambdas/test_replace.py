"""The one destructive call: a matching approval, the same world, once, within mode and budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from lambdas.domain.approval import Action, Answer, ApprovalState
from lambdas.domain.errors import OutcomeUnknownError, RefusedError, ThrottledError
from lambdas.domain.incident import Incident, State
from lambdas.domain.policy import Control
from lambdas.domain.world import ReplaceAnswer
from tests.events import builder
from training_agent.contract import Mode

from .drive import Driver
from .fakes import START

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"


def calls(driver: Driver) -> int:
    return sum(1 for name, _ in driver.world.cluster.calls if name == "replace")


def row(driver: Driver, **changes: object) -> None:
    """Somebody edits the approval's row."""
    (key,) = driver.world.approvals.rows
    driver.world.approvals.rows[key] = replace(driver.world.approvals.rows[key], **changes)  # type: ignore[arg-type]


GUARDS: dict[str, Callable[[Driver], object]] = {
    "t11 pending row": lambda d: row(d, state=ApprovalState.PENDING, answer=None),
    "rejected row": lambda d: row(d, answer=Answer.KEEP),
    "expired row": lambda d: row(d, state=ApprovalState.EXPIRED),
    "no row": lambda d: d.world.approvals.rows.clear(),
    "t6 row of another instance": lambda d: row(d, instance_id=builder.INSTANCES[0]),
    "row of another incident": lambda d: row(d, incident_id="other"),
    "row of another action": lambda d: row(d, action=Action.DEEP_CHECK),
    "breaker": lambda d: setattr(d.world.controls, "breaker_reason", "over budget"),
    "row of other evidence": lambda d: row(d, evidence_hash="0" * 64),
    "approval too old": lambda d: setattr(d.world.clock, "at", START + timedelta(hours=3)),
    "kill switch": lambda d: setattr(d.world.controls, "control", Control(None, kill_switch=True)),
    "lowered mode": lambda d: setattr(d.world.controls, "control", Control(Mode.CONTAIN, kill_switch=False)),
    "not Running": lambda d: d.world.cluster.set_status(SUSPECT, "SystemUpdating"),
    "gone": lambda d: d.world.cluster.members.pop(SUSPECT),
    "launched again": lambda d: d.world.cluster.members.update(
        {SUSPECT: replace(d.world.cluster.members[SUSPECT], launch_time="2026-01-01T00:10:20.000000Z")}
    ),
    "another group": lambda d: d.world.cluster.members.update(
        {SUSPECT: replace(d.world.cluster.members[SUSPECT], group="cpu")}
    ),
    "uncordoned by hand": lambda d: d.world.kubernetes.change(NODE, unschedulable=False),
    "cordoned by somebody else": lambda d: d.world.kubernetes.change(NODE, annotations={}),
    "budget of the day": lambda d: d.world.controls.replaced["gpu"].update(a=START, b=START),
    "t20 edited alarm": lambda d: d.world.incidents.alarms.update(
        dict.fromkeys(d.world.incidents.alarms, "{}")
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_does_not_hold_stops_the_call(driver: Driver, approved: Incident, guard: str) -> None:
    GUARDS[guard](driver)
    assert driver.step("replace", approved)["outcome"] == "human"
    assert calls(driver) == 0


def test_with_every_guard_holding_it_is_called_once(driver: Driver, approved: Incident) -> None:
    assert driver.step("replace", approved)["outcome"] == "replaced"
    assert driver.step("replace", approved)["outcome"] == "replaced"
    assert driver.world.cluster.calls == [("replace", SUSPECT)]


def test_the_action_is_bound_too(driver: Driver) -> None:
    assert [a.value for a in Action] == ["replace", "deep_check", "release"]


def test_the_hourly_slot_waits_and_frees_the_lock(driver: Driver, approved: Incident) -> None:
    driver.setting("REPLACEMENTS_PER_HOUR", "1")
    driver.world.controls.replaced["gpu"]["other"] = START
    assert driver.step("replace", approved)["outcome"] == "busy"
    assert not driver.world.controls.locks and calls(driver) == 0


def test_a19_no_answer_is_never_called_again_and_the_world_tells(driver: Driver, approved: Incident) -> None:
    driver.world.cluster.on_replace = OutcomeUnknownError("read timeout")
    assert "ISSUED_UNKNOWN" in driver.step("replace", approved)["story"]
    assert "ISSUED_UNKNOWN" in driver.step("replace", approved)["story"]
    assert calls(driver) == 1
    driver.world.cluster.swap(SUSPECT)  # it had been carried out
    assert driver.step("verify", approved)["outcome"] == "verified"


def test_a19_an_unknown_outcome_that_never_shows_ends_with_a_human(
    driver: Driver, approved: Incident
) -> None:
    driver.world.cluster.on_replace = OutcomeUnknownError("read timeout")
    driver.play(approved, "replace")
    assert driver.world.incidents.get(approved.id).state is State.REPLACEMENT_DEGRADED
    assert calls(driver) == 1
    assert "Look at the cluster before you act" in " ".join(driver.world.mail.sent[-1][2].split())
    assert not driver.world.controls.locks


def test_a20_a_crash_after_the_call_is_reconciled(driver: Driver, approved: Incident) -> None:
    driver.killed("replace", approved, driver.world.incidents, "conclude")
    assert driver.step("replace", approved)["outcome"] == "replaced"
    assert calls(driver) == 1


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("InstanceIdNotFound", "human"),
        ("InstanceIdInUse", "busy"),
        ("InvalidInstanceStatus", "busy"),
        ("InternalServerError", "reopened"),
        ("SomethingNew", "human"),
    ],
)
def test_a24_each_code_of_failed(driver: Driver, approved: Incident, code: str, outcome: str) -> None:
    driver.world.cluster.on_replace = ReplaceAnswer(False, code, "no")
    assert driver.step("replace", approved)["outcome"] == outcome
    assert calls(driver) == 1
    assert all(instance == SUSPECT for _, instance in driver.world.cluster.calls)


def test_a24_busy_codes_are_bounded_and_each_round_checks_everything_again(
    driver: Driver, approved: Incident
) -> None:
    driver.world.cluster.on_replace = ReplaceAnswer(False, "InstanceIdInUse", "no")
    driver.play(approved, "replace")
    assert driver.world.incidents.get(approved.id).state is State.HANDED_TO_HUMAN
    assert calls(driver) == 5
    assert len(driver.world.controls.replaced["gpu"]) == 1  # refusals do not eat up the budget


def test_a24_refused_then_accepted(driver: Driver, approved: Incident) -> None:
    driver.world.cluster.on_replace = ThrottledError("ThrottlingException")
    assert driver.step("replace", approved)["outcome"] == "busy"
    driver.world.cluster.on_replace = ReplaceAnswer(accepted=True)
    assert driver.step("replace", approved)["outcome"] == "replaced"


def test_a24_a_refused_request_goes_to_a_human(driver: Driver, approved: Incident) -> None:
    driver.world.cluster.on_replace = RefusedError("AccessDenied", "AccessDeniedException")
    assert driver.step("replace", approved)["outcome"] == "human"
    assert "Nothing was or will be replaced" not in str(driver.world.mail.sent)


def test_mode_and_kill_switch_are_read_after_the_world_right_before_the_call(
    driver: Driver, approved: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = driver.world.kubernetes.node

    def node_then_halt(name: str) -> object:
        driver.world.controls.control = Control(None, kill_switch=True)
        return node(name)

    monkeypatch.setattr(driver.world.kubernetes, "node", node_then_halt)
    assert driver.step("replace", approved)["outcome"] == "human"
    assert calls(driver) == 0
