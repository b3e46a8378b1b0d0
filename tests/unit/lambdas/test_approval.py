"""The mail, the link, the page: GET changes nothing, POST counts once, silence is not consent."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from lambdas.domain.approval import Answer, ApprovalState, hash_of
from lambdas.domain.errors import CallbackGoneError, NoApproverError, UnavailableError
from lambdas.domain.incident import Incident, State
from tests import handler_log
from tests.events import builder
from training_agent.contract import Job

from .drive import Driver
from .fakes import START

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"


@pytest.fixture
def incident(driver: Driver) -> Incident:
    driver.register()
    (opened,) = driver.alarm(builder.alarm(builder.culprit(3)))
    return opened


@pytest.fixture
def link(driver: Driver, incident: Incident) -> str:
    return driver.until_asked(incident)


def state(driver: Driver) -> ApprovalState:
    (row,) = driver.world.approvals.rows.values()
    return row.state


def test_the_mail_is_plain_text_in_72_columns_with_the_link_on_its_own_line(
    driver: Driver, link: str
) -> None:
    ((to, subject, body),) = driver.world.mail.sent
    assert to == "oncall@example.com" and NODE in subject
    assert len(subject) < 100 and subject.isascii() and "\n" not in subject
    assert link in body.splitlines()
    assert all(len(line) <= 72 for line in body.splitlines() if not line.startswith("https://"))


def test_a22_a_hostile_job_name_cannot_break_the_subject(driver: Driver) -> None:
    name = "x" * 120 + "\r\nBcc: all@example.com \U0001f600"
    job = Job(name, "job-0001", 1, "training")
    driver.register(*[builder.registration(n, job=job) for n in range(3)])
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3), job=job))
    driver.until_asked(incident)
    ((_, subject, body),) = driver.world.mail.sent
    assert subject.isascii() and subject.isprintable() and len(subject) < 100 and NODE in subject
    assert not any(line.startswith("Bcc:") for line in body.splitlines())


def test_only_the_hash_of_the_secret_is_kept_and_no_secret_is_logged(
    driver: Driver, incident: Incident
) -> None:
    with handler_log.recorded() as log:
        link = driver.until_asked(incident)
        driver.browse(link)
        driver.answer(link)
    secret = link.rsplit("/", 1)[-1]
    assert len(secret) >= 43  # 256 bits
    assert list(driver.world.approvals.links) == [hash_of(secret)]
    stored = driver.world.approvals
    rows = repr((driver.world.incidents.__dict__, stored.rows, stored.links))
    logged = log.getvalue()
    assert incident.id in logged
    for hidden in (secret, f"token-{incident.id}"):
        assert hidden not in logged and hidden not in rows
    assert f"token-{incident.id}" not in str(driver.world.mail.sent) + json.dumps(driver.browse(link))


def test_a21_scanners_that_get_a_hundred_times_change_nothing(driver: Driver, link: str) -> None:
    before = repr(driver.world.approvals.__dict__)
    for method in ("GET", "HEAD", "OPTIONS"):
        for _ in range(100):
            driver.browse(link, method)
    assert repr(driver.world.approvals.__dict__) == before
    assert driver.answer(link)["statusCode"] == 200


def test_the_page_shows_the_evidence_escaped_and_without_script(driver: Driver) -> None:
    job = Job("<script>alert(1)</script>", "job-0001", 1, "training")
    driver.register(*[builder.registration(n, job=job) for n in range(3)])
    finding = replace(builder.culprit(3), evidence="<img src=x onerror=alert(2)>")
    (incident,) = driver.alarm(builder.alarm(finding, job=job))
    page = driver.browse(driver.until_asked(incident))
    assert page["statusCode"] == 200
    assert "<script" not in page["body"] and "<img" not in page["body"]
    assert "&lt;script&gt;" in page["body"] and SUSPECT in page["body"]
    assert "destroys all volumes" in page["body"]


def test_the_pages_headers_forbid_caching_framing_and_script(driver: Driver, link: str) -> None:
    headers = driver.browse(link)["headers"]
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    policy = headers["content-security-policy"]
    assert (
        "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "script-src" not in policy
    )


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"typed": "000000"}, 400),
        ({"typed": ""}, 400),
        ({"reason": "   "}, 400),
        ({"decision": "destroy"}, 400),
    ],
)
def test_an_incomplete_form_decides_nothing(
    driver: Driver, link: str, changes: dict[str, str], status: int
) -> None:
    assert driver.answer(link, **changes)["statusCode"] == status
    assert state(driver) is ApprovalState.PENDING and not driver.world.callback.answers


def test_a_mistake_keeps_what_was_filled_in(driver: Driver, link: str) -> None:
    answer = driver.answer(link, decision="keep", typed="wrong", reason="spare <node> is due")
    assert answer["statusCode"] == 400
    assert 'value="keep" checked' in answer["body"] and 'value="approve" checked' not in answer["body"]
    assert "spare &lt;node&gt; is due" in answer["body"]
    assert "What you typed is not the last 6 characters" in answer["body"]


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": ""},
        {"sec-fetch-site": "", "origin": "https://evil.example"},
        {"sec-fetch-site": "", "origin": "null"},
    ],
)
def test_t9_a_form_from_elsewhere_is_refused(driver: Driver, link: str, headers: dict[str, str]) -> None:
    form = {"decision": "approve", "typed": SUSPECT[-6:], "reason": "x"}
    assert driver.browse(link, "POST", form, **headers)["statusCode"] == 403
    assert state(driver) is ApprovalState.PENDING


def test_an_own_origin_is_enough_for_browsers_without_fetch_metadata(driver: Driver, link: str) -> None:
    form = {"decision": "approve", "typed": SUSPECT[-6:], "reason": "x"}
    own = {"sec-fetch-site": "", "origin": "https://review.example.com"}
    assert driver.browse(link, "POST", form, **own)["statusCode"] == 200


def test_t5_fifty_parallel_posts_decide_once(driver: Driver, link: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: driver.answer(link)["statusCode"], range(50)))
    assert len(driver.world.callback.answers) == 1
    assert answers.count(200) == 1


def test_t18_unknown_links_answer_plainly(driver: Driver, link: str) -> None:
    for secret in ("", "x", "A" * 43, "../../etc/passwd", hash_of(link)):
        assert driver.browse(f"https://review.example.com/review/{secret}")["statusCode"] == 404
        assert driver.answer(f"https://review.example.com/review/{secret}")["statusCode"] == 404


def test_a_used_link_says_so_and_changes_nothing(driver: Driver, link: str) -> None:
    driver.answer(link)
    assert driver.browse(link)["statusCode"] == 410
    assert driver.answer(link, "release")["statusCode"] == 410
    (row,) = driver.world.approvals.rows.values()
    assert row.answer is Answer.APPROVE and row.state is ApprovalState.DELIVERED


def test_a15_nobody_answers_and_a_late_click_changes_nothing(
    driver: Driver, incident: Incident, link: str
) -> None:
    driver.play(incident, "approval_timed_out")
    assert driver.world.incidents.get(incident.id).state is State.EXPIRED
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    assert "expired" in driver.world.mail.sent[-1][1]
    late = driver.answer(link)
    assert late["statusCode"] == 410 and "expired" in late["body"]
    assert not driver.world.cluster.calls


def test_a15_a_click_after_the_expiry_and_before_the_timeout_is_late_too(driver: Driver, link: str) -> None:
    driver.world.clock.at = START + timedelta(hours=3)
    assert driver.answer(link)["statusCode"] == 410
    assert state(driver) is ApprovalState.PENDING


def test_a_decision_that_was_not_delivered_is_healed_by_a_repeated_post(driver: Driver, link: str) -> None:
    driver.world.callback.error = UnavailableError("no answer")
    assert driver.answer(link)["statusCode"] == 503
    assert state(driver) is ApprovalState.DECIDED
    driver.world.callback.error = None
    assert driver.answer(link, "release", typed="")["statusCode"] == 200
    assert driver.world.callback.answers[0][1]["outcome"] == "approved"  # what the row says, not the form


def test_a_decision_that_was_not_delivered_is_seen_by_the_timeout_branch(
    driver: Driver, incident: Incident, link: str
) -> None:
    driver.world.callback.error = CallbackGoneError("TaskTimedOut")
    assert driver.answer(link)["statusCode"] == 410
    assert driver.step("request_approval", incident, timed_out=True)["outcome"] == "approved"


def test_a_retried_request_sends_no_second_mail_and_kills_no_link(
    driver: Driver, incident: Incident, link: str
) -> None:
    driver.world.callback.waiting.clear()  # the first wait is over
    assert driver.ask(incident, token="token-2") == ""
    assert len(driver.world.mail.sent) == 1
    assert driver.answer(link)["statusCode"] == 200
    assert driver.world.callback.answers[0][0] == "token-2"


def test_a_crash_in_the_middle_of_the_mails_mails_only_whoever_is_missing(
    driver: Driver, incident: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.world.mail.confirmed = ("a@example.com", "b@example.com")
    send = driver.world.mail.send

    def down_for_b(approver: str, *rest: str) -> None:
        if approver.startswith("b"):
            raise UnavailableError("SNS")
        send(approver, *rest)

    driver.play(incident, "locate", stop="request_approval")
    with monkeypatch.context() as patched:
        patched.setattr(driver.world.mail, "send", down_for_b)
        with pytest.raises(UnavailableError):
            driver.ask(incident, token="token-1")
    (first,) = driver.links()
    link = driver.ask(incident, token="token-2")
    assert [to for to, _, _ in driver.world.mail.sent] == ["a@example.com", "b@example.com"]
    assert state(driver) is ApprovalState.PENDING and driver.browse(first)["statusCode"] == 200
    assert driver.answer(link)["statusCode"] == 200
    assert driver.world.callback.answers[0][0] == "token-2"


def test_no_confirmed_approver_is_found_out_before_waiting(
    driver: Driver, incident: Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.world.mail.confirmed = ()
    driver.play(incident, "locate", stop="request_approval")
    with pytest.raises(NoApproverError):
        driver.ask(incident)
    assert not driver.world.approvals.rows
    capsys.readouterr()
    driver.play(incident, "tell_human")
    closed = driver.world.incidents.get(incident.id)
    assert closed.state is State.NO_APPROVER and "NO_APPROVER" in closed.human_reason
    assert '"notices_to_nobody": 1.0' in capsys.readouterr().out  # of which an alarm tells the operators


def test_each_approver_gets_a_message_of_his_own(driver: Driver, incident: Incident) -> None:
    driver.world.mail.confirmed = ("a@example.com", "b@example.com")
    driver.until_asked(incident)
    assert [to for to, _, _ in driver.world.mail.sent] == ["a@example.com", "b@example.com"]


@pytest.mark.parametrize(
    ("decision", "end", "cordoned"),
    [("keep", State.REJECTED_KEPT, True), ("release", State.REJECTED_RELEASED, False)],
)
def test_a_rejection_keeps_or_releases_the_node(
    driver: Driver, incident: Incident, link: str, decision: str, end: State, cordoned: bool
) -> None:
    assert driver.answer(link, decision)["statusCode"] == 200
    driver.job_returns()
    driver.play(incident, "resume")
    assert driver.world.incidents.get(incident.id).state is end
    assert driver.world.kubernetes.nodes[NODE].unschedulable is cordoned
    assert not driver.world.cluster.calls


def test_t11_a_stolen_token_cannot_release_or_replace(driver: Driver, incident: Incident, link: str) -> None:
    """Whatever outcome the callback claims, the row decides."""
    assert driver.step("replace", incident)["outcome"] == "human"
    driver.play(incident, "resume")
    assert driver.world.incidents.get(incident.id).state is State.HANDED_TO_HUMAN
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    assert not driver.world.cluster.calls


def test_a_humans_uncordon_wins_over_the_release(driver: Driver, incident: Incident, link: str) -> None:
    driver.answer(link, "release")
    driver.world.kubernetes.change(NODE, annotations={"training.sdc/cordoned-by": "a person"})
    driver.job_returns()
    driver.play(incident, "resume")
    assert driver.world.kubernetes.nodes[NODE].unschedulable
