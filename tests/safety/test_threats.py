"""The threats of the pipeline, one test each, under their numbers; docs/safety.md says what is left."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
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
from lambdas.ports import KubeNode
from lambdas.steps.contain import NODES_PER_DAY
from lambdas.steps.ingest import ALARMS_PER_HOUR
from tests import handler_log
from tests.events import builder
from tests.unit.report.test_checkpoint import a_store
from training_agent.contract import Job

from .asl import Definition
from .plant import Plant
from .storm import BREAKERS
from .threads import together, unshared

DAY = timedelta(days=1)
HOSTILE = "<script>alert(1)</script>\r\nBcc: all@example.com\x00\u202e{{7*7}}"


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, definition: Definition) -> Plant:
    return Plant(monkeypatch, definition, jobs=2)


def ask(plant: Plant, **changes: Any) -> str:
    """A C1 incident that waits for a person."""
    opened = plant.alarm(plant.alarm_of(builder.culprit(3, plant.jobs[0].seats), **changes))
    plant.pump()
    assert opened[0].id in plant.waiting()
    return opened[0].id


def untouched(plant: Plant) -> bool:
    plant.advance(DAY)
    return not plant.watch.effects and plant.violations() == []


def test_t01_a_forged_alarm_touches_nothing(plant: Plant) -> None:
    accuser, victim = plant.jobs
    elsewhere = builder.culprit(3, victim.seats)
    plant.alarm(plant.alarm_of(elsewhere, job=accuser))  # its job has no pod there
    plant.alarm(plant.alarm_of(elsewhere, job=replace(accuser, job=replace(accuser.job, uid="nobody"))))
    assert untouched(plant)
    assert {i.state.value for i in plant.world.incidents.rows.values()} == {"HANDED_TO_HUMAN"}


def test_t02_one_trainer_cannot_accuse_the_cluster_away(
    monkeypatch: pytest.MonkeyPatch, definition: Definition
) -> None:
    plant = Plant(monkeypatch, definition, nodes=8)
    for node in range(8):
        plant.alarm(plant.alarm_of(builder.culprit(2 * node, plant.jobs[0].seats), step=100 + node))
        plant.advance(timedelta(minutes=20))
    cordoned = [n for n in plant.world.kubernetes.nodes.values() if n.unschedulable]
    assert 0 < len(cordoned) <= NODES_PER_DAY


def test_t03_a_registration_forged_beforehand_is_not_verified(plant: Plant) -> None:
    job = Job("fake", "job-fake", 1, "training")
    seats = tuple(replace(s, pod_uid="made-up") for s in plant.jobs[1].seats)
    plant.deliver(builder.event(builder.registration(1, seats, job)), "register")
    plant.alarm(plant.alarm_of(builder.culprit(3, seats), job=replace(plant.jobs[1], job=job)))
    assert untouched(plant)


def test_t04_a_genuine_event_that_is_old_or_replayed_is_recorded_and_not_acted_on(plant: Plant) -> None:
    alarm = plant.alarm_of(builder.culprit(3, plant.jobs[0].seats))
    plant.deliver(builder.event(alarm, **{"replay-name": "again"}))
    plant.advance(timedelta(hours=25))
    plant.deliver(builder.event(alarm))
    assert not plant.world.incidents.rows and len(plant.world.incidents.rejected) == 2


def test_t05_an_approval_counts_once_however_often_it_is_posted(
    monkeypatch: pytest.MonkeyPatch, definition: Definition
) -> None:
    plant = Plant(monkeypatch, definition)
    unshared(monkeypatch)
    incident_id = ask(plant)
    answers = together([partial(plant.human, incident_id, "approve")] * 50)
    assert answers.count(200) == 1 and set(answers) == {200, 410}
    plant.advance(DAY)
    assert plant.watch.calls["cluster.replace"] == 1 and plant.violations() == []


def edited_row(plant: Plant, mine: str, other: str) -> None:
    """The row of the approved node is rewritten for the other node."""
    rows = plant.world.approvals.rows
    key = plant.incident(mine).approval_id or ""
    rows[key] = replace(rows[key], instance_id=plant.incident(other).instance_id or "")


def borrowed_row(plant: Plant, mine: str, other: str) -> None:
    """The incident is pointed at the other node's approval, which a person has approved."""
    incidents = plant.world.incidents.rows
    incidents[mine] = replace(incidents[mine], approval_id=incidents[other].approval_id)


