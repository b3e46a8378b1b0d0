"""The demo's terminal: nothing wraps at 80 columns, colours only where they are wanted, help that helps."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.demo.__main__ import main
from examples.demo.settings import VARIABLES
from examples.demo.story import Story, tell

INSTANCE = "i-111429652bc06aa03"
SUMMARY: dict[str, Any] = {
    "fault": "forward-x1000", "injected_rank": 3, "suspect_instance": INSTANCE, "struck_step": 23,
    "check": "replay", "alarm_step": 30, "named_ranks": [3], "verdict": "persistent",
    "suspect_window": [21, 30], "decision_row": "C1", "terminal_state": "REPLACED",
    "replaced_instance": INSTANCE, "new_instance": "i-966a463e769804860", "resumed_from_step": 20,
    "final_step": 60, "weights_identical_to_fault_free_run": True,
}  # fmt: skip


def told(*, terminal: bool, monkeypatch: pytest.MonkeyPatch, no_color: bool = False) -> str:
    """The same story on a terminal of 80 columns, or into a pipe."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1") if no_color else monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    story = Story(Console(file=out, force_terminal=terminal, width=80, highlight=False))
    with story.phase("reference run, and the same run hit by the fault without the agent") as progress:
        progress("poisoned: step 42/60 " + "and more that does not fit beside the spinner " * 2)
    story.line(f"pipeline: CONTAINED: C1: hyperpod-{INSTANCE} cordoned, 1 of the job's pods evicted")
    story.line("mail to approver@example.com: [SDC] [bold] is no markup: review a replacement (job llama)")
    tell(
        story,
        SUMMARY,
        ["the final weights or moments differ from those of the run that was never hit"] * 2,
        "9 s",
    )
    return out.getvalue()


def test_nothing_is_wider_than_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    text = told(terminal=False, monkeypatch=monkeypatch)
    assert max(map(len, text.splitlines())) <= 80
    assert "[SDC] [bold] is no" in text and "suspect window 21-30" in " ".join(text.split())
    assert "\x1b" not in text


def test_colours_only_on_a_terminal_and_none_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;31m" in told(terminal=True, monkeypatch=monkeypatch)
    plain = told(terminal=True, monkeypatch=monkeypatch, no_color=True)
    assert not any(f"\x1b[{code}m" in plain for code in ("31", "1;31", "32", "1;32"))


def test_a_link_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    story = Story(Console(file=out, width=80, highlight=False))
    link = "http://127.0.0.1:4566/review/" + "x" * 80
    story.whole(f"Review:\n{link}")
    assert link in out.getvalue().splitlines()


def test_help_names_every_variable_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and list(tmp_path.iterdir()) == []
    assert all(name in out and default in out for name, default, _ in VARIABLES)
    assert max(map(len, out.splitlines())) <= 80


def test_an_argument_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--fault", "none"])
    assert ended.value.code == 2 and "usage:" in capsys.readouterr().err


def ended(**changes: Any) -> str:
    out = io.StringIO()
    tell(Story(Console(file=out, width=200, highlight=False)), {**SUMMARY, **changes}, [], "9 s")
    return out.getvalue()


def test_what_was_hit_is_said_in_words_for_one_and_for_several() -> None:
    assert f"Hit:       rank 3 ({INSTANCE}) from step 23 on by fault forward-x1000" in ended()
    assert f"rank 3 ({INSTANCE}) at step 23 by fault nan-once" in ended(fault="nan-once")
    two = ended(
        fault="two-gpus", injected_rank=[3, 5], suspect_instance=["i-a", "i-b"], struck_step=[23, 23],
        named_ranks=[3, 5], replaced_instance=["i-a", "i-b"], new_instance=["i-c", "i-d"],
    )  # fmt: skip
    assert "rank 3 (i-a) from step 23 on and rank 5 (i-b) from step 23 on by fault" in two
    assert "names ranks 3, 5, verdict" in two and "i-a by i-c; i-b by i-d" in two
    assert "[" not in two


def test_a_job_that_has_not_come_back_is_not_said_to_have_ended() -> None:
    out = ended(resumed_from_step=None, final_step=None, replaced_instance=None, new_instance=None)
    assert "Came back: not yet" in out and "None" not in out
