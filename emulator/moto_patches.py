"""Repairs of moto 5.2.5 that an honest local Step Functions needs. In: moto as installed. Out: moto patched.

Each repair was found by running it (docs of the real service on one side, moto's answer on the other):

1. SendTaskFailure dropped `cause`.
2. StopExecution left an execution that waits for a callback in RUNNING for ever, and dropped error and cause;
   it ends ABORTED now, with both.
3. StartExecution without a name was named "None", so that the second one collided; it gets a UUID, and two
   simultaneous starts under one name no longer both succeed.
4. Wait and Retry sleep real time; both are multiplied by the time scale (a callback's TimeoutSeconds is not).
5. The JSONata evaluator was a stub; PyPI's jsonata-python is put in when it is installed.

Beside them: the interpreter's boto3 clients are made once and shared (making them is not thread-safe, and
each one left a socket behind). Another moto version is refused, because every line here leans on its
internals.
"""

from __future__ import annotations

import importlib
import threading
import time
import types
import uuid
from datetime import datetime, timezone
from typing import Any

import boto3
import moto
from moto.core.responses import ActionResult, EmptyResult

from .names import LOOPBACK

SUPPORTED = "5.2.5"
_state: dict[str, Any] = {"installed": False, "scale": 1.0}
_clients: dict[tuple[str, str, str], Any] = {}
_clients_lock = threading.Lock()
_start_lock = threading.Lock()


class MotoVersionError(RuntimeError):
    """The installed moto is not the one that these repairs were written for."""


def require_version(found: str) -> None:
    """Refuse a moto whose internals we do not know.

    Raises:
        MotoVersionError: says which version to install.
    """
    if found != SUPPORTED:
        raise MotoVersionError(
            f"moto {found} is installed, but emulator/moto_patches.py repairs the internals of {SUPPORTED}: "
            f"install moto=={SUPPORTED}, or go through the repairs and raise SUPPORTED"
        )


def install(wait_scale: float) -> None:
    """Patch moto in this process (once) and set how much waits shrink (every time)."""
    require_version(moto.__version__)
    _state["scale"] = wait_scale
    if _state["installed"]:
        return
    _keep_failure_cause()
    _abort_waiting_callbacks()
    _name_executions()
    _scale_waits()
    _evaluate_jsonata()
    _share_clients()
    _state["installed"] = True


def close_clients() -> None:
    """Close the interpreter's connections; the next execution makes new ones."""
    with _clients_lock:
        for client in _clients.values():
            client.close()
        _clients.clear()


def _keep_failure_cause() -> None:
    responses = importlib.import_module("moto.stepfunctions.responses")

    def send_task_failure(self: Any) -> Any:
        self.stepfunction_backend.send_task_failure(
            self._get_param("taskToken"), error=self._get_param("error"), cause=self._get_param("cause")
        )
        return EmptyResult()

    responses.StepFunctionResponse.send_task_failure = send_task_failure


def _abort_waiting_callbacks() -> None:
    responses = importlib.import_module("moto.stepfunctions.responses")
    module = importlib.import_module("moto.stepfunctions.parser.backend.execution")
    aborted = importlib.import_module("moto.stepfunctions.parser.api").ExecutionStatus.ABORTED
    original_stop = module.Execution.stop
    original_reflect = module.BaseExecutionWorkerCommunication._reflect_execution_status

    def stop(self: Any, stop_date: Any, error: str | None, cause: str | None) -> None:
        self.stopped_with = (error, cause)
        original_stop(self, stop_date, error, cause)
        for endpoint in list(self.exec_worker.env.callback_pool_manager._pool.values()):
            endpoint.interrupt_all()

    def reflect(self: Any) -> None:
        original_reflect(self)
        stopped = getattr(self.execution, "stopped_with", None)
        if stopped is not None:
            self.execution.exec_status = aborted
            self.execution.error, self.execution.cause = stopped

    def stop_execution(self: Any) -> Any:
        execution = self.stepfunction_backend.describe_execution(self._get_param("executionArn"))
        if execution.status == "RUNNING":
            now = datetime.now(timezone.utc)
            execution.stop(stop_date=now, error=self._get_param("error"), cause=self._get_param("cause"))
            execution.stop_date = now
        return ActionResult({"stopDate": execution.stop_date})

    responses.StepFunctionResponse.stop_execution = stop_execution
    module.Execution.stop = stop
    module.BaseExecutionWorkerCommunication._reflect_execution_status = reflect


def _name_executions() -> None:
    models = importlib.import_module("moto.stepfunctions.parser.models")
    original = models.StepFunctionsParserBackend.start_execution

    def start_execution(self: Any, state_machine_arn: str, name: Any = None, *args: Any, **kw: Any) -> Any:
        with _start_lock:  # moto looks the name up and appends it in two steps
            return original(self, state_machine_arn, name or str(uuid.uuid4()), *args, **kw)

    models.StepFunctionsParserBackend.start_execution = start_execution


def _scale_waits() -> None:
    wait = importlib.import_module(
        "moto.stepfunctions.parser.asl.component.state.wait.wait_function.wait_function"
    )
    retry: Any = importlib.import_module("moto.stepfunctions.parser.asl.component.common.retry.retrier_decl")

    def wait_interval(self: Any, env: Any, wait_seconds: float) -> None:
        end = time.monotonic() + wait_seconds * _state["scale"]
        while env.is_running() and (left := end - time.monotonic()) > 0:
            env.program_state_event.wait(left)
            if left > 0 and env.program_state_event.is_set():
                time.sleep(min(left, 0.01))  # the event stays set: do not spin

    wait.WaitFunction._wait_interval = wait_interval
    retry.time = types.SimpleNamespace(sleep=lambda seconds: time.sleep(seconds * _state["scale"]))


def _evaluate_jsonata() -> None:
    try:
        jsonata = importlib.import_module("jsonata")
    except ImportError:
        return  # the machine is JSONPath; only a JSONata state would need it
    module: Any = importlib.import_module("moto.stepfunctions.parser.asl.jsonata.jsonata")

    def evaluate(expression: str) -> Any:
        try:
            return jsonata.Jsonata(expression).evaluate(None)
        except Exception as e:
            raise module.JSONataException("UNKNOWN", str(e)) from e

    module._eval_jsonata = evaluate


def _share_clients() -> None:
    module: Any = importlib.import_module("moto.stepfunctions.parser.asl.utils.boto_client")

    def client(**kw: Any) -> Any:
        endpoint = str(kw.get("endpoint_url", "")).replace("//localhost:", f"//{LOOPBACK}:")
        key = (kw["service_name"], kw["region_name"], endpoint)
        with _clients_lock:
            if key not in _clients:
                _clients[key] = boto3.session.Session().client(**{**kw, "endpoint_url": endpoint or None})
            return _clients[key]

    module.boto3 = types.SimpleNamespace(client=client)
