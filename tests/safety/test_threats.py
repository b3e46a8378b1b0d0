"""The threats of the pipeline, one test each, under their numbers; docs/safety.md says what is left."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lambdas.steps.contain import NODES_PER_DAY
from tests import handler_log
from tests.events import builder
from training_agent.contract import Finding, FindingKind, Job

from .asl import Definition
from .plant import Plant
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


@pytest.mark.parametrize("kind", [FindingKind.WEIGHTS, FindingKind.PAIR], ids=["W2", "V4"])
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "two by two"])
def test_t02_an_alarm_that_names_nobody_does_not_contain_the_whole_job(
    monkeypatch: pytest.MonkeyPatch, definition: Definition, kind: FindingKind, at_once: bool
) -> None:
    """Rows W2 and V4 contain whoever is involved: that is no way around the day's quota."""
    plant = Plant(monkeypatch, definition, nodes=8)
    seats = plant.jobs[0].seats
    involved = [seats] if at_once else [seats[i : i + 4] for i in range(0, 16, 4)]
    for number, places in enumerate(involved):
        plant.alarm(plant.alarm_of(Finding(kind, involved=places), step=100 + number))
        plant.advance(timedelta(minutes=20))
    cordoned = [n for n in plant.world.kubernetes.nodes.values() if n.unschedulable]
    assert len(cordoned) <= (0 if at_once else NODES_PER_DAY) and plant.violations() == []


@pytest.mark.parametrize("together", [True, False], ids=["at once", "one after the other"])
def test_t02_a_claimed_size_of_the_job_buys_no_more_accusations(
    monkeypatch: pytest.MonkeyPatch, definition: Definition, together: bool
) -> None:
    """Row S1 and the day's quota grow with the job: with its verified nodes, not with the alarm's number."""
    plant = Plant(monkeypatch, definition, nodes=8)
    claimed = {"nodes": 10**6, "world_size": 8 * 10**6}
    accused = [builder.culprit(2 * node, plant.jobs[0].seats) for node in range(8)]
    if together:
        plant.alarm(plant.alarm_of(*accused, **claimed))
        plant.advance(timedelta(minutes=20))
    else:
        for node, finding in enumerate(accused):
            plant.alarm(plant.alarm_of(finding, step=100 + node, **claimed))
            plant.advance(timedelta(minutes=20))
    cordoned = [n for n in plant.world.kubernetes.nodes.values() if n.unschedulable]
    assert len(cordoned) <= (0 if together else NODES_PER_DAY)
    assert len(plant.world.incidents.rows) == (1 if together else 8)


@pytest.mark.parametrize("account", [None, "default"])
def test_t03_a_registration_forged_beforehand_is_not_verified(plant: Plant, account: str | None) -> None:
    """Without a pod; and with a true one beside the victim's, with the label, of another account."""
    job = Job("fake", "job-fake", 1, "training")
    seats = tuple(replace(s, pod_name="fake-0", pod_uid="made-up") for s in plant.jobs[1].seats)
    if account is not None:
        plant.add_pod("fake-0", "made-up", str(seats[3].instance_id), job)
        pod = plant.world.kubernetes.pods["training", "fake-0"]
        plant.world.kubernetes.pods["training", "fake-0"] = replace(pod, service_account=account)
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


def test_each_threat_has_its_test() -> None:
    here = Path(__file__)
    text = here.read_text() + here.with_name("test_threats_of_input.py").read_text()
    numbers = re.findall(r"^def test_t(\d\d)_", text, re.M)
    assert sorted(set(map(int, numbers))) == list(range(1, 23))
