"""A targeted audit's result and telemetry: evidence that is believed only as far as its source reaches."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from lambdas.adapters.prometheus import Prometheus, _values
from lambdas.domain.errors import RefusedError, UnavailableError
from lambdas.domain.incident import CheckResult, Incident, State
from lambdas.domain.telemetry import Measure, Reading, lines
from lambdas.steps.audit_result import MAX_CLAIMS
from tests.events import builder
from tests.unit.agent.capsules import sealed, write
from training_agent.cli.app import main
from training_agent.contract import Finding, FindingKind, Verdict

from .drive import Driver

SUSPECT = builder.INSTANCES[1]
RECORDED = Path(__file__).parents[2] / "events" / "audit-result-repeats.json"


@pytest.fixture
def checking(driver: Driver) -> Incident:
    """A transient verdict whose deep check is under way."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.TRANSIENT)))
    assert driver.play(incident, "locate", stop="confirm") == "confirm"
    assert driver.step("confirm", incident)["outcome"] == "waiting"
    return incident


def result(incident: Incident, **changes: Any) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(RECORDED.read_text())
    event["detail"].update({"incident_id": incident.id, **changes})
    return event


def test_a_recorded_result_that_computed_wrong_again_resumes_confirm(
    driver: Driver, checking: Incident
) -> None:
    driver.send(result(checking))
    assert driver.step("confirm", checking)["outcome"] == "confirmed"
    assert driver.step("decide", checking)["outcome"] == "approve"
    driver.ask(checking)
    text = " ".join(driver.world.mail.sent[-1][2].split())
    assert "Targeted audit: computed wrong again (capsule 9f86d081884c" in text


def test_a_pass_of_another_gpu_of_the_node_is_not_shown_as_the_accused_ones(
    driver: Driver, checking: Incident
) -> None:
    (accused,) = driver.world.incidents.get(checking.id).targets[0].gpu_uuids
    for gpu in ("GPU-another", None, accused):
        driver.send(result(checking, passed=True, gpu_uuid=gpu))
    incident = driver.world.incidents.get(checking.id)
    assert [claim.gpu for claim in incident.audits] == ["GPU-another", "", accused]
    driver.send(result(checking))
    assert driver.step("confirm", checking)["outcome"] == "confirmed"
    assert driver.step("decide", checking)["outcome"] == "approve"
    driver.ask(checking)
    text = " ".join(driver.world.mail.sent[-1][2].split())
    assert text.count("Targeted audit: passed (capsule 9f86d081884c)") == 3
    assert "(capsule 9f86d081884c), on GPU-another: not known to be the accused one" in text
    assert "on a GPU that it does not name: not known to be the accused one" in text
    assert text.count("not known to be the accused one") == 2 + (
        result(checking)["detail"]["gpu_uuid"] != accused
    )


def test_no_number_of_passes_hides_a_failure(driver: Driver, checking: Incident) -> None:
    """Whoever may publish could fill the list with passes."""
    for number in range(MAX_CLAIMS + 2):
        driver.send(result(checking, passed=True, capsule_hash=f"{number:064x}"))
    driver.send(result(checking))
    incident = driver.world.incidents.get(checking.id)
    assert len(incident.audits) == MAX_CLAIMS and incident.failures == 1
    driver.send(result(checking, passed=True, capsule_hash="f" * 64))
    assert driver.world.incidents.get(checking.id).failures == 1


@pytest.mark.parametrize("released", [False, True])
def test_a_failure_after_the_decision_to_release_stops_it_or_contains_the_node_again(
    driver: Driver, checking: Incident, released: bool
) -> None:
    node = f"hyperpod-{SUSPECT}"
    rows = driver.world.incidents.rows
    rows[checking.id] = replace(rows[checking.id], state=State.DECIDED, closing=State.RELEASED)
    if released:
        assert driver.step("resume", checking)["outcome"] == "waiting"
        assert not driver.world.kubernetes.nodes[node].unschedulable
    driver.send(result(checking))
    assert driver.step("resume", checking)["outcome"] == "reopened"
    link = driver.until_asked_from(checking, "contain")
    assert driver.world.kubernetes.nodes[node].unschedulable
    driver.answer(link, "release")
    assert driver.step("resume", checking)["outcome"] == "waiting"
    assert not driver.world.kubernetes.nodes[node].unschedulable, "released once before, and not again"


def test_a_result_that_passed_releases_nothing_by_itself(driver: Driver, checking: Incident) -> None:
    driver.send(result(checking, passed=True))
    assert driver.step("confirm", checking)["outcome"] == "waiting"
    incident = driver.world.incidents.get(checking.id)
    assert incident.deep_check.result is CheckResult.RUNNING and incident.audits[0].passed


def test_a_pass_does_not_hide_a_failure(driver: Driver, checking: Incident) -> None:
    driver.send(result(checking, passed=True), result(checking))
    assert [a.passed for a in driver.world.incidents.get(checking.id).audits] == [True, False]
    assert driver.step("confirm", checking)["outcome"] == "confirmed"


def test_a_result_delivered_often_is_one_claim(driver: Driver, checking: Incident) -> None:
    driver.send(*[result(checking)] * 5)
    assert len(driver.world.incidents.get(checking.id).audits) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"incident_id": "0" * 16},
        {"incident_id": "../../x"},
        {"instance_id": builder.INSTANCES[0]},
        {"capsule_hash": "short"},
        {"capsule_hash": "Z" * 64},
        {"cluster": "another"},
        {"passed": "yes"},
        {"time": "2025-01-01T00:00:00Z"},
        {"time": "yesterday"},
        {"schema_version": "2.0"},
    ],
)
def test_a_result_that_does_not_match_is_recorded_and_not_believed(
    driver: Driver, checking: Incident, changes: dict[str, Any]
) -> None:
    before = len(driver.world.incidents.rejected)
    driver.send(result(checking, **changes))
    assert driver.world.incidents.get(checking.id).audits == ()
    assert len(driver.world.incidents.rejected) == before + 1


