"""The Lambda entry points of the pipeline: one small function per step, wiring only.

In: SQS batches (`register`, `ingest`) or `{"incident_id": ...}` from the state machine. Out: what
`lambdas.steps` answers. The functions stand in the order of the flow.
"""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def register(event: Event, context: Any) -> Event:
    """Job start: verify and store who runs where."""
    raise NotImplementedError


def ingest(event: Event, context: Any) -> Event:
    """Alarm: validate, drop duplicates, open incidents, start executions."""
    raise NotImplementedError


def locate(event: Event, context: Any) -> Event:
    """Ranks -> node -> instance -> GPU, and the gate."""
    raise NotImplementedError


def contain(event: Event, context: Any) -> Event:
    """Hold, cordon, evict, as the decision row says."""
    raise NotImplementedError


def decide(event: Event, context: Any) -> Event:
    """The decision table, with what is known by now."""
    raise NotImplementedError


def confirm(event: Event, context: Any) -> Event:
    """History, the agent's second confirmation, the deep health check."""
    raise NotImplementedError


def request_approval(event: Event, context: Any) -> Event:
    """The mail with the link; also the notice to a human and the timeout branch."""
    raise NotImplementedError


def replace(event: Event, context: Any) -> Event:
    """One node, one call, after an approval."""
    raise NotImplementedError


def verify(event: Event, context: Any) -> Event:
    """Old id gone, a new one Running."""
    raise NotImplementedError


def resume(event: Event, context: Any) -> Event:
    """Release what is ours and exonerated, see the job back, close."""
    raise NotImplementedError
