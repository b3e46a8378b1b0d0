"""A real Chromium in front of the local cloud's page. Nothing is skipped: what is missing fails and says so.

The page is the deployed function behind the template's route; playwright is imported only when a test runs,
so that `make test`, which leaves these out, does not need it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from emulator.cloud import LocalCloud
from tests.workflow.conftest import cloud, scenario, template

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["cloud", "scenario", "template"]  # fixtures that are shared with the workflow tests
SHOTS = Path(__file__).resolve().parents[2] / "out" / "browser"
PHONE = {"width": 390, "height": 844}
NAMES = (os.environ.get("CHROMIUM", "chromium"), "chromium-browser", "google-chrome")


def chromium() -> str:
    """Path of an installed Chromium; the test fails without one."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.fail(
            "No Chromium is on PATH. Debian: apt-get install chromium; or CHROMIUM=/path/to/chromium."
        )
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; root has no user namespace to put it in."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("playwright is not installed. Run these tests by: make test-browser")
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=sandbox)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a link in a window of its own; whatever the browser complains about fails the test at its end."""
    pages: list[Page] = []
    complaints: list[str] = []

    def open_(link: str, **size: int) -> Page:
        window: Any = {**PHONE, **size}
        page = browser.new_page(viewport=window)
        pages.append(page)
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("console", lambda m: complaints.append(m.text) if "Failed to load" not in m.text else None)
        page.goto(link)
        return page

    yield open_
    for page in pages:
        page.close()
    assert complaints == []  # among them everything that the page's own policy blocked


@pytest.fixture
def short_patience(cloud: LocalCloud) -> Iterator[None]:
    """Approvals expire after a few seconds; a callback's timeout is real time."""
    names = ("DecideFunction", "RequestApprovalFunction")
    before = cloud.runtime.worker(names[0]).function.variables["APPROVAL_TIMEOUT_SECONDS"]
    for name in names:
        cloud.runtime.set_variables(name, APPROVAL_TIMEOUT_SECONDS="3")
    yield
    for name in names:
        cloud.runtime.set_variables(name, APPROVAL_TIMEOUT_SECONDS=before)


@pytest.fixture(scope="session")
def shot() -> Callable[..., Path]:
    """Keep a picture of the page under out/browser, to be looked at; whole, or down to the end of `last`."""
    SHOTS.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str, last: str = "main") -> Path:
        path = SHOTS / f"{name}.png"
        page.evaluate("window.scrollTo(0, 0)")  # boxes are measured from what is in sight
        box = page.locator(last).bounding_box()
        assert box is not None and page.viewport_size is not None
        clip: Any = {
            "x": 0,
            "y": 0,
            "width": page.viewport_size["width"],
            "height": box["y"] + box["height"] + 16,
        }
        page.screenshot(path=path, full_page=True, clip=clip)
        return path

    return take
