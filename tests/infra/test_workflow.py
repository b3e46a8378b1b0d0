"""The state machine: it cannot hang, it cannot replace twice, and it reads like the flow."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from infra.bundling import ROOT
from infra.functions import FUNCTIONS, WORKFLOW_STEPS
from infra.tasks import RETRYABLE
from lambdas.domain import errors

States = dict[str, Any]

EXTRA = {
    "approval_answered",
    "approval_timed_out",
    "tell_human",
    "tell_left_open",
}  # further tasks of request_approval
ANSWERS = {
    "approved": "replace",
    "check_approved": "confirm",
    "released": "resume",
    "rejected_release": "resume",
    "rejected_keep": "resume",
    "expired": "resume",
}
FLOW = {
    "locate": {"located": "contain", "joined": "joined", "waiting": "wait before locate"},
    "contain": {"contained": "decide"},
    "decide": {"confirm": "confirm", "approve": "request_approval", "release": "resume"},
    "confirm": {"confirmed": "decide", "waiting": "wait before confirm"},
    "approval_answered": ANSWERS,
    "approval_timed_out": ANSWERS | {"reminded": "request_approval"},
    "replace": {
        "replaced": "verify",
        "busy": "wait before replace",
        "reopened": "contain",
        "drilled": "resume",
    },
    "verify": {"verified": "resume", "waiting": "wait before verify"},
    "resume": {
        "closed": "closed",
        "waiting": "wait before resume",
        "reopened": "contain",
        "halted": "tell_human",
    },
}


def tasks(states: States) -> States:
    return {name: state for name, state in states.items() if state["Type"] == "Task"}


def test_tasks_are_named_like_the_step_files_from_locate_to_resume(states: States) -> None:
    sources = (ROOT / "lambdas" / "steps").glob("*.py")
    steps = {path.stem for path in sources if re.search(r"^class Needs\b", path.read_text(), re.M)}
    assert tasks(states).keys() - EXTRA == set(WORKFLOW_STEPS)
    assert set(WORKFLOW_STEPS) == steps - {"register", "ingest", "reconcile", "drill", "replace_by_label"}


def test_the_readme_names_the_same_flow() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.split("<!-- flow -->")[1].split("<!-- /flow -->")[0]
    first_column = re.findall(r"^\| *`?(\w+)`? *\|", table, re.M)
    named = [step for step in first_column if step in FUNCTIONS]
    assert [step for step in named if step in WORKFLOW_STEPS] == list(WORKFLOW_STEPS)


@pytest.mark.parametrize("step", FLOW)
def test_each_outcome_leads_where_the_flow_says(states: States, step: str) -> None:
    choice = states[states[step]["Next"]]
    found = {rule["And"][1]["StringEquals"]: rule["Next"] for rule in choice["Choices"]}
    assert found == FLOW[step]


def test_the_machine_starts_with_locate_and_has_an_outer_bound(machine: dict[str, Any]) -> None:
    assert machine["StartAt"] == "locate"
    assert machine["TimeoutSeconds"] <= 30 * 86400


def test_every_task_has_a_timeout(states: States) -> None:
    for name, task in tasks(states).items():
        assert "TimeoutSeconds" in task or "TimeoutSecondsPath" in task, name
    assert states["request_approval"]["TimeoutSecondsPath"] == "$.patience_seconds"


def test_a_task_outlives_its_function(states: States) -> None:
    for step in WORKFLOW_STEPS:
        if step != "request_approval":
            assert states[step]["TimeoutSeconds"] > FUNCTIONS[step].timeout_s


def test_replace_is_never_retried(states: States) -> None:
    assert "Retry" not in states["replace"]


def test_the_others_are_retried_on_named_errors_only(states: States) -> None:
    for name, task in tasks(states).items():
        if name != "replace":
            (retry,) = task["Retry"]
            assert set(RETRYABLE) <= set(retry["ErrorEquals"])
            assert not [error for error in retry["ErrorEquals"] if error.startswith("States.")]
            assert retry["MaxAttempts"] <= 5


def test_the_retried_errors_are_the_retryable_classes() -> None:
    assert set(RETRYABLE) == {cls.__name__ for cls in errors.RetryableError.__subclasses__()}


def test_every_choice_has_a_default_that_leads_to_a_human(states: States) -> None:
    choices = {name: state for name, state in states.items() if state["Type"] == "Choice"}
    assert len(choices) == len(FLOW)
    for name, choice in choices.items():
        assert choice["Default"] == ("tell_left_open" if name == "after resume" else "tell_human")


def test_an_answer_without_an_outcome_takes_the_default_instead_of_failing(states: States) -> None:
    for state in states.values():
        for rule in state.get("Choices", []):
            assert rule["And"][0] == {"Variable": "$.outcome", "IsPresent": True}


def test_every_failure_is_caught(states: States) -> None:
    after = {name: task["Catch"][-1] for name, task in tasks(states).items()}
    assert all(catch["ErrorEquals"] == ["States.ALL"] for catch in after.values())
    told = {"tell_human": "left_open", "tell_left_open": "left_open", "resume": "tell_left_open"}
    told["replace"] = "verify"  # it may have called before it died
    assert {name: catch["Next"] for name, catch in after.items()} == {
        name: told.get(name, "tell_human") for name in after
    }


def test_a_failing_resume_does_not_turn_in_circles(states: States) -> None:
    """tell_human leads to resume: if resume led back, each round would be one more mail."""
    assert states["tell_human"]["Next"] == "resume"
    assert states["resume"]["Catch"][-1]["Next"] == "tell_left_open"
    assert states["tell_left_open"]["Next"] == "left_open"
    assert states["left_open"]["Type"] == "Fail"


def test_the_callback_decides_nothing(states: States) -> None:
    """A stolen task token alone must do nothing: the row is read again whatever the callback said."""
    assert states["request_approval"]["Next"] == "approval_answered"
    assert states["approval_answered"]["Parameters"]["answered"] is True
    assert states["approval_answered"]["Resource"] == "RequestApprovalFunction"


def test_silence_is_no_consent(states: States) -> None:
    expired, _ = states["request_approval"]["Catch"]
    assert expired == {"ErrorEquals": ["States.Timeout"], "Next": "approval_timed_out"}
    assert states["approval_timed_out"]["Parameters"]["timed_out"] is True
    assert FLOW["approval_timed_out"]["expired"] == "resume"


def test_no_answer_can_turn_the_flow_to_another_incident(states: States) -> None:
    for name, task in tasks(states).items():
        payload = task["Parameters"].get("Payload", task["Parameters"])
        assert payload["incident_id.$"] == "$$.Execution.Input.incident_id", name
        assert "ResultPath" not in task


def test_only_the_request_holds_the_task_token(states: States) -> None:
    holders = [name for name, task in tasks(states).items() if "$$.Task.Token" in json.dumps(task)]
    assert holders == ["request_approval"]
    assert states["request_approval"]["Resource"].endswith(":states:::lambda:invoke.waitForTaskToken")


def test_the_human_is_told_what_went_before(states: States) -> None:
    for name in ("tell_human", "tell_left_open"):
        assert states[name]["Parameters"]["notice"] == "human"
        assert states[name]["Parameters"]["seen.$"] == "$"
        assert states[name]["Resource"] == "RequestApprovalFunction"


def test_the_log_carries_no_execution_data(resources: dict[str, Any]) -> None:
    properties = resources["IncidentWorkflow"]["Properties"]
    assert properties["LoggingConfiguration"]["IncludeExecutionData"] is False
    assert properties["LoggingConfiguration"]["Level"] == "ERROR"
    assert properties.get("StateMachineType", "STANDARD") == "STANDARD"


def test_every_state_is_reached_and_every_target_exists(machine: dict[str, Any]) -> None:
    states, reached, waiting = machine["States"], set(), [machine["StartAt"]]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += re.findall(r'"(?:Next|Default)": "([^"]+)"', json.dumps(states[name]))
    assert reached == states.keys()


def test_the_console_says_what_each_step_is_for_and_how_to_read_the_incident_elsewhere(
    machine: States, states: States
) -> None:
    assert "sdc show" in machine["Comment"]
    assert [n for n, s in states.items() if s["Type"] in ("Task", "Succeed") and not s.get("Comment")] == []
