"""Walks the synthesized state machine in memory, with real handlers and simulated time.

In: the resolved definition, a way to call a function, a clock. Out: executions that stand in a state, wait
for a moment or for a token, or have ended. It knows the part of the Amazon States Language that the
definition uses and refuses the rest, so that nothing is skipped in silence. A `Wait` advances no real time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from .asl import Definition, State, function_of, payload_of

Call = Callable[[str, dict[str, Any]], dict[str, Any]]
MAX_HISTORY = 25_000  # events of one execution, AWS's limit
EVENTS_PER_STATE = 5  # scheduled, started, entered, exited, and one in reserve


class Killed(BaseException):
    """The function's process ends at once: no answer, no `except`."""


class UnsupportedError(Exception):
    """The definition uses something that this interpreter does not know."""


@dataclass
class Execution:
    """One run of the machine; `state` is the one to be entered next, or the one that waits."""

    name: str
    incident_id: str
    state: str
    data: Any
    status: str = "RUNNING"  # or SUCCEEDED, FAILED
    due: datetime | None = None  # of a Wait, a retry, or the timeout of a waiting task
    token: str | None = None  # while it waits for one
    attempts: dict[int, int] = field(default_factory=dict)  # by retrier of the present state
    walked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    events: int = 0

    @property
    def running(self) -> bool:
        return self.status == "RUNNING"


class Machine:
    """All executions; `run` goes on until each one waits or has ended."""

    def __init__(self, definition: Definition, call: Call, now: Callable[[], datetime]) -> None:
        self.states: dict[str, State] = definition["States"]
        self._start = definition["StartAt"]
        self._call = call
        self._now = now
        self._tokens = itertools.count(1)
        self.executions: dict[str, Execution] = {}

    def start(self, name: str, incident_id: str) -> Execution:
        """Start once; the same name again is the same execution."""
        if name not in self.executions:
            data = {"incident_id": incident_id}
            self.executions[name] = Execution(name, incident_id, self._start, data)
        return self.executions[name]

    def run(self, one: Execution | None = None) -> None:
        """Go on with what is not waiting for a later moment or for a token."""
        for execution in [one] if one is not None else list(self.executions.values()):
            while execution.running and execution.token is None and self._is_due(execution):
                self.step(execution)

    def next_due(self) -> datetime | None:
        """When something happens by itself."""
        return min((e.due for e in self.executions.values() if e.running and e.due), default=None)

    def expire(self) -> list[str]:
        """Time out the waiting tasks that are due; returns their tokens, which are dead now."""
        dead = []
        for e in self.executions.values():
            if e.running and e.token is not None and self._is_due(e):
                dead.append(e.token)
                e.token, e.due = None, None
                self._fail(e, "States.Timeout", "")
        return dead

    def answer(self, token: str, output: dict[str, Any]) -> bool:
        """SendTaskSuccess; False when nobody waits with this token."""
        for e in self.executions.values():
            if e.running and e.token == token:
                e.token, e.due = None, None
                self._leave(e, output)
                return True
        return False

    def step(self, execution: Execution) -> None:
        """Enter the present state."""
        execution.due = None
        state = self.states[execution.state]
        execution.events += EVENTS_PER_STATE
        assert execution.events < MAX_HISTORY, f"{execution.name}: the history is full"
        if not execution.walked or execution.walked[-1] != execution.state:
            execution.walked.append(execution.state)
        kind = state["Type"]
        if kind == "Task":
            self._task(execution, state)
        elif kind == "Choice":
            taken = (r["Next"] for r in state["Choices"] if _holds(r, execution.data))
            self._go(execution, next(taken, state["Default"]))
        elif kind == "Wait":
            seconds = _read(state["SecondsPath"], execution, None)
            execution.due = self._now() + timedelta(seconds=seconds)
            self._go(execution, state["Next"])
        elif kind in ("Succeed", "Fail"):
            execution.status = "SUCCEEDED" if kind == "Succeed" else "FAILED"
        else:
            raise UnsupportedError(kind)

    def _task(self, execution: Execution, state: State) -> None:
        waits = "waitForTaskToken" in state["Resource"]
        token = f"token-{next(self._tokens)}-{execution.name}" if waits else None
        payload = _fill(payload_of(state), execution, token)
        patience = state.get("TimeoutSeconds")
        if patience is None:
            patience = _read(state["TimeoutSecondsPath"], execution, None)
        if waits:  # the token is good from the moment on that the function has it
            execution.token, execution.due = token, self._now() + timedelta(seconds=patience)
        try:
            output = self._call(function_of(state), payload)
        except Killed:
            execution.token, execution.due = None, None
            self._fail(execution, "Runtime.ExitError", "the process ended")
        except Exception as e:  # noqa: BLE001  # as Lambda does: the class name is the error
            execution.token, execution.due = None, None
            self._fail(execution, type(e).__name__, str(e))
        else:
            if not waits:
                self._leave(execution, json.loads(json.dumps(output)))

    def _leave(self, execution: Execution, output: Any) -> None:
        execution.data = output
        self._go(execution, self.states[execution.state]["Next"])

    def _go(self, execution: Execution, state: str) -> None:
        execution.state, execution.attempts = state, {}

    def _fail(self, execution: Execution, error: str, cause: str) -> None:
        state = self.states[execution.state]
        execution.errors.append(f"{execution.state}: {error}: {cause}")
        for i, retry in enumerate(state.get("Retry", [])):
            tried = execution.attempts.get(i, 0)
            if _matches(retry["ErrorEquals"], error) and tried < retry["MaxAttempts"]:
                execution.attempts[i] = tried + 1
                pause = retry["IntervalSeconds"] * retry["BackoffRate"] ** tried
                execution.due = self._now() + timedelta(seconds=min(pause, retry["MaxDelaySeconds"]))
                return
        for catch in state.get("Catch", []):
            if _matches(catch["ErrorEquals"], error):
                execution.data = {"Error": error, "Cause": cause}
                self._go(execution, catch["Next"])
                return
        execution.status = "FAILED"

    def _is_due(self, execution: Execution) -> bool:
        return execution.due is None or execution.due <= self._now()