def test_t4_a_replayed_result_is_recorded_only(driver: Driver, checking: Incident) -> None:
    driver.send({**result(checking), "replay-name": "again"})
    assert driver.world.incidents.get(checking.id).audits == ()


def test_a_result_for_an_incident_that_has_ended_changes_nothing(driver: Driver) -> None:
    driver.setting("MODE", "observe")
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.TRANSIENT)))
    driver.play(incident, "locate")
    before = driver.world.incidents.get(incident.id)
    driver.send(result(incident))
    assert driver.world.incidents.get(incident.id) == before


# the receipt of `sdc replay`


def test_the_receipt_of_a_replay_that_computed_wrong_again_asks_for_the_replacement(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capsule = sealed(tmp_path)
    assert capsule is not None
    write(capsule)
    driver.register()
    accused = builder.alarm(builder.pair(3, Verdict.TRANSIENT), capsules=(capsule.ref,))
    (incident,) = driver.alarm(accused)
    driver.play(incident, "locate", stop="confirm")
    assert driver.step("confirm", incident)["outcome"] == "waiting"

    monkeypatch.setenv("NODE_NAME", f"hyperpod-{SUSPECT}")
    monkeypatch.setenv("SDC_CLUSTER", builder.CLUSTER)
    receipt = tmp_path / "receipt.json"
    options = ["--model", "tests.unit.agent.capsules:build_wrong", "--incident", incident.id]
    assert main(["replay", capsule.ref.path, *options, "--receipt", str(receipt)]) == 1
    sent = json.loads(receipt.read_text())
    forged = {**sent, "capsule_hash": "0" * 64}
    event = json.loads(RECORDED.read_text())
    driver.send({**event, "detail": {**forged, "time": event["detail"]["time"]}})
    assert driver.world.incidents.get(incident.id).audits == ()  # of no capsule that the alarm lists
    driver.send({**event, "detail": {**sent, "time": event["detail"]["time"]}})
    assert driver.step("confirm", incident)["outcome"] == "confirmed"
    assert driver.step("decide", incident)["outcome"] == "approve"
    driver.ask(incident)
    body = driver.world.mail.sent[-1][2]
    assert f"capsule {capsule.ref.sha256[:12]}" in " ".join(body.split())


# telemetry


def confirmed(driver: Driver) -> Incident:
    driver.setting("DEEP_CHECK_ENABLED", "false")
    driver.register()
    finding = Finding(FindingKind.NONFINITE, rank=3, place=builder.places()[3], reproduced=False)
    (incident,) = driver.alarm(builder.alarm(finding))
    driver.play(incident, "locate")
    return driver.world.incidents.get(incident.id)


def test_telemetry_is_shown_to_the_human_and_decides_nothing(driver: Driver) -> None:
    driver.world.telemetry.readings = (Reading(Measure.ECC_DOUBLE_BIT, 2.0), Reading(Measure.XID, None))
    incident = confirmed(driver)
    assert incident.telemetry == ("uncorrected ECC errors: 2", "last Xid: no data")
    assert "uncorrected ECC errors: 2" in driver.world.mail.sent[-1][2]


@pytest.mark.parametrize(
    "readings", [None, (), tuple(Reading(m, None) for m in Measure)], ids=["none", "empty", "no data"]
)
def test_absence_of_evidence_is_never_shown_as_health(
    driver: Driver, readings: tuple[Reading, ...] | None
) -> None:
    driver.world.telemetry.readings = readings
    incident = confirmed(driver)
    assert incident.telemetry is not None
    (line,) = incident.telemetry
    assert "says nothing about" in line


def test_telemetry_that_cannot_be_read_stops_nobody(driver: Driver) -> None:
    driver.world.telemetry.error = UnavailableError("Prometheus query: no answer")
    incident = confirmed(driver)
    assert incident.telemetry is not None and "could not be read" in incident.telemetry[0]


def test_zero_is_a_value_and_not_the_absence_of_one() -> None:
    assert lines((Reading(Measure.XID, 0.0),)) == ("last Xid: 0",)


def test_answers_of_the_query_api() -> None:
    def body(result: list[Any], status: str = "success") -> bytes:
        return json.dumps({"status": status, "data": {"resultType": "matrix", "result": result}}).encode()

    samples = [[1700000000.0, "3"], [1700000060.0, "NaN"], [1700000120.0, "4.5"]]
    assert _values(body([{"metric": {}, "values": samples}])) == (3.0, 4.5)
    assert _values(body([])) == ()
    for unreadable in (b"", b"<html>", b"[]", b'{"status": "success"}', body([{"values": [[1]]}])):
        with pytest.raises(RefusedError):
            _values(unreadable)


def test_no_workspace_is_no_telemetry_and_ids_cannot_change_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert Prometheus("").around(("GPU-1",), now) is None
    asked: list[str] = []
    prometheus = Prometheus("https://aps.example.com/workspaces/ws-1/")
    monkeypatch.setattr(prometheus, "_points", lambda query, at: asked.append(query) or (1.0, 3.0, 2.0))
    readings = prometheus.around(("GPU-1a", 'x"} or up{a="'), now)
    assert readings is not None and len(readings) == len(Measure)
    assert (readings[0].value, readings[0].points) == (3.0, (1.0, 3.0, 2.0))
    assert asked[0] == 'max(max_over_time(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{UUID=~"GPU-1a"}[1m]))'
