"""What the README says must be what the code does."""

from __future__ import annotations

from docs.render import PICTURE, README, ROOT, rendered


def test_decision_table_and_mail_in_the_readme_are_those_of_the_code() -> None:
    text = README.read_text()
    assert rendered(text) == text, "run python -m docs.render"


def test_the_readme_shows_real_output_of_the_demo() -> None:
    text = README.read_text()
    assert "<!-- demo output -->" not in text
    assert text.count("\nPROVEN\n") == 1


def test_the_picture_of_the_page_is_there_and_small() -> None:
    assert str(PICTURE.relative_to(ROOT)) in README.read_text()
    assert PICTURE.read_bytes().startswith(b"\x89PNG") and PICTURE.stat().st_size < 300_000
