"""The report in a real browser: from a file, on a desk, on a phone, on paper; nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.report_builder import incident, raised, run_folder
from training_agent.cli.report import page
from training_agent.cli.report.run import read

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
KINDS = ("run-with-an-alarm", "healthy-run", "incident")


def written(kind: str, folder: Path) -> Path:
    """One report as `sdc report` writes it."""
    run, records = None, (incident(),)
    if kind == "healthy-run":
        run, records = read(run_folder(folder / "shared")), ()
    elif kind == "run-with-an-alarm":
        run = read(run_folder(folder / "shared", raised()))
    file = folder / f"{kind}.html"
    shown = replace(run, folder="/fsx/llama") if run else None
    file.write_text(page.render(shown, records, "", NOW), encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [320, 390, 1000])
def test_it_is_read_on_a_desk_and_on_a_phone(
    kind: str, width: int, tmp_path: Path, open_page: Callable[..., Page], shot: Callable[..., Path]
) -> None:
    page_ = open_page(written(kind, tmp_path).as_uri(), width=width)
    assert page_.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page_.locator(".tiles dd").first.is_visible() and page_.locator("svg").first.is_visible()
    assert page_.evaluate("performance.getEntriesByType('resource').length") == 0
    shot(page_, f"report-{kind}-{width}")
    if (kind, width) == (KINDS[0], 1000):
        shot(page_, "report", "section .facts")


def test_on_paper_it_has_no_folded_parts(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    page_ = open_page(written("incident", tmp_path).as_uri(), width=1000)
    page_.emulate_media(media="print")
    assert not page_.locator("details").first.is_visible()
    assert page_.locator("h2").first.is_visible()
