"""The golden files are what the builder makes today, and the pipeline's reader takes them."""

from __future__ import annotations

import json

import pytest

from lambdas.steps.envelope import open_envelope
from training_agent.contract import Alarm, DetailType, NodeRegistration, decode

from .builder import FOLDER, GOLDEN, text_of


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_events_are_up_to_date(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert text == text_of(name), "run: python -m tests.events.builder"
    kind, message = (
        (DetailType.ALARM, Alarm)
        if name.startswith("alarm")
        else (DetailType.NODE_REGISTERED, NodeRegistration)
    )
    assert decode(message, open_envelope(json.dumps(json.loads(text)), kind).detail) == GOLDEN[name]()
