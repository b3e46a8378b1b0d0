"""The approver acts like a person with a browser, and not on what the page does not show."""

from __future__ import annotations

import pytest

from examples.demo.approver import Page, approve, review_link

HTML = """<h1>Replace i-0123456789abcdef0?</h1><form method="post" action="/review/s">
<input type="hidden" name="evidence" value="h"><input name="typed"><textarea name="reason"></textarea>
<button name="decision" value="approve">Yes</button></form>"""


def test_the_link_stands_on_a_line_of_its_own() -> None:
    assert review_link("Decide:\n\n  http://127.0.0.1:1/review/abc\n\nBye") == "http://127.0.0.1:1/review/abc"
    assert review_link("see http://127.0.0.1:1/review/abc for more") is None


def test_the_form_is_read_with_its_hidden_fields() -> None:
    page = Page(HTML)
    assert page.action == "/review/s"
    assert page.fields["evidence"] == "h"
    assert "Replace i-0123456789abcdef0?" in page.text


def test_nobody_approves_an_instance_that_the_page_does_not_show() -> None:
    with pytest.raises(RuntimeError, match="does not show"):
        approve("http://127.0.0.1:1/review/s", Page(HTML), "i-0fedcba9876543210", "because")
