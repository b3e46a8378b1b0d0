"""300 executions of the synthesized definition by moto's Step Functions, each decision row with each answer.

The in-memory walker of the other proofs could misread the definition; here a second interpreter reads it,
through the real adapters for starting and answering. Handlers and world are those of the plant; each call of
a function that polls moves the plant's clock, and waits shrink to nothing.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from moto import mock_aws

from emulator import moto_patches
from lambdas import handlers, wiring
from lambdas.adapters import aws
from lambdas.adapters.stepfunctions import StateMachine, TaskCallback
from tests.patience import PATIENCE_S
from tests.unit.lambdas.conftest import clients as clients  # the fixture
from tests.unit.lambdas.drive import CONTEXT
from training_agent.contract import Check

from .asl import Definition
from .fleet import JobRun
from .plant import Plant
from .test_rows import ANSWERS, CASES, Case, expected_end
from .threads import unshared

RecordProperty = Callable[[str, object], None]
EXECUTIONS = 300
POLLING = frozenset({"confirm", "replace", "verify", "resume"})
TICK = timedelta(minutes=10)
LONG_CASES = frozenset({"V2 stuck", "V2 never started"})  # walked once with each answer


class Cloud:
    """moto's Step Functions in front of a plant's handlers."""

    def __init__(self, plant: Plant, definition: Definition, patched: pytest.MonkeyPatch) -> None:
        self.plant = plant
        self._returning: set[str] = set()
        self._one = threading.Lock()
        module = importlib.import_module("moto.awslambda_simple.models")
        patched.setattr(module.LambdaSimpleBackend, "invoke", self._invoke)
        self._client = aws.client("stepfunctions")
        self.arn = self._client.create_state_machine(
            name="incidents", definition=deployed(definition), roleArn="arn:aws:iam::123456789012:role/x"
        )["stateMachineArn"]
        patched.setitem(wiring.FACTORIES, "workflow", lambda _s: StateMachine(self.arn))
        patched.setitem(wiring.FACTORIES, "callback", lambda _s: TaskCallback())
        wiring.needs.cache_clear()

    def _invoke(self, name: str, qualifier: Any, body: Any, headers: Any, response_headers: Any) -> bytes:
        """A Lambda function, as Invoke answers for it."""
        payload = json.loads(body)
        function = self.plant.function(name.rsplit(":", 1)[-1])
        with self._one:
            if function in POLLING:
                self.plant.tick(TICK)
            if payload.get("timed_out"):  # moto waited in real time, which the plant's clock has not seen
                self.plant.tick(timedelta(seconds=1))
            if function == "resume":
                self._let_return(payload["incident_id"])
            self.plant.wires.enter(function, payload["incident_id"])
            try:
                answer = inspect.unwrap(getattr(handlers, function))(payload, CONTEXT)
            except Exception as e:  # noqa: BLE001  # as Lambda does: the class name is the error
                response_headers["x-amz-function-error"] = "Unhandled"
                answer = {"errorType": type(e).__name__, "errorMessage": str(e)}
        return json.dumps(answer).encode()

    def _let_return(self, incident_id: str) -> None:
        """The job starts again an hour after somebody began to look for it."""
        uid = self.plant.incident(incident_id).job.uid
        job = next(j for j in self.plant.jobs if j.job.uid == uid)
        if incident_id not in self._returning:
            self._returning.add(incident_id)
            self.plant.later(timedelta(hours=1), partial(self.plant.job_returns, job))

    def status(self, incident_id: str) -> str:
        arn = self.arn.replace(":stateMachine:", ":execution:") + f":{incident_id}-1"
        return str(self._client.describe_execution(executionArn=arn)["status"])

    def play(self, name: str, case: Case, job: JobRun, answer: str) -> str:
        """One alarm from the bus to the execution's end; its incident's id."""
        plant = self.plant
        plant.setting("APPROVAL_TIMEOUT_SECONDS", "1" if answer == "expire" else "604800")
        plant.world.cluster.check_ends = case.check  # type: ignore[attr-defined]
        with self._one:
            (incident,) = plant.alarm(plant.alarm_of(case.finding(job), job=job, check=Check.REPLAY))
        asked = self._until(lambda: self._asks(incident.id) or self.status(incident.id) != "RUNNING")
        assert asked, f"{name}: neither asks nor ends"
        if case.asks and answer != "expire":
            with self._one:
                refused = case.held and answer == "release"
                assert plant.human(incident.id, answer) == (400 if refused else 200), name
                if refused:  # nothing is recorded; a person thinks again
                    assert plant.human(incident.id, "keep") == 200
        assert self._until(lambda: self.status(incident.id) != "RUNNING"), f"{name}: does not end"
        assert self.status(incident.id) == "SUCCEEDED", name
        return incident.id

    def _asks(self, incident_id: str) -> bool:
        with self._one:
            rows = list(self.plant.world.approvals.rows.values())
        return any(r.incident_id == incident_id and r.mailed for r in rows)

    def _until(self, done: Callable[[], bool]) -> bool:
        end = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True


def deployed(definition: Definition) -> str:
    """The definition as CloudFormation hands it over: with ARNs in place of logical ids."""
    text = json.dumps(definition).replace("arn:AWS::Partition:", "arn:aws:")
    function = "arn:aws:lambda:us-east-1:123456789012:function:"
    return re.sub(r'("Resource": ")(\w+Function")', rf"\g<1>{function}\g<2>", text)


@pytest.fixture
def aws_by_moto(clients: None) -> Iterator[None]:
    moto_patches.install(wait_scale=1e-6)
    config = {"lambda": {"use_docker": False}, "stepfunctions": {"execute_state_machine": True}}
    with mock_aws(config=config):
        yield
    moto_patches.close_clients()


def schedule(count: int) -> list[tuple[str, str]]:
    """Which case with which answer, evenly, the long ones once."""
    every = [(name, answer) for name in CASES for answer in ANSWERS]
    again = [pair for pair in every if pair[0] not in LONG_CASES]
    return list(itertools.islice(itertools.chain(every, itertools.cycle(again)), count))


def walk(
    monkeypatch: pytest.MonkeyPatch, definition: Definition, todo: list[tuple[str, str]]
) -> Counter[str]:
    plant = Plant(monkeypatch, definition, jobs=len(todo))
    for name in ("REPLACEMENTS_PER_DAY", "REPLACEMENTS_PER_HOUR"):
        plant.setting(name, "1000")
    plant.watch.limits.per_day = plant.watch.limits.per_hour = 1000
    unshared(monkeypatch)
    cloud = Cloud(plant, definition, monkeypatch)
    ends: Counter[str] = Counter()
    for job, (name, answer) in zip(plant.jobs, todo, strict=True):
        case = CASES[name]
        suspect = job.instances[1]
        replaced = len(plant.watch.issued)
        end = plant.incident(cloud.play(f"{name}, {answer}", case, job, answer))
        thought_again = "keep" if case.held and answer == "release" else answer
        assert end.state.value == expected_end(case, thought_again), (name, answer, end)
        issued = [i.instance_id for i in plant.watch.issued[replaced:]]
        assert issued == ([suspect] if end.state.value == "REPLACED" else [])
        assert not plant.world.incidents.gates and not plant.world.controls.locks
        if suspect in plant.world.cluster.members:  # a check that is stuck ends at last
            plant.world.cluster.set_status(suspect, "Running")
        ends[end.state.value] += 1
    assert plant.violations() == [] and not plant.dead_letters
    assert plant.watch.calls["cluster.replace"] == ends["REPLACED"]
    return ends


def test_executions_by_moto_end_where_the_table_says(
    monkeypatch: pytest.MonkeyPatch, definition: Definition, aws_by_moto: None
) -> None:
    todo = [("C1", "approve"), ("V2 passes", "keep"), ("R1", "approve"), ("W1", "expire"), ("S1", "keep")]
    ends = walk(monkeypatch, definition, todo)
    assert ends == {"REPLACED": 1, "RELEASED": 2, "EXPIRED": 1, "HANDED_TO_HUMAN": 1}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_300_executions_by_moto(
    monkeypatch: pytest.MonkeyPatch,
    definition: Definition,
    aws_by_moto: None,
    record_property: RecordProperty,
) -> None:
    ends = walk(monkeypatch, definition, schedule(EXECUTIONS))
    assert ends.total() == EXECUTIONS
    record_property("ends", dict(ends))
