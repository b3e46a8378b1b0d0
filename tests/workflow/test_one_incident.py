"""The synthesized state machine with the real handlers, from an event on the bus to a terminal state."""

from __future__ import annotations

import json
import threading

from emulator.cloud import LocalCloud
from tests.workflow.scenario import Scenario, fetch
from training_agent.contract import Check, DetailType, SecondConfirmation, Verdict, encode


def test_c1_approved_on_the_page_replaces_exactly_that_instance(
    cloud: LocalCloud, scenario: Scenario
) -> None:
    scenario.raise_alarm(scenario.culprit())
    suspect, node = scenario.instance(), scenario.nodes[1]
    link = scenario.link()
    assert scenario.cordoned(node)
    assert scenario.replace_requests() == []
    assert fetch("HEAD", link).status == 200
    assert scenario.answer("approve").status in (200, 303)
    scenario.wait_for_replacement()
    scenario.come_back()
    assert scenario.end() == "REPLACED"
    assert scenario.replace_requests() == [[suspect]]
    assert scenario.row()["decision_row"] == "C1"
    assert _stories(scenario), "each step says what it did"
    _assert_secret_stays_secret(cloud, scenario, link)
    assert scenario.walked() == [
        "locate", "contain", "decide", "request_approval", "approval_answered", "replace", "verify", "resume",
        "closed",
    ]  # fmt: skip


def test_the_pods_of_the_job_are_evicted_from_the_suspect_only(cloud: LocalCloud, scenario: Scenario) -> None:
    cloud.kubernetes.create_pod("bystander", node=scenario.nodes[1], labels={"training.sdc/job-uid": "other"})
    scenario.raise_alarm(scenario.culprit())
    scenario.link()
    left = {name for _, name in cloud.kubernetes.pods}
    assert scenario.places[2].pod_name not in left
    assert {scenario.places[0].pod_name, scenario.places[4].pod_name, "bystander"} <= left
    cloud.kubernetes.delete_pod("bystander")
    scenario.answer("keep")
    assert scenario.end() == "REJECTED_KEPT"


def test_v2_with_a_passed_deep_check_is_released_and_nothing_replaced(scenario: Scenario) -> None:
    scenario.raise_alarm(scenario.pair(Verdict.TRANSIENT))
    scenario.job_returns_when_released()
    assert scenario.end() == "RELEASED"
    assert scenario.deep_checks() == 1
    assert scenario.replace_requests() == []
    assert not scenario.cordoned(scenario.nodes[1])


def test_v2_with_a_failed_deep_check_asks_for_approval(cloud: LocalCloud, scenario: Scenario) -> None:
    cloud.hyperpod.set_deep_check("fail", scenario.instance())
    scenario.raise_alarm(scenario.pair(Verdict.TRANSIENT))
    scenario.answer("keep")
    assert scenario.end() == "REJECTED_KEPT"
    assert scenario.deep_checks() == 1
    assert "request_approval" in scenario.walked()
    assert scenario.replace_requests() == []


def test_v3_that_repeats_is_decided_again_as_v1(cloud: LocalCloud, scenario: Scenario) -> None:
    scenario.raise_alarm(scenario.pair(Verdict.REPLAYER, second=SecondConfirmation.REPEATS))
    suspect = scenario.instance()
    scenario.answer("approve")
    scenario.wait_for_replacement()
    scenario.come_back()
    assert scenario.end() == "REPLACED"
    assert scenario.row()["decided_rows"] == ["V3", "V1"]
    assert scenario.replace_requests() == [[suspect]]


def test_w1_is_cordoned_reviewed_and_replaced(cloud: LocalCloud, scenario: Scenario) -> None:
    scenario.raise_alarm(scenario.diverged(), check=Check.WEIGHTS)
    suspect = scenario.instance()
    scenario.answer("approve")
    scenario.wait_for_replacement()
    scenario.come_back()
    assert scenario.end() == "REPLACED"
    assert scenario.row()["decision_row"] == "W1"
    assert scenario.replace_requests() == [[suspect]]


def test_rejected_and_kept_stays_cordoned(scenario: Scenario) -> None:
    scenario.raise_alarm(scenario.culprit())
    assert scenario.answer("keep").status in (200, 303)
    assert scenario.end() == "REJECTED_KEPT"
    assert scenario.cordoned(scenario.nodes[1])
    assert scenario.replace_requests() == []


def test_rejected_and_released_is_schedulable_again(scenario: Scenario) -> None:
    scenario.raise_alarm(scenario.culprit())
    scenario.answer("release")
    scenario.job_returns_when_released()
    assert scenario.end() == "REJECTED_RELEASED"
    assert not scenario.cordoned(scenario.nodes[1])
    assert scenario.replace_requests() == []


def test_n0_goes_to_a_human_and_blames_nobody(scenario: Scenario) -> None:
    scenario.raise_alarm(scenario.data_fault(), check=Check.NONFINITE)
    assert scenario.end() == "HANDED_TO_HUMAN"
    assert "tell_human" in scenario.walked()
    assert not any(scenario.cordoned(node) for node in scenario.nodes)
    assert "needs a human" in scenario.mails()[-1].subject
    assert scenario.replace_requests() == []


def test_an_unregistered_node_goes_to_a_human_and_is_not_touched(scenario: Scenario) -> None:
    scenario.put(DetailType.ALARM, encode(scenario.alarm(scenario.culprit())))
    assert scenario.end() == "HANDED_TO_HUMAN"
    assert not scenario.cordoned(scenario.nodes[1])


def test_a_duplicate_delivered_five_times_at_once_starts_one_execution(
    cloud: LocalCloud, scenario: Scenario
) -> None:
    scenario.register()
    detail = encode(scenario.alarm(scenario.culprit()))
    threads = [threading.Thread(target=scenario.put, args=(DetailType.ALARM, detail)) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    scenario.answer("keep")
    assert scenario.end() == "REJECTED_KEPT"
    mine = [e for e in cloud.executions() if e["name"].startswith(scenario.incident_id())]
    assert len(mine) == 1
    assert {e["incident_id"] for e in scenario.events()} == {scenario.incident_id()}
    assert len([m for m in scenario.mails() if "review" in m.subject]) == 1


def _stories(scenario: Scenario) -> list[str]:
    """What a reader of the history gets told, step by step; empty when a step says nothing."""
    outputs = []
    for event in scenario.stack.history(scenario.execution()):
        details = event.get("stateExitedEventDetails")
        if event["type"] == "TaskStateExited" and details:
            outputs.append(json.loads(details["output"])["story"])
    return outputs if all(outputs) else []


def _assert_secret_stays_secret(cloud: LocalCloud, scenario: Scenario, link: str) -> None:
    secret = link.rsplit("/", 1)[-1]
    assert secret not in json.dumps(scenario.stack.history(scenario.execution()), default=str)
    for log in (cloud.folder / "functions").glob("*.log"):
        assert secret not in log.read_text(), f"{log.name} tells the link"