@pytest.mark.parametrize("swap", [edited_row, borrowed_row])
def test_t06_an_approval_cannot_be_moved_to_another_node(
    plant: Plant, swap: Callable[[Plant, str, str], None]
) -> None:
    """Everything holds, approved, unexpired, in budget, but for what the approval is bound to."""
    mine, other = (
        plant.alarm(plant.alarm_of(builder.culprit(3, job.seats), job=job))[0].id for job in plant.jobs
    )
    plant.pump()
    assert plant.human(mine, "approve") == plant.human(other, "approve") == 200
    swap(plant, mine, other)
    plant.advance(timedelta(hours=2))
    assert [i.incident_id for i in plant.watch.issued] == [other]
    assert plant.watch.replace_calls[mine] == 0 and plant.violations() == []
    end = plant.incident(mine)
    assert end.closing is not None and end.closing.value == "HANDED_TO_HUMAN"
    assert "for another incident, node or evidence" in end.human_reason


def test_t07_scanners_that_follow_every_link_decide_nothing(plant: Plant) -> None:
    incident_id = ask(plant)
    before = repr(plant.world.approvals.__dict__)
    for _ in range(100):
        plant.scan(incident_id)
    plant.browse(plant.link(incident_id) or "", "POST", {})  # a scanner that submits what it finds
    assert repr(plant.world.approvals.__dict__) == before
    assert plant.human(incident_id, "keep") == 200


def test_t08_a_forwarded_link_is_traced_to_the_approver_it_was_mailed_to(plant: Plant) -> None:
    plant.world.mail.confirmed = ("a@example.com", "b@example.com")
    incident_id = ask(plant)
    links = {
        to: re.findall(r"^(https\S+/review/\S+)$", body, re.M)[0] for to, _, body in plant.world.mail.sent
    }
    assert len(set(links.values())) == 2
    form = {
        "decision": "keep",
        "typed": plant.incident(incident_id).targets[0].instance_id[-6:],
        "reason": "x",
    }
    assert plant.browse(links["a@example.com"], "POST", form)["statusCode"] == 200
    (row,) = plant.world.approvals.rows.values()
    assert "a@example.com" in row.decided_by and "b@example.com" not in row.decided_by


def test_t09_a_form_from_another_origin_or_in_a_frame_is_refused(plant: Plant) -> None:
    incident_id = ask(plant)
    link = plant.link(incident_id) or ""
    form = {
        "decision": "approve",
        "typed": plant.incident(incident_id).targets[0].instance_id[-6:],
        "reason": "x",
    }
    for site in ("cross-site", "same-site", "none"):
        assert plant.browse(link, "POST", form, **{"sec-fetch-site": site})["statusCode"] == 403
    headers = plant.browse(link)["headers"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert plant.world.approvals.rows and incident_id in plant.waiting()


def test_t10_no_secret_is_in_logs_mails_subjects_history_or_events(plant: Plant) -> None:
    with handler_log.recorded() as log:
        incident_id = ask(plant)
        secret = (plant.link(incident_id) or "").rsplit("/", 1)[-1]
        token = plant.execution(incident_id).token or ""
        plant.scan(incident_id)
        plant.human(incident_id, "approve")
        plant.advance(DAY)
    places = {
        "log": log.getvalue(),
        "history": repr(plant.execution(incident_id)),
        "bus": repr(plant.world.bus.events),
        "incident": repr(plant.world.incidents.__dict__),
        "subjects": repr([subject for _, subject, _ in plant.world.mail.sent]),
        "approvals": repr(plant.world.approvals.rows),
    }
    assert len(secret) >= 43 and token and incident_id in places["log"]
    assert [name for name, text in places.items() if secret in text] == []
    assert [n for n, text in places.items() if token in text and n != "history"] == []


def test_t11_a_stolen_task_token_without_an_approved_row_does_nothing(plant: Plant) -> None:
    incident_id = ask(plant)
    token = plant.execution(incident_id).token or ""
    mails = len(plant.world.mail.sent)
    plant.machine.answer(token, {"outcome": "approved", "incident_id": "another", "story": "x"})
    plant.advance(DAY)
    assert plant.watch.calls["cluster.replace"] == 0 and plant.violations() == []
    end = plant.incident(incident_id)
    assert end.state.value == "HANDED_TO_HUMAN" and "without a recorded answer" in end.human_reason
    assert len(plant.world.mail.sent) == mails + 1, "people are told once, and of no decision"


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


def test_each_threat_has_its_test() -> None:
    numbers = re.findall(r"^def test_t(\d\d)_", Path(__file__).read_text(), re.M)
    assert sorted(map(int, numbers)) == list(range(1, 23))
