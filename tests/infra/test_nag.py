"""cdk-nag finds nothing that we have not read and answered."""

from __future__ import annotations

import json
from pathlib import Path

from aws_cdk import Validations
from cdk_nag import AwsSolutionsChecks

from infra.reviewed import REVIEWED
from infra.synth import build, read_context


def test_no_finding_is_left_unanswered(tmp_path: Path) -> None:
    app, _ = build(read_context({"bundle": False}), tmp_path)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    try:
        app.synth()
    except RuntimeError as error:  # jsii's; the report says more
        assert "ValidationFailed" in str(error)
    reports = json.loads((tmp_path / "validation-report.json").read_text())["pluginReports"]
    found = [
        f"{violation['ruleName']} at {construct['constructPath']}"
        for report in reports
        for violation in report["violations"]
        for construct in violation["violatingConstructs"]
    ]
    assert len(reports) == 1
    assert found == []


def test_every_answer_gives_its_reason() -> None:
    assert all(len(entry.reason.split()) >= 5 for entry in REVIEWED)
