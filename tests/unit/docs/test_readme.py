"""What the README says must be what the code does."""

from __future__ import annotations

from docs.render import README, rendered


def test_the_decision_table_in_the_readme_is_the_one_in_the_code() -> None:
    text = README.read_text()
    assert rendered(text) == text, "run python -m docs.render"


def test_the_readme_shows_real_output_of_the_demo() -> None:
    text = README.read_text()
    assert "<!-- demo output -->" not in text
    assert text.count("\nPROVEN\n") == 1
