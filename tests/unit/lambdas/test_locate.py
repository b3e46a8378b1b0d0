"""Registration and location: nothing is believed that Kubernetes and HyperPod do not confirm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lambdas import handlers
from lambdas.domain.errors import UnavailableError
from lambdas.domain.incident import Incident, State
from tests.events import builder
from training_agent.contract import Place, instance_id_of

from .drive import Driver

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"
ALARM = builder.alarm(builder.culprit(3))


def stored(driver: Driver, node: int = 1) -> tuple[bool, str]:
    row = driver.world.registrations.get(builder.JOB.uid, 1, f"hyperpod-{builder.INSTANCES[node]}")
    assert row is not None
    return row.verified, row.reason


def opened(driver: Driver) -> Incident:
    (incident,) = driver.alarm(ALARM)
    return incident


def untouched(driver: Driver) -> bool:
    return not driver.world.kubernetes.evicted and not any(
        n.unschedulable for n in driver.world.kubernetes.nodes.values()
    )


def test_a_true_registration_is_verified(driver: Driver) -> None:
    driver.register()
    assert stored(driver) == (True, "")


def test_t3_registration_of_a_pod_that_does_not_exist_is_not_verified(driver: Driver) -> None:
    del driver.world.kubernetes.pods["training", "llama-tiny-1"]
    driver.register(builder.registration(1))
    assert stored(driver) == (False, "the pod of rank 2 does not exist")


def test_t1_registration_with_a_pod_on_another_node_is_not_verified(driver: Driver) -> None:
    driver.add_pod("llama-tiny-1", "pod-1", builder.INSTANCES[0])
    driver.register(builder.registration(1))
    assert stored(driver) == (False, "the pod of rank 2 runs on another node")


def test_t1_registration_with_another_jobs_pod_is_not_verified(driver: Driver) -> None:
    driver.add_pod("llama-tiny-1", "pod-1", SUSPECT, replace(builder.JOB, uid="job-other"))
    driver.register(builder.registration(1))
    assert stored(driver) == (False, "the pod of rank 2 belongs to another job")


def test_t3_registration_by_a_pod_of_another_service_account_is_not_verified(driver: Driver) -> None:
    """Whoever may create a pod can give it the job's label and pin it to a node; its account is checked."""
    pod = driver.world.kubernetes.pods["training", "llama-tiny-1"]
    driver.world.kubernetes.pods["training", "llama-tiny-1"] = replace(pod, service_account="default")
    driver.register()
    said = "the pod of rank 2 runs as training/default, which is no service account of training"
    assert stored(driver, 1) == (False, said) and stored(driver, 0) == (True, "")
    assert driver.play(opened(driver), "locate") == "closed" and untouched(driver)


def test_t3_an_account_of_the_same_name_in_another_namespace_is_not_ours(driver: Driver) -> None:
    job = replace(builder.JOB, namespace="playground")
    driver.add_pod("llama-tiny-1", "pod-1", SUSPECT, job)
    driver.register(builder.registration(1, job=job))
    assert stored(driver)[1].startswith("the pod of rank 2 runs as playground/training")


@pytest.mark.parametrize("node", ["i-XYZ", "hyperpod-i-0123", "somewhere"])
def test_t15_malformed_instance_ids_are_not_verified(driver: Driver, node: str) -> None:
    seats = tuple(replace(p, node=node, instance_id=node) for p in builder.places()[2:4])
    driver.register(builder.registration(0, seats))
    row = driver.world.registrations.get(builder.JOB.uid, 1, node)
    assert row is not None and not row.verified


def test_t3_a_verified_registration_is_never_replaced(driver: Driver) -> None:
    driver.register()
    forged = builder.registration(1, resumed_from_step=99)
    driver.register(forged)
    row = driver.world.registrations.get(builder.JOB.uid, 1, NODE)
    assert row is not None and "99" not in row.text


def test_malformed_and_foreign_registrations_are_dropped(driver: Driver) -> None:
    driver.send("{", to=handlers.register)
    driver.register(builder.registration(1, cluster="other"))
    assert not driver.world.registrations.rows


def test_an_alarm_that_overtakes_its_registration_is_tried_again(driver: Driver) -> None:
    incident = opened(driver)
    assert driver.step("locate", incident)["outcome"] == "waiting"
    driver.register()
    assert driver.step("locate", incident)["outcome"] == "located"


def test_the_grace_for_a_late_registration_is_really_waited_out(driver: Driver) -> None:
    """By waits of the state machine: retries of the task would give up after one minute, or sooner."""
    incident = opened(driver)
    while (answer := driver.step("locate", incident))["outcome"] == "waiting":
        assert answer["wait_seconds"] > 0 and len(driver.path) < 100
    assert answer["outcome"] == "human" and "never registered" in answer["story"]
    assert driver.waited_s == 120


