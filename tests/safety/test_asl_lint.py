"""The state machine's resolved definition against the lint, and the lint against seeded defects."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from lambdas.steps import outcome
from lambdas.steps.outcome import StepResult

from . import asl

Definition = dict[str, Any]


def test_the_synthesized_definition_has_no_problem(definition: Definition) -> None:
    assert asl.problems(definition) == []


def test_the_only_task_that_calls_replace_is_the_step_replace(definition: Definition) -> None:
    tasks = {n: s for n, s in definition["States"].items() if s["Type"] == "Task"}
    assert [n for n, s in tasks.items() if asl.function_of(s) == asl.NEVER_AGAIN] == ["replace"]


def test_each_task_says_of_which_incident_by_the_executions_own_input(definition: Definition) -> None:
    for name, state in definition["States"].items():
        if state["Type"] == "Task":
            own = "$$.Execution.Input.incident_id"
            assert asl.payload_of(state)["incident_id.$"] == own, name


def _states(change: Callable[[dict[str, Any]], object]) -> Callable[[Definition], object]:
    return lambda d: change(d["States"])


IS_STRING = {"Variable": "$.outcome", "IsString": True}
DEFECTS: dict[str, tuple[Callable[[Definition], object], str]] = {
    "timeout": (_states(lambda s: s["verify"].pop("TimeoutSeconds")), "without a timeout"),
    "waiting without an end": (
        _states(lambda s: s["request_approval"].pop("TimeoutSecondsPath")),
        "without a timeout",
    ),
    "no catch": (_states(lambda s: s["contain"].pop("Catch")), "no Catch"),
    "replace retried": (
        _states(lambda s: s["replace"].update(Retry=s["verify"]["Retry"])),
        "a replacement is retried",
    ),
    "unknown errors retried": (
        _states(lambda s: s["decide"]["Retry"][0]["ErrorEquals"].append("States.ALL")),
        "does not know by name",
    ),
    "no default": (_states(lambda s: s["after decide"].pop("Default")), "not on the way to a human"),
    "default that acts": (
        _states(lambda s: s["after approval_answered"].update(Default="replace")),
        "not on the way to a human",
    ),
    "unguarded comparison": (
        _states(lambda s: s["after replace"]["Choices"][0]["And"].pop(0)),
        "not seen to be there",
    ),
    "a type in place of a presence": (
        _states(lambda s: s["after replace"]["Choices"][0]["And"].__setitem__(0, IS_STRING)),
        "not seen to be there",
    ),
    "a path that the callback's holder could leave out": (
        _states(lambda s: s["request_approval"].update(Next="wait before replace")),
        "$.wait_seconds",
    ),
    "a path that a caught error does not have": (
        _states(lambda s: s["confirm"]["Catch"][0].update(Next="wait before confirm")),
        "$.wait_seconds",
    ),
    "the answer's own incident": (
        _states(lambda s: s["replace"]["Parameters"].update({"incident_id.$": "$.incident"})),
        "$.incident",
    ),
    "a nested result": (
        _states(lambda s: s["locate"].update(ResultPath="$.locate")),
        "reshapes",
    ),
    "a token for nobody who waits": (
        _states(lambda s: s["decide"]["Parameters"].update({"task_token.$": "$$.Task.Token"})),
        "task token",
    ),
    "an island": (_states(lambda s: s.update(island={"Type": "Succeed"})), "never reached"),
    "nowhere": (_states(lambda s: s["wait before verify"].update(Next="verifying")), "does not exist"),
    "no outer bound": (lambda d: d.pop("TimeoutSeconds"), "no outer bound"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_lint_sees(definition: Definition, defect: str) -> None:
    broken = copy.deepcopy(definition)
    seed, expected = DEFECTS[defect]
    seed(broken)
    try:
        found = asl.problems(broken)
    except KeyError as e:  # a way that leads nowhere cannot be followed
        found = [f"leads to {e}, which does not exist"]
    assert any(expected in text for text in found), found


def test_an_answer_has_exactly_the_guaranteed_fields() -> None:
    assert StepResult("waiting", "still there").plain("x").keys() == asl.ANSWER


def test_an_answer_is_bounded_whatever_the_story() -> None:
    """A state's output may hold 256 KB; a node full of other jobs' pods makes a long story."""
    answer = StepResult("contained", "left alone: " + "pod " * 100_000).plain("x")
    assert len(json.dumps(answer)) <= 2 * outcome.MAX_STORY
