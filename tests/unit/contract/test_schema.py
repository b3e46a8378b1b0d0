"""The checked-in JSON Schema is that of the code, and takes what the agent sends."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.events.builder import FOLDER
from training_agent.contract.schema import FILE, schema, text


def test_the_schema_file_is_current() -> None:
    assert FILE.read_text() == text(), "run: python -m training_agent.contract.schema"


@pytest.mark.parametrize("name", ["alarm-c1-culprit", "alarm-w1-weights", "registration-node-0"])
def test_the_schema_takes_the_golden_events_and_refuses_a_wrong_type(name: str) -> None:
    detail = json.loads((FOLDER / f"{name}.json").read_text())["detail"]
    kind = "Alarm" if name.startswith("alarm") else "NodeRegistration"
    reader = {**schema(), "anyOf": [{"$ref": f"#/$defs/{kind}"}]}
    jsonschema.validate(detail, reader)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(detail | {"world_size": "six"}, reader)
