"""Handlers of the tiny template in test_local_cloud.py: each shows one thing a Lambda function can do."""

from __future__ import annotations

import os
import sys
import time
from decimal import Decimal
from typing import Any

_calls: list[Any] = []  # lives as long as the process, like any module state


class ThrottledError(Exception):
    """An error whose class name the state machine sees."""


def echo(event: Any, context: Any) -> Any:
    """What came in, and what the process knows."""
    _calls.append(event)
    return {
        "event": event,
        "environment": dict(os.environ),
        "calls": len(_calls),
        "number": Decimal("3"),
        "function": context.function_name,
        "left": context.get_remaining_time_in_millis(),
        "pid": os.getpid(),
    }


def obey(event: dict[str, Any], context: Any) -> Any:
    """Fail in the way that the event says."""
    print("obeying", event)  # noqa: T201  (goes to the log file)
    if event.get("fail") == "raise":
        raise ThrottledError("slow down")
    if event.get("fail") == "sleep":
        time.sleep(30)
    if event.get("fail") == "exit":
        sys.exit(7)
    if event.get("fail") == "die":
        os._exit(9)
    if event.get("fail") == "marshal":
        return object()
    return {"done": True, "pid": os.getpid()}


def consume(event: dict[str, Any], context: Any) -> Any:
    """SQS: messages that begin with "bad" fail alone, "crash" fails the whole batch."""
    bodies = {r["messageId"]: r["body"] for r in event["Records"]}
    if any('"crash"' in b for b in bodies.values()):
        raise RuntimeError("whole batch")
    return {"batchItemFailures": [{"itemIdentifier": i} for i, b in bodies.items() if '"bad"' in b]}


def page(event: dict[str, Any], context: Any) -> Any:
    """HTTP: the event itself, as JSON, with a cookie."""
    return {
        "statusCode": 201,
        "headers": {"X-Kind": "page"},
        "cookies": ["a=1", "b=2"],
        "body": __import__("json").dumps(event),
    }
