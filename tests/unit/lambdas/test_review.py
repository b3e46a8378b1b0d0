"""The page that asks: order, words, labels, escaping; and every page that only tells."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from lambdas import ended
from lambdas.deciding import Ended
from lambdas.domain.approval import Answer, Approval, ApprovalState
from lambdas.domain.drill import DRILL_NODE
from lambdas.domain.incident import Action
from lambdas.domain.wording import CHECKLIST
from lambdas.review import Mistake, mistake_in, review
from training_agent.contract import Contest, Vote, console_url

from .document import Document
from .questions import EXECUTION, NODE, PAST, alarm_of, approval_of, incident_of

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus=alert(1) x='",
    "{{7*7}}{% raw %}",
    "</style><style>*{display:none}",
    "]]></title><svg onload=alert(1)>",
    "x" * 10_000,
    "\u202egnp.exe\u2066\u200f\u2069",
    "a\x00b\x1b[31m\r\nSet-Cookie: x",
)


def asked(row: str = "C1", **changes: Any) -> Approval:
    return approval_of(incident_of(row, **changes), history=PAST)


def held() -> Approval:
    return asked("R1", asking=Action.RELEASE, node=None)


REL = "noopener noreferrer"
PAGES = {
    "replace": lambda: review(asked()).body,
    "weights": lambda: review(asked("W1")).body,
    "deep-check": lambda: review(asked("V2", asking=Action.DEEP_CHECK)).body,
    "held-job": lambda: review(held()).body,
    "drill": lambda: review(asked(node=DRILL_NODE, synthetic=True)).body,
    "mistake": lambda: review(asked(), Mistake("typed", "wrong"), {"typed": "abc"}).body,
    "before": lambda: review(replace(asked(), row="", alarm=None, history=(), ranks=())).body,
    "unknown": lambda: ended.unknown().body,
    "refused": lambda: ended.refused().body,
    "trouble": lambda: ended.trouble().body,
    "recorded": lambda: ended.recorded(answered(Answer.APPROVE)).body,
    "used": lambda: ended.over(answered(Answer.KEEP), Ended.USED).body,
    "replaced": lambda: ended.over(answered(Answer.APPROVE), Ended.USED).body,
    "expired": lambda: ended.over(replace(asked(), state=ApprovalState.EXPIRED), Ended.OVER).body,
    "superseded": lambda: ended.over(replace(asked(), state=ApprovalState.SUPERSEDED), Ended.OVER).body,
    "closed": lambda: ended.over(replace(asked(), state=ApprovalState.CLOSED), Ended.OVER).body,
    "nobody-waits": lambda: ended.over(answered(Answer.KEEP), Ended.NOBODY_WAITS).body,
    "not-delivered": lambda: ended.over(answered(Answer.KEEP), Ended.NOT_DELIVERED).body,
}


def answered(answer: Answer) -> Approval:
    return replace(
        asked(),
        state=ApprovalState.DELIVERED,
        answer=answer,
        reason="a reason that is nobody else's business",
        decided_by="oncall@example.com",
        decided_at="2026-01-01T02:11:00.000000Z",
    )


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_well_formed_without_script_style_attributes_or_anything_from_outside(
    name: str,
) -> None:
    body = PAGES[name]()
    page = Document(body)
    assert page.all("html")[0]["lang"] == "en" and len(page.all("h1")) == 1 and len(page.all("main")) == 1
    for tag, attributes in page.tags:
        assert tag not in ("script", "img", "iframe", "link", "object")
        assert not [k for k in attributes if k == "style" or k.startswith("on") or k == "src"]
        target = attributes.get("href", "#")
        assert target.startswith("#") or (target, attributes["rel"]) == (console_url(EXECUTION), REL)
    assert "width=device-width" in body


@pytest.mark.parametrize("name", ["replace", "deep-check", "held-job", "mistake"])
def test_every_field_has_a_label_and_ids_are_unique(name: str) -> None:
    page = Document(PAGES[name]())
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    labelled = {a["for"] for a in page.all("label") if "for" in a}
    fields = [*page.all("textarea"), *(a for a in page.all("input") if a["type"] == "text")]
    assert {a["id"] for a in fields} <= labelled and page.all("legend")
    for _, a in page.tags:
        assert set(a.get("aria-labelledby", "").split()) <= set(ids)
        assert set(a.get("aria-describedby", "").split()) <= set(ids)
    assert not [a for _, a in page.tags if int(a.get("tabindex", "0")) > 0]


def test_above_the_fold_stand_the_node_why_how_sure_and_what_will_happen() -> None:
    text = Document(PAGES["replace"]()).text
    order = [
        f"Replace node {NODE}?", "out-voted by a strict majority", "How sure?", "Answer within 4 h",
        "Warning:", "What will happen", "If you approve", "If nobody answers", "What was seen",
        "Your answer", "Facts", "Earlier incidents", "Is it hardware?", "Raw evidence",
    ]  # fmt: skip
    at = [text.find(words) for words in order]
    assert -1 not in at and at == sorted(at), list(zip(order, at, strict=True))
    assert text.find("What will happen") < 700


def test_a_mistake_keeps_all_that_was_filled_in_and_points_at_its_field() -> None:
    form = {"decision": "keep", "typed": "<wrong>", "reason": "spare\nis due"}
    mistake = mistake_in(form, asked())
    assert mistake is not None and mistake.field == "typed"
    answer = review(asked(), mistake, form)
    page = Document(answer.body)
    (typed,) = [a for a in page.all("input") if a["type"] == "text"]
    assert answer.status == 400 and typed["value"] == "<wrong>" and typed["aria-invalid"] == "true"
    assert "autofocus" in typed and typed["aria-describedby"] == "mistake"
    assert [a["value"] for a in page.all("input") if "checked" in a] == ["keep"]
    assert "spare\nis due</textarea>" in answer.body
    assert answer.body.index('role="alert"') > answer.body.index("<form")


@pytest.mark.parametrize("text", HOSTILE)
def test_t13_hostile_values_stay_text_wherever_they_come_from(text: str) -> None:
    alarm = replace(
        alarm_of("C1", text),
        notes=(text,),
        divergent_tensors=(text,),
        versions={text: text},
        contests=(Contest(3, 2, (Vote(3, text, "target"), Vote(2, "x", text)), text, True),),
    )
    approval = replace(
        asked(human_reason=text), alarm=alarm, node=text, instance_id=text, job_uid=text, command=text,
        history=tuple(replace(p, row=text, incident_id=text) for p in PAST),
    )  # fmt: skip
    clean, dirty = (
        Document(review(a, Mistake("typed", "wrong"), {"typed": t, "reason": t}).body)
        for a, t in ((asked(), ""), (approval, text))
    )
    known = {tag for tag, _ in clean.tags} | {"pre"}
    assert {tag for tag, _ in dirty.tags} <= known
    assert not [a for _, a in dirty.tags for k in a if k.startswith("on") or k == "style"]
    for page in (ended.recorded(approval), ended.over(approval, Ended.OVER)):
        assert {tag for tag, _ in Document(page.body).tags} <= known


def test_bidi_and_control_characters_cannot_reorder_what_an_approver_reads() -> None:
    approval = approval_of(incident_of("C1"), evidence="rank \u202e3\u2066 is\x00fine")
    body = review(approval).body
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200e\u200f\x00]", body)
    assert "\\u202e" in body  # the raw evidence shows that it was there


def test_pages_of_links_that_are_over_tell_no_person_no_reason_and_no_evidence() -> None:
    for name in ("unknown", "used", "replaced", "expired", "superseded", "nobody-waits", "not-delivered"):
        body = PAGES[name]()
        for hidden in (
            "oncall@example.com",
            "nobody else's",
            "nobody else&#39;s",
            "GPU-",
            "ring comparisons",
        ):
            assert hidden not in body, (name, hidden)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("unknown", "leads nowhere"),
        ("recorded", "Your answer is recorded: approve"),
        ("used", "Already answered: keep"),
        ("replaced", "Already approved: the node is replaced"),
        ("expired", "nobody answered in time"),
        ("superseded", "A newer question"),
        ("nobody-waits", "Nobody waits for this answer"),
        ("not-delivered", "Recorded, not delivered yet"),
        ("drill", "Fire drill."),
    ],
)
def test_each_state_has_a_page_that_says_what_it_is(name: str, says: str) -> None:
    assert says in Document(PAGES[name]()).text


def test_the_checklist_tells_what_follows_a_rank_from_what_follows_a_node() -> None:
    said = dict(CHECKLIST)
    page = review(asked()).body
    for seen in ("It follows one node when the job moves", "It follows the rank, not the node"):
        assert seen in page and said[seen] in page
    assert said["It follows the rank, not the node"].startswith("software")
