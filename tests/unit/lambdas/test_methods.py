"""The label in place of the call, nodes that Karpenter manages, and quotas of one job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lambdas import handlers
from lambdas.adapters.eks import HEALTH_LABEL, REPLACE_VALUE
from lambdas.adapters.node_label import NodeLabel
from lambdas.domain.errors import ConflictError, OutcomeUnknownError, RefusedError, UnavailableError
from lambdas.domain.incident import Incident, State, execution_name
from lambdas.domain.policy import Control
from lambdas.domain.world import ClusterFacts, KubeNode, KubePod, ReplaceAnswer
from lambdas.steps.ingest import ALARMS_PER_HOUR
from lambdas.steps.verify import NO_DEMAND_POLLS
from tests.events import builder
from training_agent.contract import Job

from .drive import CONTEXT, Driver
from .fakes import START
from .looks import look

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"


# by label


def test_by_label_has_the_same_guards_and_one_attempt(driver: Driver, approved: Incident) -> None:
    driver.world.cluster.facts = ClusterFacts("Automatic", {})
    for _ in range(2):
        assert driver.step("replace_by_label", approved)["outcome"] == "replaced"
    assert driver.world.cluster.calls == [("replace", SUSPECT)]


def test_by_label_without_automatic_recovery_is_refused(driver: Driver, approved: Incident) -> None:
    assert driver.step("replace_by_label", approved)["outcome"] == "human"
    assert driver.world.cluster.calls == []


def test_by_label_without_an_approval_is_refused(driver: Driver) -> None:
    driver.world.cluster.facts = ClusterFacts("Automatic", {})
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.until_asked(incident)
    assert driver.step("replace_by_label", incident)["outcome"] == "human"
    assert driver.world.cluster.calls == []


class OneNode:
    """Kubernetes with one node, for the labelling adapter."""

    def __init__(self, node: KubeNode | None, error: Exception | None = None) -> None:
        self.found, self.error = node, error
        self.labels: list[dict[str, str]] = []

    def node(self, name: str) -> KubeNode | None:
        return self.found

    def label_node(self, node: KubeNode, labels: dict[str, str]) -> None:
        self.labels.append(labels)
        if self.error is not None:
            raise self.error


def labelled(node: KubeNode | None, error: Exception | None = None) -> tuple[Any, OneNode]:
    kubernetes, labeller = OneNode(node, error), NodeLabel("demo")
    labeller._cluster = kubernetes  # type: ignore[assignment]
    return labeller, kubernetes


def test_the_label_is_that_label_with_that_value() -> None:
    labeller, kubernetes = labelled(KubeNode(NODE, "u", "1", True, {}, {}))
    assert labeller.replace(SUSPECT) == ReplaceAnswer(accepted=True)
    assert kubernetes.labels == [{HEALTH_LABEL: REPLACE_VALUE}]
    assert REPLACE_VALUE == "UnschedulablePendingReplacement"


@pytest.mark.parametrize(
    ("error", "code"), [(ConflictError("409"), "InstanceIdInUse"), (None, "InstanceIdNotFound")]
)
def test_a_label_that_was_not_set_says_so(error: Exception | None, code: str) -> None:
    node = KubeNode(NODE, "u", "1", True, {}, {}) if error else None
    assert labelled(node, error)[0].replace(SUSPECT).code == code


def test_no_answer_to_the_label_is_an_unknown_outcome_and_a_refusal_is_none() -> None:
    node = KubeNode(NODE, "u", "1", True, {}, {})
    with pytest.raises(OutcomeUnknownError):
        labelled(node, UnavailableError("timeout"))[0].replace(SUSPECT)
    with pytest.raises(RefusedError):
        labelled(node, RefusedError("forbidden", "403"))[0].replace(SUSPECT)


# Karpenter


def issued(driver: Driver, approved: Incident, *, karpenter: bool) -> None:
    driver.world.cluster.facts = ClusterFacts("Automatic", {}, karpenter=karpenter)
    assert driver.step("replace", approved)["outcome"] == "replaced"
    driver.world.cluster.members.pop(SUSPECT)


def test_karpenter_gone_and_no_pod_waiting_is_a_good_end(driver: Driver, approved: Incident) -> None:
    issued(driver, approved, karpenter=True)
    driver.on_state = lambda state: driver.job_returns() if state == "resume" else None  # type: ignore[method-assign]
    driver.play(approved, "verify")
    assert driver.world.incidents.get(approved.id).state is State.TERMINATED_NO_DEMAND
    assert driver.path.count("verify") == NO_DEMAND_POLLS
    assert driver.world.quarantine.state(f"instance#{SUSPECT}") == "released"
    assert not driver.world.controls.locks and not driver.world.controls.breaker().open


@pytest.mark.parametrize("end", [State.REPLACED, State.TERMINATED_NO_DEMAND])
def test_a_hold_that_outlives_its_node_is_mailed_and_the_end_keeps_its_name(
    driver: Driver, approved: Incident, end: State
) -> None:
    """The kill switch after the node has gone: the job stays held, and only people can let it go."""
    gone = end is State.TERMINATED_NO_DEMAND
    if gone:
        issued(driver, approved, karpenter=True)
    else:
        driver.step("replace", approved)
        driver.world.cluster.swap(SUSPECT)
    assert driver.play(approved, "verify", stop="resume") == "resume"
    sent, world = len(driver.world.mail.sent), driver.world
    world.controls.control = Control(None, kill_switch=True)
    driver.play(approved, "resume")
    assert world.incidents.get(approved.id).state is end
    assert world.quarantine.state(f"instance#{SUSPECT}") == "held"
    assert not world.controls.locks and not world.controls.breaker().open
    ((_, subject, body),) = world.mail.sent[sent:]
    assert "the job is still held" in subject and "kill switch" in body
    assert f"sdc release {approved.id}" in body and "Nothing was or will be replaced" not in body
    world.controls.control = Control(None, kill_switch=False)
    asked = {"incident_id": approved.id, "release": {"by": "alex", "reason": "looked"}}
    assert handlers.resume(asked, CONTEXT)["outcome"] == "released"
    assert world.quarantine.state(f"instance#{SUSPECT}") == "released"


def test_an_execution_that_dies_after_the_node_went_for_good_opens_no_breaker(
    driver: Driver, approved: Incident
) -> None:
    issued(driver, approved, karpenter=True)
    assert driver.play(approved, "verify", stop="resume") == "resume"
    driver.world.executions.ended[execution_name(approved)] = "FAILED"
    look(driver)
    assert driver.world.incidents.get(approved.id).state is State.HANDED_TO_HUMAN
    assert not driver.world.controls.breaker().open and not driver.world.controls.locks


def test_karpenter_with_a_pod_that_waits_for_a_node_waits_too(driver: Driver, approved: Incident) -> None:
    issued(driver, approved, karpenter=True)
    waiting = KubePod("training", "llama-tiny-1", "pod-new", None, {}, leaving=False)
    driver.world.kubernetes.pods["training", "llama-tiny-1"] = waiting
    driver.play(approved, "verify")
    assert driver.world.incidents.get(approved.id).state is State.REPLACEMENT_DEGRADED


def test_without_karpenter_no_newcomer_is_never_a_good_end(driver: Driver, approved: Incident) -> None:
    issued(driver, approved, karpenter=False)
    driver.play(approved, "verify")
    assert driver.world.incidents.get(approved.id).state is State.REPLACEMENT_DEGRADED


# quotas


def test_t16_one_job_that_floods_is_cut_off_and_hides_no_other(driver: Driver) -> None:
    driver.register()
    opened = sum(
        len(driver.alarm(builder.alarm(builder.culprit(3), step=100 + n)))
        for n in range(ALARMS_PER_HOUR + 10)
    )
    assert opened == ALARMS_PER_HOUR
    assert "alarms an hour" in driver.world.incidents.rejected[-1]
    other = Job("other", "job-0002", 1, "training")
    assert len(driver.alarm(builder.alarm(builder.culprit(3), job=other))) == 1


def test_the_same_alarm_again_is_no_use_of_the_quota(driver: Driver) -> None:
    for _ in range(ALARMS_PER_HOUR + 10):
        driver.send(builder.event(builder.alarm(builder.culprit(3))))
    assert not driver.world.incidents.rejected


def test_t2_a_trainer_that_accuses_one_peer_after_the_other_is_not_believed_without_end(
    driver: Driver,
) -> None:
    """Slower than ten minutes each, so row S1 does not see it."""
    instances = tuple(f"i-0a1b2c3d4e5f6{n:04x}" for n in range(1, 7))
    seats = builder.places(instances)
    for number, instance in enumerate(instances):
        if instance not in driver.world.cluster.members:
            driver.add_node(instance)
        driver.add_pod(f"llama-tiny-{number}", f"pod-{number}", instance)
    driver.register(*[builder.registration(n, seats) for n in range(len(instances))])
    ends = []
    for number in range(5):
        driver.world.clock.at = START + timedelta(minutes=20 * number)
        (incident,) = driver.alarm(
            builder.alarm(
                builder.culprit(2 * number, seats),
                seats=seats,
                step=40 + number,
                time=driver.world.clock.at.isoformat(),
            )
        )
        ends.append(driver.play(incident, "locate", stop="request_approval"))
    cordoned = [n for n in driver.world.kubernetes.nodes.values() if n.unschedulable]
    assert len(cordoned) == 3 and ends[3:] == ["closed", "closed"]
    assert "accused 4 nodes in a day" in " ".join(driver.world.mail.sent[0][2].split())


def test_a_reboot_of_a_registered_node_between_alarm_and_replace_changes_the_world(
    driver: Driver, approved: Incident
) -> None:
    members = driver.world.cluster.members
    members[SUSPECT] = replace(members[SUSPECT], launch_time="2026-01-01T00:10:20.000000Z")
    driver.play(approved, "replace")
    assert driver.world.incidents.get(approved.id).state is State.WORLD_CHANGED


def test_a_humans_uncordon_before_the_replacement_is_an_override(driver: Driver, approved: Incident) -> None:
    driver.world.kubernetes.change(NODE, unschedulable=False)
    driver.play(approved, "replace")
    assert driver.world.incidents.get(approved.id).state is State.HUMAN_OVERRIDE
    assert not driver.world.kubernetes.nodes[NODE].unschedulable and not driver.world.cluster.calls
