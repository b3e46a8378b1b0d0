"""A lint for the state machine's resolved definition: what a reviewer would look for, as rules.

In: a definition (Amazon States Language, JSONPath). Out: one sentence per problem. The data flow is followed:
a state may read only the fields that every way into it guarantees: a missing path is `States.Runtime`,
which no Catch catches on AWS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

State = dict[str, Any]
Definition = dict[str, Any]

START = frozenset({"incident_id"})  # what `ingest` starts an execution with
ANSWER = frozenset(
    {"incident_id", "outcome", "story", "wait_seconds", "approval_timeout_seconds", "patience_seconds"}
)
CAUGHT = frozenset({"Error", "Cause"})
NOTHING: frozenset[str] = frozenset()
CONTEXT = frozenset({"$$.Execution.Id", "$$.Execution.Input.incident_id", "$$.Task.Token"})
NEVER_AGAIN = "ReplaceFunction"
HUMAN = frozenset({"tell_human", "tell_left_open", "left_open", "resume"})  # where what is not known may lead
MAX_ATTEMPTS = 5
RESHAPING = ("ResultPath", "ResultSelector", "OutputPath", "InputPath", "Result", "Assign", "Output")


def function_of(state: State) -> str:
    """Logical id of the Lambda function behind a task."""
    name = state.get("Parameters", {}).get("FunctionName", state["Resource"])
    return str(name)


def payload_of(state: State) -> dict[str, Any]:
    parameters: dict[str, Any] = state.get("Parameters", {})
    payload: dict[str, Any] = parameters.get("Payload", parameters)
    return payload


def problems(definition: Definition) -> list[str]:
    """All that is wrong with the definition; empty when nothing is."""
    states: dict[str, State] = definition["States"]
    found = [f"{name}: {text}" for name, state in states.items() for text in _local(state, states)]
    found += [f"{name}: {text}" for name, text in _paths(definition)]
    if "TimeoutSeconds" not in definition:
        found.append("the execution has no outer bound")
    return found


def _local(state: State, states: dict[str, State]) -> Iterator[str]:
    for key in RESHAPING:
        if key in state:
            yield f"{key} reshapes the data: the answer of the function is the state's output"
    if state["Type"] == "Task":
        yield from _task(state)
    if state["Type"] == "Choice":
        yield from _choice(state)
    for target in targets(state):
        if target not in states:
            yield f"leads to {target}, which does not exist"


def _task(task: State) -> Iterator[str]:
    if "TimeoutSeconds" not in task and "TimeoutSecondsPath" not in task:
        yield "a task without a timeout"
    if not any(catch["ErrorEquals"] == ["States.ALL"] for catch in task.get("Catch", [])):
        yield "no Catch of States.ALL"
    for retry in task.get("Retry", []):
        if function_of(task) == NEVER_AGAIN:
            yield "a replacement is retried"
        if retry.get("MaxAttempts", 3) > MAX_ATTEMPTS:
            yield "retried too often"
        if any(error.startswith("States.") for error in retry["ErrorEquals"]):
            yield "retries what it does not know by name"
    waits = "waitForTaskToken" in task["Resource"]
    if waits != ("$$.Task.Token" in payload_of(task).values()):
        yield "a task token goes exactly to the task that waits for it"


def _choice(choice: State) -> Iterator[str]:
    if choice.get("Default") not in HUMAN:
        yield f"Default {choice.get('Default')!r} is not on the way to a human"
    for rule in choice["Choices"]:
        parts = rule.get("And", [rule])
        # On AWS a missing path fails in every operator but IsPresent, behind which an And is not read on.
        if any(p["Variable"] != parts[0]["Variable"] or not parts[0].get("IsPresent") for p in parts):
            yield "compares a variable that it has not seen to be there"


def targets(state: State) -> list[str]:
    """Every state that may follow."""
    ways = [state.get("Next"), state.get("Default")]
    ways += [rule["Next"] for key in ("Choices", "Catch") for rule in state.get(key, [])]
    return [way for way in ways if way is not None]


def guaranteed(definition: Definition) -> dict[str, frozenset[str]]:
    """Fields of `$` that every way into each state guarantees (greatest fixed point); unreached: absent."""
    known: dict[str, frozenset[str]] = {definition["StartAt"]: START}
    todo = [definition["StartAt"]]
    while todo:
        name = todo.pop()
        for target, fields in _out(definition["States"][name], known[name]):
            before = known.get(target)
            after = fields if before is None else before & fields
            if after != before:
                known[target] = after
                todo.append(target)
    return known


def _out(state: State, fields: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """(next state, what it is given)."""
    answer = fields
    if state["Type"] == "Task":
        # Whoever holds the token of a waiting task chooses its output: nothing is guaranteed.
        answer = NOTHING if "waitForTaskToken" in state["Resource"] else ANSWER
    caught = [rule["Next"] for rule in state.get("Catch", [])]
    for target in caught:
        yield target, CAUGHT
    ways = [state.get("Next"), state.get("Default"), *(rule["Next"] for rule in state.get("Choices", []))]
    for target in ways:
        if target is not None:
            yield target, answer


def _paths(definition: Definition) -> Iterator[tuple[str, str]]:
    known = guaranteed(definition)
    for name, state in definition["States"].items():
        if name not in known:
            yield name, "is never reached"
            continue
        own = {k: v for k, v in state.items() if k not in ("Choices", "Comment", "Error", "Cause")}
        for path in re.findall(r'"(\$[^"]*)"', json.dumps(own)):
            if path == "$" or path in CONTEXT:
                continue
            if not re.fullmatch(r"\$\.\w+", path) or path[2:] not in known[name]:
                yield name, f"reads {path}, which not every way into it guarantees"
