"""Threats T12 to T22: what comes in from elsewhere, and who may do what; the others: `test_threats.py`."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.bundling import ROOT
from lambdas.adapters import eks
from lambdas.adapters.sagemaker import HyperPod
from lambdas.domain.approval import hash_of
from lambdas.domain.errors import RefusedError
from lambdas.domain.times import stamp
from lambdas.domain.world import KubeNode
from lambdas.steps.ingest import ALARMS_PER_HOUR
from tests.events import builder
from tests.unit.report.test_checkpoint import a_store

from .plant import Plant
from .storm import BREAKERS
from .test_threats import DAY, HOSTILE, ask
from .test_threats import plant as plant  # the fixture


def test_t12_another_clusters_events_are_refused(plant: Plant) -> None:
    plant.alarm(plant.alarm_of(builder.culprit(3, plant.jobs[0].seats), cluster="another"))
    assert not plant.world.incidents.rows and len(plant.world.incidents.rejected) == 1


def test_t13_hostile_text_in_every_field_stays_text(plant: Plant) -> None:
    job = plant.jobs[0]
    job.job = replace(job.job, name=HOSTILE, attempt=2)
    plant.start_job(job)
    finding = replace(builder.culprit(3, job.seats), evidence=HOSTILE)
    opened = plant.alarm(plant.alarm_of(finding, job=job))
    plant.pump()
    link = plant.link(opened[0].id)
    assert link is not None
    page = plant.browse(link)["body"]
    assert "<script" not in page and "&lt;script&gt;" in page and "{{7*7}}" in page
    for _, subject, body in plant.world.mail.sent:
        assert subject.isascii() and subject.isprintable() and len(subject) < 100
        assert not any(line.startswith("Bcc:") for line in body.splitlines())
    form = {"decision": "keep", "typed": job.instances[1][-6:], "reason": HOSTILE}
    assert plant.browse(link, "POST", form)["statusCode"] == 200
    (row,) = plant.world.approvals.rows.values()
    assert row.reason.isprintable()


@pytest.mark.parametrize(
    "count", [1000, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_t14_broken_json_of_any_kind_is_rejected_and_raises_nothing(plant: Plant, count: int) -> None:
    rng = random.Random(14)
    good = [
        json.dumps(builder.event(plant.alarm_of(builder.culprit(r, plant.jobs[0].seats)))) for r in range(6)
    ]
    for _ in range(count):
        plant.deliver(rng.choice(BREAKERS)(rng.choice(good), rng))
    assert plant.raised == [] and plant.dead_letters == []
    assert not plant.world.incidents.rows and len(plant.world.incidents.rejected) == count


@pytest.mark.parametrize(
    "bad",
    ["", "i-", "i-XYZ", "hyperpod-i-0a1b2c3d4e5f60001", "i-0a1b2c3d4e5f60001\n", "i-0a1b2c3d4e5f600011"],
)
def test_t15_a_malformed_instance_id_is_never_sent(bad: str) -> None:
    with pytest.raises(RefusedError, match="no instance id"):
        HyperPod("demo").replace(bad)


def test_t16_a_flood_of_one_job_does_not_hide_another(plant: Plant) -> None:
    flooding, quiet = plant.jobs
    for n in range(200):
        plant.alarm(plant.alarm_of(builder.culprit(n % 6, flooding.seats), job=flooding, step=1000 + n))
    (incident,) = plant.alarm(plant.alarm_of(builder.culprit(3, quiet.seats), job=quiet))
    plant.pump()
    assert incident.id in plant.waiting()
    opened = [i for i in plant.world.incidents.rows.values() if i.job.uid == flooding.job.uid]
    assert len(opened) <= ALARMS_PER_HOUR, "each of them costs an execution and people's attention"


def test_t17_the_cordoning_identity_cannot_reach_the_health_label(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    class Api:
        def patch_node(self, name: str, body: dict[str, Any], **_: Any) -> str:
            sent.append(body)
            return name

    monkeypatch.setattr(eks, "_core", lambda _client: Api())
    monkeypatch.setattr(eks, "_connect", lambda _cluster: object())
    node = KubeNode("hyperpod-i-0a1b2c3d4e5f60001", "u", "1", False, {}, {})
    eks.EksCluster("demo").patch_node(node, unschedulable=True, annotations={"training.sdc/cordoned-by": "x"})
    assert sent[0].keys() == {"metadata", "spec"}
    assert sent[0]["metadata"].keys() == {"resourceVersion", "annotations"}
    assert sent[0]["spec"].keys() == {"unschedulable"}
    policies = list(yaml.safe_load_all((ROOT / "infra" / "eks_access" / "admission.yaml").read_text()))
    cordoners = next(
        p for p in policies if p["metadata"]["name"].endswith("cordoners") and "validations" in p["spec"]
    )
    assert cordoners["spec"]["failurePolicy"] == "Fail"
    assert any(
        v["expression"] == "variables.labelsNow == variables.labelsBefore"
        for v in cordoners["spec"]["validations"]
    )


def test_t18_guessed_links_tell_an_attacker_nothing(plant: Plant) -> None:
    incident_id = ask(plant)
    rng = random.Random(18)
    answers = {
        (plant.browse(f"https://x/review/{rng.getrandbits(256):064x}", method)["statusCode"],
         plant.browse(f"https://x/review/{rng.getrandbits(256):064x}", method)["body"])
        for method in ("GET", "POST") for _ in range(50)
    }  # fmt: skip
    assert {status for status, _ in answers} == {404}
    assert len({body for _, body in answers}) == 1 and incident_id not in str(answers)
    assert all(
        hash_of((plant.link(incident_id) or "").rsplit("/", 1)[-1]) != key for key in ("", incident_id)
    )


def test_t19_a_tampered_checkpoint_or_manifest_is_not_resumed_from(tmp_path: Path) -> None:
    store = a_store(tmp_path, 10, 20)
    state = tmp_path / "step-20" / "state.pt"
    state.write_bytes(state.read_bytes()[:-1] + b"x")  # the same length, other bytes
    with pytest.raises(Exception, match=r"step-20|sha256|changed|damaged"):
        store.load(store.list()[1])
    manifest = tmp_path / "step-10" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 10', '"step": 11'))
    assert not store.list()[0].complete


def test_t20_a_row_edited_by_hand_is_not_acted_on(plant: Plant) -> None:
    incident_id = ask(plant)
    assert plant.human(incident_id, "approve") == 200
    text = plant.world.incidents.alarms[incident_id]
    plant.world.incidents.alarms[incident_id] = text.replace('"step":30', '"step":31')
    assert plant.world.incidents.alarms[incident_id] != text
    plant.advance(DAY)
    assert plant.watch.calls["cluster.replace"] == 0


def test_t21_dependencies_are_pinned_by_hash_and_nothing_is_installed_at_run_time() -> None:
    for name in ("lambdas/requirements.txt", "requirements/dev.txt"):
        lines = [line for line in (ROOT / name).read_text().splitlines() if re.match(r"[a-zA-Z0-9]", line)]
        assert lines and all("==" in line for line in lines), name
        entries = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
        pinned = [line for line in entries if re.match(r"[a-zA-Z0-9]", line)]
        assert all("--hash=sha256:" in line for line in pinned), name
    assert '"--require-hashes"' in (ROOT / "infra" / "bundling.py").read_text()
    sources = "\n".join(p.read_text() for p in (ROOT / "lambdas").rglob("*.py"))
    assert not re.search(
        r"\b(subprocess|ensurepip|urlopen|pip install|importlib\.metadata\.entry)\b", sources
    )


@pytest.mark.parametrize("minutes", [-10, 10])
def test_t22_ten_minutes_of_clock_skew_change_nothing(plant: Plant, minutes: int) -> None:
    skewed = stamp(plant.world.clock.at + timedelta(minutes=minutes))
    incident_id = ask(plant, time=skewed)
    assert plant.human(incident_id, "approve") == 200
    plant.later(timedelta(hours=1), plant.job_returns)
    plant.advance(DAY)
    assert plant.incident(incident_id).state.value == "REPLACED" and plant.violations() == []
