"""Every kind of mail as it is sent: `pytest --snapshot-update` after a change, then read the diff."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import typer
from syrupy.assertion import SnapshotAssertion
from typer.core import TyperGroup

from lambdas.domain import mails, messages
from lambdas.domain.approval import Answer, Approval, ApprovalState
from lambdas.domain.decision_table import ROWS
from lambdas.domain.details_missing import Fired, Jobs, details_mail
from lambdas.domain.drill import DRILL_INSTANCE, DRILL_NODE
from lambdas.domain.incident import Action, CheckResult, DeepCheck, State
from lambdas.domain.letter import COLUMNS
from lambdas.domain.wording import SURE
from lambdas.steps.notices import TOLD
from tests.events import builder
from tests.unit.lambdas.questions import EXECUTION, approval_of, incident_of
from training_agent.cli.app import app
from training_agent.contract import console_url

URL = "https://abcde12345.execute-api.us-east-1.amazonaws.com"
WAY = mails.link_way(f"{URL}/review/{'A' * 43}")
DRILL = {"node": DRILL_NODE, "synthetic": True}


def asked(row: str, action: Action = Action.REPLACE, **changes: Any) -> mails.Mail:
    incident = incident_of(row, asking=action, **changes)
    return mails.approval_mail(incident, approval_of(incident), WAY, URL)


def reminded(row: str, **changes: Any) -> mails.Mail:
    incident = incident_of(row, **changes)
    return mails.approval_mail(incident, approval_of(incident), WAY, URL, reminder=True)


def decided(answer: Answer, **changes: Any) -> mails.Mail:
    incident = incident_of("C1", **changes)
    approval = replace(
        approval_of(incident),
        state=ApprovalState.DELIVERED,
        answer=answer,
        reason="three GPUs agree against it",
        decided_by="oncall@example.com",
    )
    return mails.decision_mail(incident, approval)


def notice(closing: State, row: str | None = "C1", *, issued: bool = False, **changes: Any) -> mails.Mail:
    incident = incident_of(row, closing=closing, **changes)
    reason = incident.human_reason or "the reason stands here"
    facts, console = approval_of(incident).facts, console_url(EXECUTION)
    return mails.notice_mail(incident, facts, reason, closing, issued=issued, console=console, url=URL)


def expired(action: Action = Action.REPLACE, row: str = "C1", **changes: Any) -> mails.Mail:
    incident = incident_of(row, asking=action, **changes)
    return mails.expired_mail(incident, approval_of(incident), URL)


def details_missing() -> mails.Mail:
    at, job = "2026-01-01T00:05:00.000000Z", replace(builder.JOB, uid="")
    incident = incident_of(None, node=None, job=job, state=State.DETAILS_MISSING, targets=(), touched=False)
    reason = "Threshold Crossed: 1 datapoint [1.0 (01/01/26 00:00:00)] was greater than the threshold (0.0)."
    fired = Fired(incident.check, at, "{}", "TrainingSdc-demo-ReplayMismatch-1A2B3C", reason)
    jobs = Jobs((job.name,), (job.name, "mixtral"))
    return details_mail(incident, fired, jobs, timedelta(hours=1))


TOGETHER = DeepCheck(
    CheckResult.UNAVAILABLE,
    note="one over several nodes is a human's: "
    + messages.check_command(incident_of("R1", node=None), ROWS["R1"].checks),
)
KINDS = {
    "request-replace": lambda: asked("C1"),
    "reminder": lambda: reminded("C1"),
    "reminder-held-job": lambda: reminded("R1", asking=Action.RELEASE, node=None),
    "reminder-drill": lambda: reminded("C1", **DRILL),
    "request-replace-weights": lambda: asked("W1"),
    "request-deep-check": lambda: asked("V2", Action.DEEP_CHECK),
    "request-held-job": lambda: asked("R1", Action.RELEASE, node=None, deep_check=TOGETHER),
    "request-drill": lambda: asked("C1", **DRILL),
    "decided-approve": lambda: decided(Answer.APPROVE),
    "decided-keep": lambda: decided(Answer.KEEP),
    "decided-release": lambda: decided(Answer.RELEASE),
    "decided-drill": lambda: decided(Answer.APPROVE, **DRILL),
    "expired": expired,
    "expired-held-job": lambda: expired(Action.RELEASE, "R1", node=None),
    "expired-drill": lambda: expired(**DRILL),
    "observed": lambda: notice(State.OBSERVED, touched=False, human_reason=OBSERVED),
    "degraded": lambda: notice(State.REPLACEMENT_DEGRADED, issued=True),
    "systemic": lambda: notice(State.HANDED_TO_HUMAN, "S1", node=None),
    "data": lambda: notice(State.HANDED_TO_HUMAN, "N0", node=None),
    "no-approver": lambda: notice(State.NO_APPROVER),
    "replaced-by-hyperpod": lambda: notice(State.REPLACED_BY_HYPERPOD),
    "human-override": lambda: notice(State.HUMAN_OVERRIDE),
    "world-changed": lambda: notice(State.WORLD_CHANGED, touched=False),
    "replaced-still-held": lambda: notice(State.REPLACED),
    "gone-still-held": lambda: notice(State.TERMINATED_NO_DEMAND),
    "breaker": lambda: notice(State.BLOCKED_BY_BREAKER),
    "check-stuck": lambda: notice(State.HEALTHCHECK_STUCK, "V2"),
    "human-only": lambda: notice(State.HANDED_TO_HUMAN, "V4"),
    "unlocated": lambda: notice(State.HANDED_TO_HUMAN, None, touched=False, targets=()),
    "details-missing": lambda: details_missing(),
    "drill-stopped": lambda: notice(State.CLOSED, touched=False, **DRILL),
    "links-off": lambda: mails.approval_mail(
        (i := incident_of("C1")), approval_of(i), mails.signed_way(f"{URL}/incidents/{i.id}/decision"), URL
    ),
}
OBSERVED = "observe mode: would have done 'isolate', then replace after review"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_mail_reads_as_it_was_approved(kind: str, snapshot: SnapshotAssertion) -> None:
    subject, body = KINDS[kind]()
    assert f"Subject: {subject}\n\n{body}" == snapshot


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_mail_is_plain_ascii_in_72_columns(kind: str) -> None:
    subject, body = KINDS[kind]()
    assert subject.isascii() and subject.isprintable() and len(subject) < 100
    assert DRILL_INSTANCE in subject or "i-0a1b2c3d4e5f60002" in subject or "job llama-tiny" in subject
    whole = ("https://", "  --api ", messages.COMMAND)  # what is clicked or copied
    assert [line for line in body.splitlines() if len(line) > COLUMNS and not line.startswith(whole)] == []
    assert body.isascii() and body.endswith("\n") and not body.endswith("\n\n")


def test_a_drill_is_marked_in_subject_and_first_line() -> None:
    for kind in ("request-drill", "reminder-drill", "decided-drill", "expired-drill", "drill-stopped"):
        subject, body = KINDS[kind]()
        assert subject.startswith("[SDC FIRE DRILL]") and body.startswith("FIRE DRILL: no node is accused")


def test_no_mail_of_a_real_incident_looks_like_a_drill() -> None:
    for kind in [k for k in KINDS if "drill" not in k]:
        assert "DRILL" not in "".join(KINDS[kind]())


def test_every_end_that_people_are_told_of_has_words_of_its_own() -> None:
    assert set(mails.NOTICES) == TOLD | {State.CLOSED}
    assert len({n.subject for n in mails.NOTICES.values()}) >= len(TOLD)


def test_every_row_says_how_far_its_evidence_carries() -> None:
    assert set(SURE) == set(ROWS)


@pytest.mark.parametrize("field", ["name", "evidence", "reason"])
@pytest.mark.parametrize(
    "text", ["x" * 10_000, "a\r\nBcc: all@example.com\n\nb", "\u202egnp.exe\u2066 \u200f"]
)
def test_t13_hostile_text_stays_in_its_line(field: str, text: str) -> None:
    incident = incident_of("C1", **({"human_reason": text} if field == "reason" else {}))
    if field == "name":
        incident = replace(incident, job=replace(incident.job, name=text))
    approval: Approval = approval_of(incident, evidence=text if field == "evidence" else "")
    for subject, body in (
        mails.approval_mail(incident, approval, WAY, URL),
        mails.notice_mail(
            incident, approval.facts, messages.one_line(text), State.HANDED_TO_HUMAN, issued=False
        ),
    ):
        assert subject.isascii() and subject.isprintable() and len(subject) < 100
        assert all(c.isprintable() or c == "\n" for c in body) and len(body) < 6_000
        assert not [line for line in body.splitlines() if line.startswith("Bcc:")]


def test_the_command_line_answers_the_same_question() -> None:
    _, body = KINDS["request-replace"]()
    assert body.count("sdc approve") == 1 and body.count("sdc reject") == 2 and body.count("--release") == 1
    held = KINDS["request-held-job"]()[1]
    assert "--node" not in held and "--release" not in held


@pytest.mark.parametrize("kind", ["request-replace", "request-held-job", "reminder"])
def test_the_command_line_of_a_mail_is_one_that_sdc_understands(kind: str) -> None:
    text = KINDS[kind]()[1].replace("\\\n", " ")
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("sdc ")]
    sdc = typer.main.get_command(app)
    assert len(lines) >= 2 and isinstance(sdc, TyperGroup)
    for _, verb, *arguments in lines:
        given = sdc.commands[verb].make_context(verb, arguments).params
        assert (given["incident"], given["api"], given["reason"]) == ("3f1c9a0b7d2e4685", URL, "why")
        assert given["question"] == "3f1c9a0b7d2e4685-1" and given["action"] in ("replace", "release")


LEFT_BEHIND = {
    "breaker",
    "check-stuck",
    "degraded",
    "expired",
    "expired-held-job",
    "gone-still-held",
    "human-only",
    "no-approver",
    "replaced-still-held",
}


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if not k.startswith(("request", "reminder", "links", "dec"))]
)
def test_a_mail_about_what_stays_cordoned_or_held_gives_the_command_that_lets_it_go(kind: str) -> None:
    text = KINDS[kind]()[1].replace("\\\n", " ")
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("sdc ")]
    assert bool(lines) is (kind in LEFT_BEHIND)
    sdc = typer.main.get_command(app)
    assert isinstance(sdc, TyperGroup)
    for _, verb, *arguments in lines:
        given = sdc.commands[verb].make_context(verb, arguments).params
        assert (verb, given["incident"], given["api"]) == ("release", "3f1c9a0b7d2e4685", URL)


def test_a_drill_that_stopped_says_nothing_of_how_sure_anybody_is() -> None:
    assert "WHAT IT MEANS" not in KINDS["drill-stopped"]()[1]
