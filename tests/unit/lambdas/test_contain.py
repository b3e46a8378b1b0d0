"""Cordon and evict: conflicts, ownership, mode and kill switch, retries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lambdas.domain.errors import ConflictError, HaltedError, RetryableError, ThrottledError, UnavailableError
from lambdas.domain.incident import Incident, State
from lambdas.domain.policy import Control
from lambdas.steps.effects import CORDONED_BY
from tests.events import builder
from training_agent.contract import Mode, gpu_subject, instance_subject

from .drive import Driver

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"


@pytest.fixture
def located(driver: Driver) -> Incident:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.step("locate", incident)
    return incident


def test_a_cordon_is_annotated_and_only_this_jobs_pods_are_evicted(driver: Driver, located: Incident) -> None:
    driver.add_pod("other-job-0", "pod-x", SUSPECT, replace(builder.JOB, uid="job-other"))
    answer = driver.step("contain", located)
    node = driver.world.kubernetes.nodes[NODE]
    assert node.unschedulable and node.annotations[CORDONED_BY] == located.id
    assert {"training.sdc/cordoned-reason", "training.sdc/cordoned-at"} < set(node.annotations)
    assert driver.world.kubernetes.evicted == ["llama-tiny-1"]
    assert "other-job-0" in answer["story"]


def test_the_accused_gpu_and_its_instance_are_held_and_no_other(driver: Driver, located: Incident) -> None:
    driver.step("contain", located)
    accused = builder.places()[3].gpu_uuid or ""
    assert set(driver.world.quarantine.rows) == {instance_subject(SUSPECT), gpu_subject(accused)}
    assert driver.world.quarantine.mode is Mode.REPLACE


def test_without_the_admission_policy_nothing_is_cordoned_held_or_evicted(
    driver: Driver, located: Incident
) -> None:
    driver.world.kubernetes.admission_policy = False
    driver.play(located, "contain")
    incident = driver.world.incidents.get(located.id)
    assert incident.state is State.HANDED_TO_HUMAN and not incident.touched
    assert "kubectl apply -f infra/eks_access/" in incident.human_reason
    assert not driver.world.kubernetes.nodes[NODE].unschedulable
    assert not driver.world.kubernetes.evicted and not driver.world.quarantine.rows


def test_a23_conflicts_and_throttling_are_ridden_out(driver: Driver, located: Incident) -> None:
    driver.world.kubernetes.errors = [ConflictError("409")] * 3 + [
        ThrottledError("429"),
        UnavailableError("500"),
    ]
    for _ in range(2):  # the state machine's Retry
        with pytest.raises(RetryableError):
            driver.step("contain", located)
    assert driver.step("contain", located)["outcome"] == "contained"
    assert driver.world.kubernetes.nodes[NODE].unschedulable


def test_a23_a_node_that_is_gone_goes_to_a_human(driver: Driver, located: Incident) -> None:
    del driver.world.kubernetes.nodes[NODE]
    driver.play(located, "contain")
    incident = driver.world.incidents.get(located.id)
    assert incident.state is State.HANDED_TO_HUMAN and "gone" in incident.human_reason
    assert driver.world.cluster.calls == []


def test_a23_a_humans_cordon_is_respected_and_never_taken_back(driver: Driver, located: Incident) -> None:
    driver.world.kubernetes.change(NODE, unschedulable=True)
    driver.play(located, "contain")
    node = driver.world.kubernetes.nodes[NODE]
    assert node.unschedulable and CORDONED_BY not in node.annotations
    assert driver.world.incidents.get(located.id).state is State.HUMAN_OVERRIDE
    assert not driver.world.approvals.rows


def test_a_retried_contain_keeps_its_own_cordon(driver: Driver, located: Incident) -> None:
    driver.step("contain", located)
    rows = driver.world.incidents.rows
    rows[located.id] = replace(
        rows[located.id], state=State.LOCATED, targets=located_targets(driver, located)
    )
    driver.step("contain", located)
    assert driver.world.incidents.get(located.id).targets[0].cordoned_by_us


def located_targets(driver: Driver, incident: Incident) -> tuple:  # type: ignore[type-arg]
    targets = driver.world.incidents.get(incident.id).targets
    return tuple(replace(t, cordoned_by_us=False) for t in targets)


def test_the_kill_switch_stops_before_the_first_effect(driver: Driver, located: Incident) -> None:
    driver.world.controls.control = Control(None, kill_switch=True)
    driver.play(located, "contain")
    assert not driver.world.kubernetes.nodes[NODE].unschedulable
    assert not driver.world.kubernetes.evicted
    assert "kill switch" in driver.world.incidents.get(located.id).human_reason


def test_the_kill_switch_is_read_again_before_each_effect(
    driver: Driver, located: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thrown while the node is being cordoned: the eviction does not happen any more."""
    patch = driver.world.kubernetes.patch_node

    def patch_then_halt(*args: object, **kwargs: object) -> None:
        patch(*args, **kwargs)  # type: ignore[arg-type]
        driver.world.controls.control = Control(None, kill_switch=True)

    monkeypatch.setattr(driver.world.kubernetes, "patch_node", patch_then_halt)
    assert driver.step("contain", located)["outcome"] == "human"
    assert not driver.world.kubernetes.evicted


def test_an_unreadable_control_table_stops(
    driver: Driver, located: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> Control:
        raise HaltedError("the control table's mode cannot be read")

    monkeypatch.setattr(driver.world.controls, "read", unreadable)
    assert driver.step("contain", located)["outcome"] == "human"
    assert not driver.world.kubernetes.nodes[NODE].unschedulable


def test_the_control_table_lowers_the_mode_and_never_raises_it(driver: Driver, located: Incident) -> None:
    driver.world.controls.control = Control(Mode.OBSERVE, kill_switch=False)
    driver.step("contain", located)
    assert not driver.world.kubernetes.nodes[NODE].unschedulable
    driver.setting("MODE", "observe")
    driver.world.controls.control = Control(Mode.REPLACE, kill_switch=False)
    driver.step("contain", located)
    assert not driver.world.kubernetes.nodes[NODE].unschedulable


def test_a_switch_thrown_while_the_policy_is_being_proven_holds_nobody(
    driver: Driver, located: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    def proves_and_is_stopped(_node: object) -> bool:
        driver.world.controls.control = Control(None, kill_switch=True)
        return True

    monkeypatch.setattr(driver.world.kubernetes, "refuses_health_label", proves_and_is_stopped)
    assert driver.step("contain", located)["outcome"] == "human"
    assert not driver.world.quarantine.rows.get(instance_subject(SUSPECT))