def test_a_table_that_does_not_answer_is_no_late_registration(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: Any) -> None:
        raise UnavailableError("table")

    incident = opened(driver)
    monkeypatch.setattr(driver.world.registrations, "get", down)
    with pytest.raises(UnavailableError):
        driver.step("locate", incident)


def test_an_unverified_registration_goes_to_a_human(driver: Driver) -> None:
    driver.add_pod("llama-tiny-1", "other-pod", SUSPECT)
    driver.register()
    incident = opened(driver)
    assert driver.play(incident, "locate") == "closed"
    assert driver.world.incidents.get(incident.id).state is State.HANDED_TO_HUMAN
    assert untouched(driver)


def test_t1_an_alarm_that_names_a_node_where_the_rank_never_was_goes_to_a_human(driver: Driver) -> None:
    driver.register()
    victim = builder.places()[0]
    forged = replace(builder.culprit(3), place=replace(victim, rank=3))
    (incident,) = driver.alarm(builder.alarm(forged))
    assert driver.step("locate", incident)["outcome"] == "human"
    assert untouched(driver)


def test_an_alarm_that_names_another_namespace_than_registered_goes_to_a_human(driver: Driver) -> None:
    """Its mail offers a Job to be applied there."""
    driver.register()
    elsewhere = replace(builder.JOB, namespace="kube-system")
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3), job=elsewhere))
    assert driver.step("locate", incident)["outcome"] == "human"
    assert untouched(driver)


def test_an_alarm_that_names_another_gpu_than_registered_goes_to_a_human(driver: Driver) -> None:
    driver.register()
    place = builder.places()[3]
    other = Place(**{**{f: getattr(place, f) for f in place.__slots__}, "gpu_uuid": "GPU-other"})
    (incident,) = driver.alarm(builder.alarm(replace(builder.culprit(3), place=other)))
    assert driver.step("locate", incident)["outcome"] == "human"


def test_a25_an_instance_that_was_launched_again_is_not_the_suspect(driver: Driver) -> None:
    driver.register()
    incident = opened(driver)
    member = driver.world.cluster.members[SUSPECT]
    driver.world.cluster.members[SUSPECT] = replace(member, launch_time="2026-01-01T00:05:00.000000Z")
    assert driver.step("locate", incident)["outcome"] == "human"


def test_a25_an_alarm_older_than_the_instance_goes_to_a_human(driver: Driver) -> None:
    member = driver.world.cluster.members[SUSPECT]
    driver.world.cluster.members[SUSPECT] = replace(member, launch_time="2026-01-01T00:10:10.000000Z")
    driver.register()
    (incident,) = driver.alarm(replace(ALARM, time="2026-01-01T00:00:09Z"))
    assert driver.step("locate", incident)["outcome"] == "human"


def test_t22_a_node_whose_clock_is_ten_minutes_behind_is_not_taken_for_an_older_one(driver: Driver) -> None:
    member = driver.world.cluster.members[SUSPECT]
    driver.world.cluster.members[SUSPECT] = replace(member, launch_time="2026-01-01T00:10:10.000000Z")
    driver.register()
    (incident,) = driver.alarm(replace(ALARM, time="2026-01-01T00:00:11Z"))
    assert driver.step("locate", incident)["outcome"] == "located"


def test_second_evidence_for_an_instance_joins_the_open_incident(driver: Driver) -> None:
    driver.register()
    first = opened(driver)
    driver.step("locate", first)
    (second,) = driver.alarm(builder.alarm(builder.weights(2), step=31))
    assert driver.play(second, "locate") == "joined"
    assert driver.world.incidents.get(second.id).state is State.JOINED
    assert any(key[0] == first.id for key in driver.world.incidents.evidence)


def test_t20_an_edited_alarm_row_is_not_acted_on(driver: Driver) -> None:
    driver.register()
    incident = opened(driver)
    text = driver.world.incidents.alarms[incident.id]
    driver.world.incidents.alarms[incident.id] = text.replace(SUSPECT, builder.INSTANCES[0])
    assert driver.step("locate", incident)["outcome"] == "human"


def test_t15_an_instance_id_ends_where_it_ends() -> None:
    assert instance_id_of(NODE) == SUSPECT
    assert instance_id_of(NODE + "\n") is None


def test_t20_an_edited_registration_is_not_believed(driver: Driver) -> None:
    driver.register()
    key = (builder.JOB.uid, 1, NODE)
    row = driver.world.registrations.rows[key]
    edited = row.text.replace(f'"instance_id":"{SUSPECT}"', f'"instance_id":"{builder.INSTANCES[0]}"')
    driver.world.registrations.rows[key] = replace(row, text=edited)
    assert driver.step("locate", opened(driver))["outcome"] == "human"


def test_t4_a_replayed_registration_is_dropped(driver: Driver) -> None:
    event = builder.event(builder.registration(1), **{"replay-name": "archive"})
    driver.send(event, to=handlers.register)
    assert not driver.world.registrations.rows
