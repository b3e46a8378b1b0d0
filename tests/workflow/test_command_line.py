"""`sdc` against the running local cloud: what people read and decide at a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emulator.cloud import LocalCloud
from emulator.names import USER_ARN
from tests.workflow.scenario import APPROVER, Scenario, until
from training_agent.cli.app import main
from training_agent.cli.failures import Exit

Sdc = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sdc(
    cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Sdc:
    """Runs one command as somebody with the local cloud's key pair, on a terminal of 80 columns."""
    outputs = tmp_path / "outputs.json"
    outputs.write_text(json.dumps({"TrainingSdc-demo": cloud.stack.outputs()}))
    for name, value in {**cloud.environment(), "SDC_OUTPUTS": str(outputs), "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        assert all(len(line) <= 80 for line in (out + err).splitlines() if '"' not in line)
        return code, out, err

    return run


def document(sdc: Sdc, *arguments: str) -> Any:
    code, out, err = sdc(*arguments, "--json")
    assert (code, err) == (0, ""), out
    return json.loads(out)


def named(incident: str, node: str, question: int = 1) -> tuple[str, ...]:
    """The question of a replacement, as a mail's command names it."""
    return ("--node", node, "--question", f"{incident}-{question}", "--action", "replace")


@pytest.fixture
def asked(scenario: Scenario) -> Scenario:
    """A culprit is named and its replacement is asked for."""
    scenario.raise_alarm(scenario.culprit())
    scenario.mail("review")
    return scenario


def test_an_incident_is_listed_shown_approved_told_and_reported(
    sdc: Sdc, asked: Scenario, tmp_path: Path
) -> None:
    incident, node, gpu = asked.incident_id(), asked.nodes[1], str(asked.places[2].gpu_uuid)
    listed = {i["incident_id"]: i for i in document(sdc, "incidents")}
    assert listed[incident]["state"] == "AWAITING_APPROVAL"
    code, out, _ = sdc("incidents")
    assert code == 0 and incident in out and asked.instance() in out

    code, out, _ = sdc("show", incident)
    assert code == 0
    for part in (
        "AWAITING_APPROVAL",
        "replace: PENDING",
        f"sdc approve {incident}",
        f"--node {node}",
        "so far",
    ):
        assert part in out, out

    code, out, _ = sdc("approve", incident, *named(incident, node), "--reason", "seen the evidence")
    assert code == 0, out
    assert "Approved." in out and USER_ARN in out

    asked.wait_for_replacement()
    asked.come_back()
    code, out, _ = sdc("show", incident, "--follow")
    assert code == 0 and "REPLACED" in out
    told = document(sdc, "show", incident)
    steps = [c["step"] for c in told["story"]]
    assert steps == asked.walked()
    assert all(c["seconds"] >= 0 and c["text"] and c["ended"] for c in told["story"])
    assert told["approval"]["decided_by"] == USER_ARN
    assert incident in {h["incident_id"] for h in document(sdc, "history", node)}
    assert incident in sdc("history", gpu)[1]
    reported(sdc, incident, tmp_path / "report.html")


def reported(sdc: Sdc, incident: str, file: Path) -> None:
    """The report of the same incident: who decided, how long each part took, and a link to the execution."""
    (told,) = document(sdc, "report", incident, "--out", str(file))["incidents"]
    (decision,) = told["decisions"]
    assert USER_ARN in decision["result"] and "'approve' to 'replace'" in decision["result"]
    took = {d["name"]: d["seconds"] for d in told["durations"]}
    assert list(took) == ["open", "contain", "approve", "replace", "come back"] and None not in took.values()
    html = file.read_text()
    assert (
        "seen the evidence" in html
        and "was replaced by" in html
        and "its execution in the AWS console" in html
    )


def test_nothing_is_decided_for_another_node_or_twice(sdc: Sdc, asked: Scenario) -> None:
    incident, node = asked.incident_id(), asked.nodes[1]
    reason = ("--reason", "why")
    for wrong in ((), ("--node", node), named(incident, asked.nodes[0]), named(incident, node, 2)):
        code, _, err = sdc("approve", incident, *wrong, *reason)
        assert code == Exit.REFUSED, err
    assert document(sdc, "show", incident)["approval"]["state"] == "PENDING"
    assert sdc("reject", incident, *named(incident, node), "--release", *reason)[0] == Exit.DONE
    assert asked.end() == "REJECTED_RELEASED"
    code, _, err = sdc("approve", incident, *named(incident, node), *reason)
    assert code == Exit.REFUSED and "Nothing was changed" in err
    assert asked.replace_requests() == []


def test_deciding_and_releasing_need_the_api_alone(
    sdc: Sdc, asked: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SDC_OUTPUTS")
    incident, api = asked.incident_id(), asked.cloud.review_url
    mine = named(incident, asked.nodes[1])
    code, out, err = sdc("reject", incident, *mine, "--api", api, "--reason", "not convinced")
    assert code == 0, err
    assert "stays cordoned" in out
    assert asked.end() == "REJECTED_KEPT"
    assert "cannot be told" in sdc("show", incident, "--api", api)[1]

    code, out, err = sdc("release", incident, "--api", api, "--reason", "DCGM level 4 passed")
    assert code == 0, err
    assert "was uncordoned" in out and not asked.cordoned(asked.nodes[1])
    code, _, err = sdc("release", "0" * 16, "--api", api, "--reason", "x")
    assert code == Exit.NOT_FOUND, err


def test_whoever_signs_with_another_key_is_not_let_in(sdc: Sdc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "somebody-else")
    code, _, err = sdc("incidents")
    assert code == Exit.CANNOT_ASK
    assert "SignedApproverPolicy" in err


def test_what_does_not_exist_is_said_so(sdc: Sdc) -> None:
    for wrong in ("0123456789abcdef", "no-id"):
        code, _, err = sdc("show", wrong)
        assert code == Exit.NOT_FOUND and "sdc incidents" in err
    code, out, _ = sdc("history", "i-0aaaaaaaaaaaaaaa1")
    assert code == 0 and "No incident has named" in out


def test_a_drill_reaches_the_approvers(sdc: Sdc, cloud: LocalCloud) -> None:
    before = len(cloud.hyperpod.requests)
    told = document(sdc, "drill", "--timeout", "60")
    assert (told["ok"], told["state"]) == (True, "AWAITING_APPROVAL")
    mail = until(
        lambda: next((m for m in cloud.mailbox if "FIRE DRILL" in m.subject + m.body), None), "the mail"
    )
    assert mail.to == APPROVER
    incident = told["incident_id"]
    code, out, _ = sdc("drill", "--json")  # it would join the one that is open, and be waited for in vain
    assert (code, json.loads(out)["incident_id"], json.loads(out)["ok"]) == (Exit.NO, incident, False)
    shown = document(sdc, "show", incident)
    node = shown["incident"]["node"]
    assert shown["incident"]["synthetic"]
    mine = named(incident, node)
    assert sdc("reject", incident, *mine, "--release", "--reason", "only a drill")[0] == Exit.DONE
    told = document(sdc, "show", incident, "--follow")
    assert told["incident"]["state"] in ("CLOSED", "REJECTED_RELEASED")
    sent = {r.operation for r in cloud.hyperpod.requests[before:]}
    assert "BatchReplaceClusterNodes" not in sent


def test_doctor_says_what_is_ready_and_what_is_not(
    sdc: Sdc, cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NODE_NAME", "SDC_SHARED_DIR", "SDC_JOB_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDC_CLUSTER", cloud.hyperpod.name)
    code, out, _ = sdc("doctor", "--json")
    found = {c["name"]: c for c in json.loads(out)["checks"]}
    assert code == Exit.NO
    failed = {name for name, c in found.items() if c["status"] == "failed"}
    assert failed == {"node-name", "job-identity", "shared-folder", "telemetry"}
    assert all(found[name]["remedy"] for name in failed)
    assert "only labels faulty nodes" in found["node-recovery"]["found"]
    assert "stress-tested before they take pods" in found["on-start-checks"]["found"]
    assert sdc("doctor", "--only", "account", "--only", "people")[0] == Exit.DONE
    code, out, _ = sdc("doctor", "--only", "cluster", "--skip", "telemetry")
    assert code == Exit.DONE and "left out on purpose" in out


def test_doctor_sees_a_kill_switch_and_an_approver_who_has_not_confirmed(
    sdc: Sdc, cloud: LocalCloud, control: Callable[[str, Any], None]
) -> None:
    control("kill_switch", True)
    code, out, _ = sdc("doctor", "--only", "account")
    assert code == Exit.NO and "everything is stopped" in out
