"""One Lambda function in its own process. In: events as JSON on a socket. Out: what the Python runtime
answers.

Started by `lambda_runtime` as ``python -m emulator.lambda_worker FD HANDLER ROLE``; ends when the socket
closes. A call that the role does not allow is denied here, before it is sent, with the service's error.
Errors are reported as AWS's runtime does: errorType is the class name, so that Retry and Catch match by it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import iam

Handler = Callable[[Any, Any], Any]


@dataclass
class Context:
    """The context object of the Python runtime."""

    function_name: str
    invoked_function_arn: str
    memory_limit_in_mb: int
    aws_request_id: str
    deadline: float  # time.monotonic()
    function_version: str = "$LATEST"
    log_stream_name: str = "local"
    identity: Any = None
    client_context: Any = None
    tenant_id: str | None = None

    @property
    def log_group_name(self) -> str:
        """Log group of the function."""
        return f"/aws/lambda/{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the runtime kills this invocation."""
        return max(0, int((self.deadline - time.monotonic()) * 1000))


class InitError(Exception):
    """The handler could not be loaded; carries the runtime's error type."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


def load(handler: str) -> Handler:
    """Import the handler that the template names.

    Raises: InitError: as Runtime.ImportModuleError, Runtime.HandlerNotFound, or the exception of the
    module's body.
    """
    module_name, _, name = handler.rpartition(".")
    try:
        module = importlib.import_module(module_name.replace("/", "."))
    except ImportError as e:
        traceback.print_exc()
        raise InitError("Runtime.ImportModuleError", f"Unable to import module '{module_name}': {e}") from e
    except SyntaxError as e:
        raise InitError("Runtime.UserCodeSyntaxError", f"Syntax error in module '{module_name}': {e}") from e
    except Exception as e:
        traceback.print_exc()
        raise InitError(type(e).__name__, str(e)) from e
    if not hasattr(module, name):
        raise InitError("Runtime.HandlerNotFound", f"Handler '{name}' missing on module '{module_name}'")
    return getattr(module, name)  # type: ignore[no-any-return]


def invoke(handler: Handler, event: Any, context: Any) -> dict[str, Any]:
    """``{"result": text}`` or ``{"error": {...}}`` for one event."""
    try:
        result = handler(event, context)
    except SystemExit as e:
        error = {"errorType": "Runtime.ExitError", "errorMessage": f"Runtime exited with error: {e.code}"}
        return {"error": error, "exit": True}
    except BaseException as e:  # noqa: BLE001  (the runtime reports whatever the handler raises)
        traceback.print_exc()
        return {"error": _error(type(e).__name__, str(e), context, traceback.format_tb(e.__traceback__))}
    try:
        return {"result": json.dumps(result, default=_number, allow_nan=True)}
    except (TypeError, ValueError) as e:
        return {"error": _error("Runtime.MarshalError", f"Unable to marshal response: {e}", context, [])}


def _error(kind: str, message: str, context: Any, stack: list[str]) -> dict[str, Any]:
    return {
        "errorMessage": message,
        "errorType": kind,
        "requestId": context.aws_request_id,
        "stackTrace": stack,
    }


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):  # the runtime's JSON knows what DynamoDB returns
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def guard(role: Path) -> None:
    """Hold every boto3 call of this process to the role's statements, and note each new kind of request.

    Raises: NotImplementedError: from the call, for one that `iam` cannot judge.
    """
    statements = json.loads(role.read_text())
    if not statements:
        return  # a test's own function
    import boto3
    from botocore.exceptions import ClientError

    boto3.setup_default_session()
    notes, seen = role.with_name(role.name.replace(".role.json", ".requests.jsonl")), set()

    def judge(params: dict[str, Any], model: Any, **_: Any) -> None:
        for request in iam.requests_of(model.service_model.signing_name, model.name, params):
            if iam.allowing(statements, request) is None:
                text = f"not authorized to perform {request.action} on {request.resource}"
                raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": text}}, model.name)
            if request.key not in seen:
                seen.add(request.key)
                entry = {"call": [model.service_model.service_name, model.name], "parameters": params}
                with notes.open("a") as file:
                    file.write(json.dumps({**request.plain(), **entry}, default=str) + "\n")

    boto3.DEFAULT_SESSION.events.register("provide-client-params.*.*", judge)


def main(descriptor: int, handler_name: str, role: Path) -> None:
    """Serve until the other side closes the socket."""
    connection = Connection(descriptor)
    guard(role)
    handler: Handler | None = None
    failure: InitError | None = None
    try:
        handler = load(handler_name)
    except InitError as e:
        failure = e
    connection.send_bytes(b'{"ready": true}')
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        timeout = request["context"].pop("timeout_seconds")
        context = Context(**request["context"], deadline=time.monotonic() + timeout)
        if handler is None:
            assert failure is not None
            answer = {"error": _error(failure.error_type, str(failure), SimpleNamespace(**vars(context)), [])}
        else:
            answer = invoke(handler, request["event"], context)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            connection.send_bytes(json.dumps(answer).encode())
        except BrokenPipeError:
            return
        if answer.get("exit"):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
