"""Which newcomer is the replacement, and how long it is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lambdas.domain.incident import Incident, State
from lambdas.domain.world import ClusterFacts
from lambdas.steps.replace import REPLACE_LOCK
from tests.events import builder

from .drive import Driver

SUSPECT = builder.INSTANCES[1]


def test_a_newcomer_of_another_group_or_age_is_not_taken_for_the_replacement(
    driver: Driver, approved: Incident
) -> None:
    driver.step("replace", approved)
    driver.world.cluster.members.pop(SUSPECT)
    assert driver.step("verify", approved)["outcome"] == "waiting"
    member = driver.world.cluster.members[builder.INSTANCES[0]]
    other = replace(
        member, instance_id="i-0000000000000aaaa", group="cpu", launch_time="2026-01-01T01:00:00Z"
    )
    driver.world.cluster.members[other.instance_id] = other
    assert driver.step("verify", approved)["outcome"] == "waiting"
    driver.world.cluster.members[other.instance_id] = replace(other, group="gpu", status="Pending")
    assert driver.step("verify", approved)["outcome"] == "waiting"
    driver.world.cluster.members[other.instance_id] = replace(other, group="gpu")
    assert driver.step("verify", approved)["outcome"] == "verified"


def test_a_newcomer_beside_the_old_instance_is_not_yet_a_replacement(
    driver: Driver, approved: Incident
) -> None:
    driver.step("replace", approved)
    old = driver.world.cluster.members[SUSPECT]
    driver.world.cluster.swap(SUSPECT)
    driver.world.cluster.members[SUSPECT] = old
    assert driver.step("verify", approved)["outcome"] == "waiting"


def test_a_replacement_that_never_ends_is_degraded_after_a_bounded_wait(
    driver: Driver, approved: Incident
) -> None:
    driver.play(approved, "replace")
    assert driver.world.incidents.get(approved.id).state is State.REPLACEMENT_DEGRADED
    assert (
        driver.world.controls.breaker().open and "look at the group" in driver.world.controls.breaker().reason
    )
    assert driver.path.count("verify") == 120


def test_the_newcomer_of_a_node_that_hyperpod_replaces_at_the_same_time_is_not_ours(
    driver: Driver, approved: Incident
) -> None:
    """Two went and one came: whose it is nobody says, and the slot is not given to the next one yet."""
    driver.step("replace", approved)
    driver.world.cluster.members.pop(SUSPECT)
    driver.world.cluster.swap(builder.INSTANCES[0])
    assert driver.step("verify", approved)["outcome"] == "waiting"
    assert driver.world.controls.locks == {REPLACE_LOCK: approved.id}
    member = driver.world.cluster.members[builder.INSTANCES[2]]
    second = replace(member, instance_id="i-0000000000000aaaa", launch_time="2026-01-01T01:00:00Z")
    driver.world.cluster.members[second.instance_id] = second
    assert driver.step("verify", approved)["outcome"] == "verified"


@pytest.mark.parametrize(
    "facts", [ClusterFacts("None", {}, complete=frozenset({"gpu"})), ClusterFacts("None", {}, karpenter=True)]
)
def test_a_group_that_is_meant_to_be_smaller_now_is_no_reason_to_wait(
    driver: Driver, approved: Incident, facts: ClusterFacts
) -> None:
    driver.step("replace", approved)
    driver.world.cluster.swap(SUSPECT)
    driver.world.cluster.members.pop(builder.INSTANCES[0])  # scaled in
    driver.world.cluster.facts = facts
    assert driver.step("verify", approved)["outcome"] == "verified"
