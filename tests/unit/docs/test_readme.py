"""What README and architecture say must be what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import architecture
from docs.render import ARCHITECTURE, BLOCKS, IMAGES, OPERATE, PICTURES, README, ROOT, rendered, told
from lambdas.domain.incident import TERMINAL


@pytest.mark.parametrize("path", BLOCKS, ids=lambda path: path.name)
def test_tables_mails_and_variables_in_documents_are_those_of_the_code(path: Path) -> None:
    assert rendered(path) == path.read_text(), "run python -m docs.render"


def test_the_runbook_says_what_each_end_of_an_incident_leaves_to_do() -> None:
    text = OPERATE.read_text()
    assert [state.value for state in TERMINAL if f"`{state.value}`" not in text] == []


def test_the_data_flow_table_has_every_module_once_and_no_other() -> None:
    table = ARCHITECTURE.read_text().split("<!-- modules -->")[1]
    found = []
    for part in table.split("\n### ")[1:]:
        folder = re.search(r"`([\w/]+)`$", part.splitlines()[0])
        assert folder is not None
        found += [f"{folder[1]}/{name}.py" for name in re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)]
    listed = [m for folder in architecture.every_folder() for m in architecture.modules(folder)]
    assert sorted(found) == sorted(listed), "run python -m docs.render"


def test_every_module_says_what_it_is_for() -> None:
    flows = [architecture.flow(m) for f, _ in architecture.parts() for m in architecture.modules(f)]
    assert [f.module for f in flows if not f.decides] == []
    told = [f for f in flows if f.receives and f.emits]
    assert len(told) > 0.6 * len(flows)


def test_the_readme_shows_real_output_of_the_demo() -> None:
    text = README.read_text()
    assert text.count("\nPROVEN\n") == 1
    shown = text.split("<!-- demo -->")[1].split("<!-- /demo -->")[0]
    assert max(map(len, shown.splitlines())) <= 80


def test_lines_of_live_progress_are_left_out_of_the_demos_output() -> None:
    log = """   1.0 s  the job
   2.0 s    ... it holds while a
          node waits
   3.0 s  mail to
          a@b.c

Hit:       3
"""
    assert told(log) == ["   1.0 s  the job", "   3.0 s  mail to", "          a@b.c", "", "Hit:       3"]


def test_the_pictures_are_there_and_small() -> None:
    for name in PICTURES.values():
        picture = IMAGES / name
        assert str(picture.relative_to(ROOT)) in README.read_text()
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 300_000


def test_the_plain_loop_changes_in_ten_lines_which_make_examples_runs() -> None:
    diff = README.read_text().split("<!-- diff -->")[1].split("<!-- /diff -->")[0]
    added = [line[1:] for line in diff.splitlines() if line.startswith("+")]
    assert 0 < len(added) <= 10
    script = (ROOT / "examples" / "integrations" / "plain.py").read_text()
    runs = _bare(script).replace("schedule=schedule_of(config),", "")
    assert [line for line in added if _bare(line) not in runs.replace(",)", ")")] == []


def _bare(text: str) -> str:
    return "".join(text.split())
