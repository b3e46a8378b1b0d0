"""The review pages and the report are two packages' templates in one frame."""

from __future__ import annotations

from docs.render import ROOT
from training_agent.pictures import TEMPLATES


def test_pages_and_report_have_one_head_and_one_way_to_lay_out_pictures() -> None:
    templates = [t for part in ("lambdas", "training_agent") for t in (ROOT / part).rglob("*.html")]
    assert len(templates) >= 5
    heads = [t for t in templates if "<head>" in t.read_text(encoding="utf-8")]
    figures = [t for t in templates if 'class="figures"' in t.read_text(encoding="utf-8")]
    assert (heads, figures) == ([TEMPLATES / "page.html"], [TEMPLATES / "figures.html"])
