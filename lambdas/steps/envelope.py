"""The EventBridge event around a message, as SQS hands it over: parsed strictly, nothing believed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from training_agent.contract import ContractError, DetailType

MAX_BODY_BYTES = 256 * 1024  # SQS's own limit; the detail is held to 64 KB by the codec


@dataclass(frozen=True, slots=True)
class Envelope:
    """What matters of an EventBridge event; `detail` is JSON text for `contract.decode`."""

    id: str
    detail: str
    replayed: bool  # comes from an archive replay: recorded, never acted on


def open_envelope(body: str, expected: DetailType) -> Envelope:
    """Parse the body of an SQS message.

    Raises:
        ContractError: not an event, another detail-type, duplicate keys, NaN, too large or too deep.
    """
    if len(body.encode("utf-8", "surrogatepass")) > MAX_BODY_BYTES:
        raise ContractError(f"event of more than {MAX_BODY_BYTES} bytes")
    try:
        event = json.loads(body, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
        detail = json.dumps(event["detail"], sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ContractError("event is nested too deeply") from None
    except (TypeError, KeyError):
        raise ContractError("event has no detail") from None
    except json.JSONDecodeError as e:
        raise ContractError(f"event is not JSON: {e}") from None
    if event.get("detail-type") != expected.value:
        raise ContractError(
            f"detail-type {str(event.get('detail-type'))[:60]!r}: expected {expected.value!r}"
        )
    return Envelope(id=str(event.get("id", ""))[:64], detail=detail, replayed="replay-name" in event)


def detail_type_of(body: str) -> str:
    """What an event says it is, "" when it cannot be read; `open_envelope` judges it."""
    if len(body) > MAX_BODY_BYTES:
        return ""
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(event.get("detail-type", "")) if isinstance(event, dict) else ""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ContractError("event has duplicate keys")
    return out


def _no_constant(name: str) -> Any:
    raise ContractError(f"event holds {name}, which is not JSON")
