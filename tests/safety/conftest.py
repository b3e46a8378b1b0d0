"""The synthesized definition, once per run; the proofs of this folder walk it and no copy of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.synth import synthesize
from tests import handler_log

Template = dict[str, Any]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    path: Path = synthesize(tmp_path_factory.mktemp("assembly"))
    content: Template = json.loads(path.read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="session")
def definition(template: Template) -> dict[str, Any]:
    """The state machine; each function's ARN is replaced by its logical id."""
    properties = template["Resources"]["IncidentWorkflow"]["Properties"]
    parts = properties["DefinitionString"]["Fn::Join"][1]
    resolved: dict[str, Any] = json.loads("".join(p if isinstance(p, str) else _name(p) for p in parts))
    return resolved


def _name(part: dict[str, Any]) -> str:
    return str(part["Fn::GetAtt"][0] if "Fn::GetAtt" in part else part["Ref"])


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Tens of thousands of steps: nothing below CRITICAL is logged; tests of the log turn it up."""
    with handler_log.at_level("CRITICAL"):
        yield
