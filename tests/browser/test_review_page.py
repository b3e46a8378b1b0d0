"""An approver's two minutes in a real browser: link, page, answer, and all that goes wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from emulator.cloud import LocalCloud
from tests.workflow.scenario import Scenario, fetch, until
from training_agent.contract import Contest, DetailType, Pair, Vote, encode

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
Open = Callable[..., "Page"]
Shot = Callable[..., Path]


def asked(scenario: Scenario) -> str:
    """An alarm with all its evidence, up to the mailed link."""
    scenario.register()
    votes = (
        Vote(2, "bad0bad0", "target"), Vote(1, "600d600d", "replayer"),
        Vote(4, "600d600d", "arbiter"), Vote(5, "600d600d", "arbiter"),
    )  # fmt: skip
    finding = replace(
        scenario.culprit(),
        evidence="the gradients of rank 2 differ in both ring comparisons, in 3 of 3 repeats",
    )
    alarm = replace(
        scenario.alarm(finding),
        pairs=(Pair(1, 2), Pair(2, 3)),
        contests=(Contest(2, 1, votes, "600d600d", target_repeats=True),),
        last_audit_pass=20,
        last_weight_check_pass=20,
        loss_audited=True,
    )
    scenario.put(DetailType.ALARM, encode(alarm))
    return scenario.link()


def fill(page: Page, scenario: Scenario, decision: str, typed: str | None = None) -> None:
    page.check(f"input[value={decision}]")
    page.fill("#typed", scenario.instance()[-6:] if typed is None else typed)
    page.fill("#reason", "three GPUs agree against it")


def approval_row(cloud: LocalCloud, scenario: Scenario) -> dict[str, Any]:
    key = {"approval_id": {"S": f"{scenario.incident_id()}-1"}}
    table = cloud.stack.table_name("ApprovalTable")
    item: dict[str, Any] = cloud.client("dynamodb").get_item(TableName=table, Key=key, ConsistentRead=True)[
        "Item"
    ]
    return item


def scrolls_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_approve_replaces_and_the_link_is_used_up(scenario: Scenario, open_page: Open, shot: Shot) -> None:
    link, suspect = asked(scenario), scenario.instance()
    page = open_page(link, width=760, height=900)
    assert page.inner_text("h1") == f"Replace node {scenario.nodes[1]}?"
    shot(page, "review")
    shot(page, "readme", last="form")
    fill(page, scenario, "approve")
    page.click("button")
    assert page.inner_text("h1") == "Your answer is recorded: approve."
    shot(page, "recorded")
    scenario.wait_for_replacement()
    scenario.come_back()
    assert scenario.end() == "REPLACED"
    assert scenario.replace_requests() == [[suspect]]
    page.goto(link)
    assert page.inner_text("h1") == "Already approved: the node is replaced"
    assert page.locator("form").count() == 0
    shot(page, "used")


@pytest.mark.parametrize(("decision", "end"), [("keep", "REJECTED_KEPT"), ("release", "REJECTED_RELEASED")])
def test_reject_replaces_nothing(scenario: Scenario, open_page: Open, decision: str, end: str) -> None:
    page = open_page(asked(scenario))
    fill(page, scenario, decision)
    page.click("button")
    assert page.inner_text("h1") == f"Your answer is recorded: {decision}."
    if decision == "release":
        scenario.job_returns_when_released()
    assert scenario.end() == end
    assert scenario.replace_requests() == []
    assert scenario.cordoned(scenario.nodes[1]) is (decision == "keep")


def test_a_wrong_value_is_pointed_at_and_nothing_that_was_filled_in_is_lost(
    cloud: LocalCloud, scenario: Scenario, open_page: Open, shot: Shot
) -> None:
    page = open_page(asked(scenario))
    fill(page, scenario, "keep", typed="ffffff")
    page.click("button")
    assert page.title().startswith("Please correct:")
    assert "not the last 6 characters" in page.inner_text("[role=alert]")
    assert page.evaluate("document.activeElement.id") == "typed" and page.input_value("#typed") == "ffffff"
    assert page.is_checked("input[value=keep]")
    assert page.input_value("#reason") == "three GPUs agree against it"
    assert page.locator("[role=alert]").is_visible() and not scrolls_sideways(page)
    shot(page, "mistake")
    assert approval_row(cloud, scenario)["state"]["S"] == "PENDING"
    page.fill("#typed", scenario.instance()[-6:])
    page.click("button")
    assert scenario.end() == "REJECTED_KEPT"


def test_an_empty_form_is_not_even_sent(cloud: LocalCloud, scenario: Scenario, open_page: Open) -> None:
    link = asked(scenario)
    page = open_page(link)
    page.click("button")
    assert page.url == link and page.evaluate("document.querySelectorAll(':invalid').length > 0")
    assert approval_row(cloud, scenario)["state"]["S"] == "PENDING"


def test_a_double_click_decides_once_and_ends_on_a_page_that_says_so(
    scenario: Scenario, open_page: Open
) -> None:
    page = open_page(asked(scenario))
    fill(page, scenario, "keep")
    page.dblclick("button")
    page.locator("form").wait_for(state="detached")  # a polled function would be eval to the page's policy
    assert page.inner_text("h1") in ("Your answer is recorded: keep.", "Already answered: keep")
    assert scenario.end() == "REJECTED_KEPT"
    assert len([m for m in scenario.mails() if "decided" in m.subject]) == 1


def test_silence_expires_and_the_page_says_so(
    short_patience: None, scenario: Scenario, open_page: Open, shot: Shot
) -> None:
    link = asked(scenario)
    assert scenario.end() == "EXPIRED"
    page = open_page(link)
    assert page.inner_text("h1") == "Expired" and page.locator("form").count() == 0
    assert "stays cordoned" in page.inner_text("main")
    shot(page, "expired")
    assert scenario.replace_requests() == []


def test_a_scanner_that_fetches_clicks_and_submits_everything_changes_nothing(
    cloud: LocalCloud, scenario: Scenario, open_page: Open
) -> None:
    link = asked(scenario)
    until(lambda: "mailed" in approval_row(cloud, scenario), "the note that the mail was sent")
    before = approval_row(cloud, scenario)
    for method in ("GET", "HEAD", "OPTIONS", "GET"):
        fetch(method, link)
    page = open_page(link)
    page.route(
        re.compile("https://"), lambda route: route.fulfill(status=204)
    )  # the console: nothing to show
    for i in range(page.locator("a, summary").count()):
        page.locator("a, summary").nth(i).click()
    for form in (
        {},
        {"decision": "approve", "typed": "", "reason": ""},
        {"decision": "approve", "reason": "x"},
    ):
        assert fetch("POST", link, form).status == 400
    page.evaluate("document.querySelector('form').submit()")  # past the browser's own checks
    page.wait_for_selector("[role=alert]")
    assert approval_row(cloud, scenario) == before
    assert scenario.replace_requests() == []


def test_an_unknown_link_leads_nowhere(cloud: LocalCloud, open_page: Open, shot: Shot) -> None:
    page = open_page(f"{cloud.review_url}/review/{'A' * 43}")
    assert page.inner_text("h1") == "Unknown link" and page.locator("form").count() == 0
    shot(page, "unknown")


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone_all_that_decides_is_above_the_fold_and_nothing_scrolls_sideways(
    scenario: Scenario, open_page: Open, shot: Shot, width: int
) -> None:
    page = open_page(asked(scenario), width=width)
    fold = page.viewport_size["height"] if page.viewport_size else 0
    for words in ("Replace node", "How sure?", "Answer within", "What will happen"):
        box = page.get_by_text(words).first.bounding_box()
        assert box is not None and box["y"] + box["height"] < fold, (words, box)
    for i in range(page.locator("summary").count()):
        page.locator("summary").nth(i).click()
    assert not scrolls_sideways(page)
    shot(page, f"phone-{width}")
    boxes = [page.locator("label.choice, button").nth(i).bounding_box() for i in range(4)]
    assert all(box is not None and box["height"] >= 40 for box in boxes), boxes  # a thumb's size
    assert len(page.locator("svg").all()) == 2
    assert all(s.bounding_box()["width"] <= width for s in page.locator("svg").all())  # type: ignore[index]


def test_by_keyboard_alone_in_the_order_of_the_page(scenario: Scenario, open_page: Open) -> None:
    page = open_page(asked(scenario))
    walked = []
    for _ in range(7):
        page.keyboard.press("Tab")
        walked.append(page.evaluate("document.activeElement.name || document.activeElement.tagName"))
    assert walked[:5] == ["A", "decision", "typed", "reason", "BUTTON"], walked
    page.focus("input[value=approve]")
    page.keyboard.press("ArrowDown")
    assert page.is_checked("input[value=keep]")
    page.keyboard.press("Tab")
    page.keyboard.type(scenario.instance()[-6:])
    page.keyboard.press("Tab")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("form").wait_for(state="detached")  # a polled function would be eval to the page's policy
    assert page.inner_text("h1") == "Your answer is recorded: keep."


def test_without_the_style_sheet_and_without_script_it_says_and_does_the_same(
    browser: Any, scenario: Scenario
) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.route(re.compile(".*/review/.*"), _unstyled)
    page.goto(asked(scenario))
    assert page.locator("style").count() == 0 and page.locator("svg").first.is_visible()
    fill(page, scenario, "keep")
    page.click("button")
    assert page.inner_text("h1") == "Your answer is recorded: keep."
    context.close()


def _unstyled(route: Any) -> None:
    if route.request.method != "GET":
        route.continue_()
        return
    answer = route.fetch()
    route.fulfill(response=answer, body=re.sub("<style>.*?</style>", "", answer.text(), flags=re.S))
