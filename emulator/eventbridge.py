"""What EventBridge does after PutEvents, which moto does in part. In: events on a bus. Out: messages in
queues, executions, function calls, topics; and a record of every event that was put, matched by a rule or
not.

Targets served: SQS, Step Functions, Lambda, SNS, another bus, CloudWatch Logs (dropped). Disabled rules do
not fire. A delivery that fails goes to the target's dead-letter queue when it has one, and is never the
caller's error. Differs from AWS: delivery is tried once, before PutEvents returns.
"""

from __future__ import annotations

import importlib
import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from .names import ACCOUNT, REGION

log = logging.getLogger(__name__)
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BusEvent:
    """An event that was put on a bus; `detail` is parsed."""

    id: str
    bus: str
    time: datetime
    source: str
    detail_type: str
    detail: dict[str, Any]
    resources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Undelivered:
    """An event that a target did not take, and why."""

    event_id: str
    target_arn: str
    error: str


@dataclass
class BusRecord:
    """What happened on the buses since the cloud started."""

    events: list[BusEvent] = field(default_factory=list)
    undelivered: list[Undelivered] = field(default_factory=list)


def install(record: BusRecord, invoke: Callable[[str, Any], object]) -> None:
    """Take over moto's rule targets; `invoke(function ARN, event)` runs a Lambda function."""
    models = importlib.import_module("moto.events.models")
    original = getattr(models.EventsBackend.put_events, "original", models.EventsBackend.put_events)

    def put_events(self: Any, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = original(self, events)
        for event, entry in zip(events, entries, strict=True):
            if "EventId" in entry:
                record.events.append(_recorded(event, entry["EventId"]))
        return entries

    def send_to_targets(self: Any, original_event: Event, transform_input: bool = True) -> None:
        if self.state == "DISABLED" or not self.event_pattern.matches_event(original_event):
            return
        event = as_delivered(original_event)
        for target in self.targets:
            _deliver(target, event, invoke, record)

    put_events.original = original  # type: ignore[attr-defined]
    models.EventsBackend.put_events = put_events
    models.Rule.send_to_targets = send_to_targets


def as_delivered(event: Mapping[str, Any]) -> Event:
    """An event as targets see it: moto's own fields gone, the time as text."""
    delivered = {
        k: v for k, v in event.items() if k not in ("ingestion-time", "event-bus-name", "replay-name")
    }
    if event.get("replay-name"):
        delivered["replay-name"] = event["replay-name"]
    time = datetime.fromtimestamp(float(event["time"]), timezone.utc)
    return delivered | {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ")}


def input_of(target: Mapping[str, Any], event: Event) -> str:
    """The JSON text that a target gets: Input, InputTransformer, InputPath, or the whole event."""
    if "Input" in target:
        return str(target["Input"])
    if "InputTransformer" in target:
        models = importlib.import_module("moto.events.models")
        transformer = target["InputTransformer"]
        value = models.EventTemplateParser.parse(
            input_template=transformer["InputTemplate"],
            input_paths_map=transformer.get("InputPathsMap", {}),
            event=event | {"ingestion-time": event["time"]},
        )
        return value if isinstance(value, str) else json.dumps(value)
    if "InputPath" in target:
        value = event
        for key in target["InputPath"].removeprefix("$").strip(".").split("."):
            value = value[key] if key else value
        return json.dumps(value)
    return json.dumps(event)


def _recorded(event: Mapping[str, Any], event_id: str) -> BusEvent:
    bus = str(event.get("EventBusName") or "default")
    return BusEvent(
        id=event_id,
        bus=bus.rsplit("/", 1)[-1],
        time=datetime.now(timezone.utc),
        source=event["Source"],
        detail_type=event["DetailType"],
        detail=json.loads(event["Detail"]),
        resources=tuple(event.get("Resources") or ()),
    )


def _deliver(
    target: Mapping[str, Any], event: Event, invoke: Callable[[str, Any], object], record: BusRecord
) -> None:
    arn = target["Arn"]
    try:
        _send(arn, input_of(target, event), invoke)
    except Exception as e:  # noqa: BLE001  (whatever a target raises is a failed delivery, recorded)
        log.warning("event %s was not delivered to %s: %r", event["id"], arn, e)
        record.undelivered.append(Undelivered(event["id"], arn, repr(e)))
        dead_letters = target.get("DeadLetterConfig", {}).get("Arn")
        if dead_letters and dead_letters != arn:
            _send(dead_letters, json.dumps(event), invoke)


def _send(arn: str, text: str, invoke: Callable[[str, Any], object]) -> None:
    service, name = arn.split(":")[2], arn.rsplit(":", 1)[-1]
    if service == "sqs":
        _backend("sqs").send_message(name, text)
    elif service == "states":
        responses = importlib.import_module("moto.stepfunctions.responses")
        responses.get_backend(ACCOUNT, REGION).start_execution(arn, str(uuid.uuid4()), text)
    elif service == "lambda":
        threading.Thread(target=invoke, args=(arn, json.loads(text)), daemon=True).start()
    elif service == "sns":
        _backend("sns").publish(message=text, arn=arn)
    elif service == "events":
        event = json.loads(text)
        _backend("events").put_events(
            [
                {
                    "Source": event["source"],
                    "DetailType": event["detail-type"],
                    "Detail": json.dumps(event["detail"]),
                    "EventBusName": arn.rsplit("/", 1)[-1],
                }
            ]
        )
    elif service != "logs":
        raise NotImplementedError(f"the local EventBridge has no target of service {service}")


def _backend(service: str) -> Any:
    return getattr(importlib.import_module(f"moto.{service}.models"), f"{service}_backends")[ACCOUNT][REGION]
