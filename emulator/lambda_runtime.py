"""Lambda without Docker: one long-lived process per function, started on first use. In: invocations by the
state machine, the queues, the HTTP front, boto3. Out: payloads or errors as AWS's Invoke returns them.

A process holds exactly the variables that the template gives its function, and what the Lambda service adds
(region, credentials, function name; here also the endpoint). What it prints goes to <folder>/<logical
id>.log; what it asked of AWS, once for each kind of request, to <logical id>.requests.jsonl.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .names import arn, function_name_of
from .plan import Function

log = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0  # imports on a busy machine; AWS gives init 10 s and then starts again


@dataclass(frozen=True, slots=True)
class Outcome:
    """What Invoke returns: the payload, and whether it is a function error."""

    payload: bytes
    failed: bool

    def json(self) -> Any:
        """The parsed payload."""
        return json.loads(self.payload)


class UnknownFunctionError(KeyError):
    """No function of that name is deployed."""


class Worker:
    """The process of one function; one invocation at a time."""

    def __init__(self, function: Function, environment: Mapping[str, str], folder: Path) -> None:
        self.function = function
        self._environment, self._folder = dict(environment), folder
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def environment(self) -> dict[str, str]:
        """All variables that the process has."""
        return {
            **self._environment,
            **self.function.variables,
            "AWS_LAMBDA_FUNCTION_NAME": self.function.name,
            "AWS_ACCESS_KEY_ID": self.function.access_key,
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ.get("PATH", os.defpath),
        }

    def start(self) -> None:
        """Start the process (a cold start), unless it runs."""
        with self._lock:
            try:
                self._ensure()
            except (EOFError, OSError):
                self._kill()  # the first call will say so

    def call(self, event: Any) -> Outcome:
        """Run the handler on one event; kills the process when the function's timeout ends."""
        request_id = str(uuid.uuid4())
        context = {
            "function_name": self.function.name,
            "invoked_function_arn": arn("lambda", f"function:{self.function.name}"),
            "memory_limit_in_mb": self.function.memory_mb,
            "aws_request_id": request_id,
            "timeout_seconds": self.function.timeout_seconds,
        }
        with self._lock:
            try:
                connection = self._ensure()
                connection.send_bytes(json.dumps({"event": event, "context": context}).encode())
                if not connection.poll(self.function.timeout_seconds):
                    self._kill()
                    text = f"Task timed out after {self.function.timeout_seconds:.2f} seconds"
                    return _failure("Sandbox.Timedout", f"RequestId: {request_id} Error: {text}")
                answer = json.loads(connection.recv_bytes())
            except (EOFError, OSError):
                self._kill()
                return _failure(
                    "Runtime.ExitError",
                    f"RequestId: {request_id} Error: Runtime exited without providing a reason",
                )
            if answer.get("exit"):
                self._kill()
        if "error" in answer:
            return Outcome(json.dumps(answer["error"]).encode(), failed=True)
        return Outcome(answer["result"].encode(), failed=False)

    def close(self) -> None:
        """End the process, also in the middle of a call, which then fails with Runtime.ExitError."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._kill()

    def _ensure(self) -> Connection:
        if self._closed:
            raise EOFError("the worker was closed")
        if self.pid is not None and self._connection is not None:
            return self._connection
        self._kill()
        ours, theirs = socket.socketpair()
        role = self._folder / f"{self.function.logical_id}.role.json"
        role.write_text(json.dumps(self.function.statements))
        with theirs, (self._folder / f"{self.function.logical_id}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "emulator.lambda_worker", str(theirs.fileno())),
                    *(self.function.handler, str(role)),
                ],
                env=self.environment(),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C goes to the cloud, which ends its workers itself
            )
        self._connection = Connection(ours.detach())
        if not self._connection.poll(START_SECONDS):
            raise EOFError
        self._connection.recv_bytes()
        return self._connection

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class LambdaRuntime:
    """All functions of one stack.

    Args:
        environment: what the Lambda service adds to every function.
        folder: for logs; the working directory of the processes.
    """

    def __init__(
        self, functions: Mapping[str, Function], environment: Mapping[str, str], folder: Path
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.failures: list[tuple[str, dict[str, Any]]] = []  # (logical id, error) of failed invocations
        self._environment = environment
        self._workers = {n: Worker(f, environment, folder) for n, f in functions.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._workers

    def worker(self, name: str) -> Worker:
        """The worker of a function, by physical name or logical id."""
        for worker in self._workers.values():
            if name in (worker.function.name, worker.function.logical_id):
                return worker
        raise UnknownFunctionError(name)

    def invoke(self, name_or_arn: str, event: Any) -> Outcome:
        """Run a function and wait for it.

        Raises:
            UnknownFunctionError: it is not deployed here.
        """
        worker = self.worker(function_name_of(name_or_arn))
        outcome = worker.call(event)
        if outcome.failed:
            error = outcome.json()
            self.failures.append((worker.function.logical_id, error))
            log.info(
                "%s failed: %s: %s", worker.function.logical_id, error["errorType"], error["errorMessage"]
            )
        return outcome

    def set_variables(self, name: str, **values: str) -> None:
        """Change variables that a function already has, as UpdateFunctionConfiguration does."""
        worker = self.worker(name)
        if missing := sorted(set(values) - set(worker.function.variables)):
            raise ValueError(f"{name} has no variable {missing}")
        function = replace(worker.function, variables=worker.function.variables | values)
        worker.close()
        self._workers[function.name] = Worker(function, self._environment, self.folder)

    def warm_up(self, *names: str) -> None:
        """Start processes ahead of their first use (all when none is named), two at a time."""
        workers = [self.worker(n) for n in names] if names else list(self._workers.values())
        for pair in (workers[i : i + 2] for i in range(0, len(workers), 2)):
            threads = [threading.Thread(target=w.start) for w in pair]
            for t in threads:
                t.start()
            for t in threads:
                t.join()

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()


def _failure(kind: str, message: str) -> Outcome:
    return Outcome(json.dumps({"errorType": kind, "errorMessage": message}).encode(), failed=True)
