"""When a deep health check may start, and that it starts once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lambdas.domain.errors import RefusedError, UnavailableError
from lambdas.domain.incident import CheckResult, DeepCheck, Incident
from lambdas.domain.policy import Control
from lambdas.steps.confirm import CHECK_LABEL, CHECK_LOCK, MAX_WAITS_FOR_START
from lambdas.steps.deep_check import MAX_UNSEEN_POLLS
from tests.events import builder
from training_agent.contract import Mode, Verdict

from .drive import Driver

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"


@pytest.fixture
def decided(driver: Driver) -> Incident:
    """A transient verdict, contained, about to be confirmed."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.TRANSIENT)))
    assert driver.play(incident, "locate", stop="confirm") == "confirm"
    return incident


def result(driver: Driver, incident: Incident) -> CheckResult:
    return driver.world.incidents.get(incident.id).deep_check.result


def test_a_check_starts_on_a_cordoned_node_and_is_seen_running(driver: Driver, decided: Incident) -> None:
    answer = driver.step("confirm", decided)
    assert (answer["outcome"], answer["wait_seconds"]) == ("waiting", 60)
    assert driver.world.cluster.calls == [("check", SUSPECT)]
    assert driver.world.controls.locks == {CHECK_LOCK: decided.id}


def test_no_check_while_the_jobs_pods_are_on_the_node(driver: Driver, decided: Incident) -> None:
    driver.add_pod("llama-tiny-1", "pod-late", SUSPECT)
    for _ in range(MAX_WAITS_FOR_START):
        assert driver.step("confirm", decided)["outcome"] == "waiting"
    assert driver.step("confirm", decided)["outcome"] == "confirmed"
    assert result(driver, decided) is CheckResult.UNAVAILABLE
    assert driver.world.cluster.calls == []


def test_one_check_per_cluster_at_a_time(driver: Driver, decided: Incident) -> None:
    driver.world.controls.locks[CHECK_LOCK] = "another"
    assert driver.step("confirm", decided)["outcome"] == "waiting"
    assert driver.world.cluster.calls == []
    del driver.world.controls.locks[CHECK_LOCK]
    driver.step("confirm", decided)
    assert driver.world.cluster.calls == [("check", SUSPECT)]


def test_a_check_that_outlived_its_incident_or_that_somebody_started_is_waited_for(
    driver: Driver, decided: Incident
) -> None:
    """The lock knows our own incidents only; the cluster says what really runs."""
    other = builder.INSTANCES[0]
    driver.world.cluster.set_status(other, "DeepHealthCheckInProgress")
    assert driver.step("confirm", decided)["outcome"] == "waiting"
    assert driver.world.cluster.calls == [] and not driver.world.controls.locks
    driver.world.cluster.set_status(other, "Running")
    assert driver.step("confirm", decided)["outcome"] == "waiting"
    assert driver.world.cluster.calls == [("check", SUSPECT)]


@pytest.mark.parametrize(
    "control", [Control(None, kill_switch=True), Control(Mode.CONTAIN, kill_switch=False)]
)
def test_mode_and_kill_switch_forbid_the_check(driver: Driver, decided: Incident, control: Control) -> None:
    driver.world.controls.control = control
    assert driver.step("confirm", decided)["outcome"] == "confirmed"
    assert result(driver, decided) is CheckResult.UNAVAILABLE
    assert driver.world.cluster.calls == [] and not driver.world.controls.locks


def test_no_check_when_it_is_switched_off(driver: Driver, decided: Incident) -> None:
    driver.setting("DEEP_CHECK_ENABLED", "false")
    assert driver.step("confirm", decided)["outcome"] == "confirmed"
    assert driver.world.cluster.calls == []


def test_no_check_on_a_node_that_a_human_uncordoned(driver: Driver, decided: Incident) -> None:
    driver.world.kubernetes.change(NODE, unschedulable=False)
    assert driver.step("confirm", decided)["outcome"] == "confirmed"
    assert driver.world.cluster.calls == []


def test_a20_a_retry_after_a_crash_looks_and_does_not_start_again(driver: Driver, decided: Incident) -> None:
    driver.step("confirm", decided)
    rows = driver.world.incidents.rows
    rows[decided.id] = replace(rows[decided.id], deep_check=DeepCheck())  # the save was lost
    assert driver.step("confirm", decided)["outcome"] == "waiting"
    assert driver.world.cluster.calls == [("check", SUSPECT)]


def test_a_check_that_the_service_refuses_is_unavailable(
    driver: Driver, decided: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> None:
        raise RefusedError("ValidationException: not supported with Continuous", "ValidationException")

    monkeypatch.setattr(driver.world.cluster, "start_health_check", refuse)
    assert driver.step("confirm", decided)["outcome"] == "confirmed"
    assert result(driver, decided) is CheckResult.UNAVAILABLE


def test_a_label_left_from_an_earlier_check_is_not_a_result(driver: Driver, decided: Incident) -> None:
    driver.world.kubernetes.change(NODE, labels={CHECK_LABEL: "Passed"})
    driver.world.cluster.start_health_check = lambda *_: None  # type: ignore[method-assign]
    for _ in range(3):
        assert driver.step("confirm", decided)["outcome"] == "waiting"


@pytest.mark.parametrize("stale", ["Passed", "Failed"])
@pytest.mark.parametrize("saved", [True, False])
def test_a_check_that_never_ran_neither_exonerates_nor_accuses(
    driver: Driver, decided: Incident, monkeypatch: pytest.MonkeyPatch, stale: str, saved: bool
) -> None:
    """Every node of a group with checks at start carries the label of the last one; the call may be lost."""
    driver.world.kubernetes.change(NODE, labels={CHECK_LABEL: stale})

    def lost(*_: str) -> None:
        raise UnavailableError("timeout before the effect")

    with monkeypatch.context() as patched:
        patched.setattr(driver.world.cluster, "start_health_check", lost)
        with pytest.raises(UnavailableError):
            driver.step("confirm", decided)
    if not saved:  # a row of the version before, which kept no snapshot
        rows = driver.world.incidents.rows
        rows[decided.id] = replace(rows[decided.id], deep_check=DeepCheck())
    for _ in range(MAX_UNSEEN_POLLS - 1):
        assert driver.step("confirm", decided)["outcome"] == "waiting"
    assert driver.step("confirm", decided)["outcome"] == "confirmed"
    assert result(driver, decided) is CheckResult.NEVER_STARTED
    assert driver.step("decide", decided)["outcome"] == "human"
    assert driver.world.cluster.calls == []


def test_no_check_of_ours_beside_one_that_runs_on_the_node(driver: Driver, decided: Incident) -> None:
    driver.world.cluster.set_status(SUSPECT, "DeepHealthCheckInProgress")
    assert driver.step("confirm", decided)["outcome"] == "waiting"
    assert driver.world.cluster.calls == [] and not driver.world.controls.locks


def test_a_label_that_changes_counts_without_having_been_seen_in_progress(
    driver: Driver, decided: Incident
) -> None:
    driver.world.cluster.start_health_check = lambda *_: None  # type: ignore[method-assign]
    driver.step("confirm", decided)
    driver.world.kubernetes.change(NODE, labels={CHECK_LABEL: "Failed"})
    driver.step("confirm", decided)
    assert result(driver, decided) is CheckResult.FAILED
