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


def test_the_plain_loop_changes_in_ten_lines_which_make_examples_runs() -> None:
    diff = README.read_text().split("<!-- diff -->")[1].split("<!-- /diff -->")[0]
    added = [line[1:] for line in diff.splitlines() if line.startswith("+")]
    assert 0 < len(added) <= 10
    script = (ROOT / "examples" / "integrations" / "plain.py").read_text()
    runs = _bare(script).replace("schedule=schedule_of(config),", "")
    assert [line for line in added if _bare(line) not in runs.replace(",)", ")")] == []


def _bare(text: str) -> str:
    return "".join(text.split())