def _matches(names: list[str], error: str) -> bool:
    return error in names or "States.ALL" in names


def _holds(rule: dict[str, Any], data: Any) -> bool:
    if "And" in rule:
        return all(_holds(part, data) for part in rule["And"])
    name = rule["Variable"][2:]
    present = isinstance(data, dict) and name in data
    if "IsPresent" in rule:
        return bool(present is rule["IsPresent"])
    if not present:  # States.Runtime on AWS, which no Catch catches
        raise UnsupportedError(f"{rule['Variable']} is not there: {rule}")
    value = data[name]
    if "IsString" in rule:
        return isinstance(value, str) is rule["IsString"]
    if "StringEquals" in rule:
        return bool(value == rule["StringEquals"])
    raise UnsupportedError(str(rule))


def _fill(template: dict[str, Any], execution: Execution, token: str | None) -> dict[str, Any]:
    filled = {}
    for key, value in template.items():
        if key.endswith(".$"):
            filled[key[:-2]] = _read(value, execution, token)
        else:
            filled[key] = value
    return filled


def _read(path: str, execution: Execution, token: str | None) -> Any:
    if path == "$":
        return execution.data
    if path == "$$.Execution.Input.incident_id":
        return execution.incident_id
    if path == "$$.Execution.Id":
        return f"arn:aws:states:us-east-1:123456789012:execution:IncidentWorkflow:{execution.name}"
    if path == "$$.Task.Token" and token is not None:
        return token
    if path.startswith("$.") and isinstance(execution.data, dict) and path[2:] in execution.data:
        return execution.data[path[2:]]
    raise UnsupportedError(f"{path} in {execution.state}: States.Runtime on AWS")
