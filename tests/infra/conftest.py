"""Two synthesized templates for all tests of this folder, of the defaults and of everything else that can be
chosen; nothing is bundled, nothing needs an account.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.synth import synthesize

Template = dict[str, Any]
OWN_TOPIC = "arn:aws:sns:us-east-1:111122223333:oncall"
OTHER = {  # at once, because each is another part of the stack and a synthesis takes seconds
    "cluster_name": "second",
    "alarm_topic_arn": OWN_TOPIC,
    "customer_managed_key": "false",
    "drill_enabled": "false",
    "replacement_method": "label",
    "slack_channel_id": "C0123456789",
    "slack_workspace_id": "T0123456789",
    "telemetry_workspace": "ws-0123456789",
    "vpc_security_group_ids": "sg-01234567",
    "vpc_subnet_ids": "subnet-01234567,subnet-89abcdef",
}


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
def other_assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the template in which everything is chosen otherwise."""
    return synthesize(tmp_path_factory.mktemp("other"), OTHER)


@pytest.fixture(scope="session")
def other(other_assembly: Path) -> Template:
    """Its resources."""
    found: Template = json.loads(other_assembly.read_text(encoding="utf-8"))["Resources"]
    return found


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
