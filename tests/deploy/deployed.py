"""The statements of each deployed role, out of the synthesized templates.

In: the settings of the workflow tests, once for each way to replace. Out: function -> statements, with the
physical names that the local cloud gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator.template import Template
from infra.synth import synthesize
from tests.deploy.must_not import TRAINING
from tests.workflow.conftest import CONTEXT

Statements = list[Mapping[str, Any]]


def roles(folder: Path) -> dict[str, Statements]:
    """Function -> statements of its role; "Workflow" and the training pods' policy beside them."""
    found: dict[str, Statements] = {}
    for method in ("api", "label"):
        path = synthesize(folder / method, {**CONTEXT, "replacement_method": method})
        found |= of_template(json.loads(path.read_text()))
    return found


def of_template(content: Mapping[str, Any]) -> dict[str, Statements]:
    template = Template(content, endpoint_url="http://local", api_url="http://local")
    found: dict[str, Statements] = {}
    for name, p in template.of_type("AWS::IAM::Role"):
        documents = [policy["PolicyDocument"] for policy in p.get("Policies", [])]
        found[name.removesuffix("Role")] = [s for d in documents for s in d["Statement"]]
    pods = dict(template.of_type("AWS::IAM::ManagedPolicy"))["TrainingPodPolicy"]
    found[TRAINING] = pods["PolicyDocument"]["Statement"]
    return found
