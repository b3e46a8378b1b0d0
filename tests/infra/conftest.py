"""One synthesized template for all tests of this folder; nothing is bundled, nothing needs an account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.synth import synthesize

Template = dict[str, Any]


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the template, in its assembly."""
    return synthesize(tmp_path_factory.mktemp("assembly"))


@pytest.fixture(scope="session")
def template(assembly: Path) -> Template:
    return json.loads(assembly.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def resources(template: Template) -> Template:
    return template["Resources"]


@pytest.fixture(scope="session")
def machine(resources: Template) -> Template:
    """The state machine's definition; each function's ARN is replaced by its logical id."""
    parts = resources["IncidentWorkflow"]["Properties"]["DefinitionString"]["Fn::Join"][1]
    return json.loads("".join(part if isinstance(part, str) else _name(part) for part in parts))


@pytest.fixture(scope="session")
def states(machine: Template) -> Template:
    return machine["States"]


def _name(part: Template) -> str:
    return part["Fn::GetAtt"][0] if "Fn::GetAtt" in part else part["Ref"]
