"""Ends that are no replacement: nobody answers, a check that never ends, a lowered mode, a kill switch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emulator.cloud import LocalCloud
from tests.workflow.scenario import Scenario, fetch
from training_agent.contract import Verdict

Control = Callable[[str, Any], None]


@pytest.fixture
def short_patience(cloud: LocalCloud) -> Iterator[None]:
    """Approvals expire after two seconds; a callback's timeout is real time."""
    functions = ("DecideFunction", "RequestApprovalFunction")
    before = cloud.runtime.worker(functions[0]).function.variables["APPROVAL_TIMEOUT_SECONDS"]
    for name in functions:
        cloud.runtime.set_variables(name, APPROVAL_TIMEOUT_SECONDS="2")
    yield
    for name in functions:
        cloud.runtime.set_variables(name, APPROVAL_TIMEOUT_SECONDS=before)


def test_nobody_answers_stays_cordoned_and_is_not_replaced(short_patience: None, scenario: Scenario) -> None:
    scenario.raise_alarm(scenario.culprit())
    link = scenario.link()
    assert scenario.end() == "EXPIRED"
    assert "approval_timed_out" in scenario.walked()
    assert scenario.cordoned(scenario.nodes[1])
    form = {"decision": "approve", "typed": scenario.instance()[-6:], "reason": "too late"}
    assert fetch("POST", link, form).status == 410
    assert scenario.replace_requests() == []
    assert "expired" in scenario.mails()[-1].subject


def test_a_deep_check_without_an_end_goes_to_a_human(cloud: LocalCloud, scenario: Scenario) -> None:
    cloud.hyperpod.set_deep_check("stuck", scenario.instance())
    scenario.raise_alarm(scenario.pair(Verdict.TRANSIENT))
    scenario.let_polls_pass(238)
    ended = scenario.end()
    cloud.hyperpod.set_deep_check("pass", scenario.instance())
    cloud.hyperpod.end_stuck_check(
        scenario.instance()
    )  # one check at a time: the next test's would wait for it
    assert ended == "HEALTHCHECK_STUCK"
    assert "stuck" in scenario.mails()[-1].body
    assert scenario.cordoned(scenario.nodes[1])
    assert scenario.replace_requests() == []


def test_observe_mode_touches_nothing(cloud: LocalCloud, control: Control, scenario: Scenario) -> None:
    control("mode", "observe")
    to_kubernetes, to_hyperpod = len(cloud.kubernetes.requests), len(cloud.hyperpod.requests)
    scenario.raise_alarm(scenario.culprit())
    assert scenario.end() == "OBSERVED"
    assert {r.method for r in cloud.kubernetes.requests[to_kubernetes:]} == {"GET"}
    asked = {r.operation for r in cloud.hyperpod.requests[to_hyperpod:]}
    assert all(o.startswith(("Describe", "List")) for o in asked), asked
    assert all(
        name in {n for _, n in cloud.kubernetes.pods} for name in {p.pod_name for p in scenario.places}
    )
    assert "observed" in scenario.mails()[-1].subject


def test_contain_mode_cordons_and_hands_over(control: Control, scenario: Scenario) -> None:
    control("mode", "contain")
    scenario.raise_alarm(scenario.culprit())
    assert scenario.end() == "HANDED_TO_HUMAN"
    assert scenario.cordoned(scenario.nodes[1])
    assert "request_approval" not in scenario.walked()


def test_the_kill_switch_stops_an_approved_replacement(control: Control, scenario: Scenario) -> None:
    scenario.raise_alarm(scenario.culprit())
    scenario.link()
    control("kill_switch", True)
    scenario.answer("approve")
    assert scenario.end() == "HANDED_TO_HUMAN"
    assert scenario.replace_requests() == []


def test_a_throttled_replacement_is_asked_again_once_and_done_once(
    cloud: LocalCloud, scenario: Scenario
) -> None:
    scenario.raise_alarm(scenario.culprit())
    suspect = scenario.instance()
    cloud.hyperpod.refuse_next("BatchReplaceClusterNodes", "ThrottlingException")
    scenario.answer("approve")
    scenario.wait_for_replacement()
    scenario.come_back()
    assert scenario.end() == "REPLACED"
    assert scenario.replace_requests() == [[suspect], [suspect]]
    assert [old for old, _ in cloud.hyperpod.replacements()].count(suspect) == 1


def test_a_link_counts_once(scenario: Scenario) -> None:
    scenario.raise_alarm(scenario.culprit())
    link = scenario.link()
    assert scenario.answer("keep").status == 200
    form = {"decision": "approve", "typed": scenario.instance()[-6:], "reason": "changed my mind"}
    assert fetch("POST", link, form).status == 410
    assert scenario.end() == "REJECTED_KEPT"
    assert scenario.replace_requests() == []


@pytest.mark.parametrize(
    ("form", "headers", "status"),
    [
        ({"decision": "approve", "typed": "wrong!", "reason": "r"}, {}, 400),
        ({"decision": "approve", "typed": "{typed}", "reason": " "}, {}, 400),
        ({"decision": "destroy", "typed": "{typed}", "reason": "r"}, {}, 400),
        ({"decision": "approve", "typed": "{typed}", "reason": "r"}, {"Sec-Fetch-Site": "cross-site"}, 403),
    ],
    ids=["wrong value", "no reason", "unknown answer", "another site"],
)
def test_a_form_that_is_not_right_decides_nothing(
    asked: Scenario, form: dict[str, str], headers: dict[str, str], status: int
) -> None:
    filled = {k: v.format(typed=asked.instance()[-6:]) for k, v in form.items()}
    assert fetch("POST", asked.link(), filled, **headers).status == status
    assert fetch("GET", asked.link()).status == 200
    assert asked.replace_requests() == []


@pytest.fixture(scope="module")
def asked(cloud: LocalCloud) -> Iterator[Scenario]:
    """A scenario that waits for its answer."""
    scenario = Scenario(cloud)
    scenario.raise_alarm(scenario.culprit())
    scenario.link()
    yield scenario
    scenario.answer("keep")
    assert scenario.end() == "REJECTED_KEPT"
