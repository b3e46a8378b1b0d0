"""The terminal of `sdc`: colours, live lines and links only where somebody looks; NO_COLOR is respected."""

from __future__ import annotations

import io
import sys

import pytest

from training_agent.cli.failures import CliError
from training_agent.cli.screen import Screen

URL = "https://us-east-1.console.aws.amazon.com/states/home?region=us-east-1#/v2/executions/details/arn:aws:x"


class Stream(io.StringIO):
    """A standard stream that is a terminal, or a pipe."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, no_color: bool = False) -> tuple[str, str]:
    """What one command writes: standard output, standard error."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    out, err = Stream(terminal=terminal), Stream(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    screen = Screen(as_json=False)
    with screen.progress("following") as progress:
        progress.say("AWAITING_APPROVAL: asked for replace " + "and a reason that is long " * 5)
    screen.line("failed   shared-folder", style="bold red")
    screen.line("Execution 3f1c9a0b7d2e4685-1 in the AWS console", style=f"link {URL}")
    screen.table(("INCIDENT", "JOB"), [("3f1c9a0b7d2e4685", "llama-" + "x" * 100)])
    return out.getvalue(), err.getvalue()


def test_the_last_column_of_a_table_wraps_at_words_where_the_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    out = Stream(terminal=False)
    monkeypatch.setattr(sys, "stdout", out)
    words = "layers.0.weight, layers.0.bias, layers.11.norm.weight"
    headings = ("REPEAT", "RESULT", "OBSERVED", "DIFFERS FROM THE RANK'S OWN IN")
    Screen(as_json=False).table(headings, [("1", "3f1c9a0b7d2e4685", "as rank 0, 1, 2", words)])
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 70 and "…" not in out.getvalue()
    shown = {word for line in lines for word in line.split()}
    assert {*words.split(), *headings[-1].split()} <= shown


def test_a_terminal_gets_colours_a_live_line_and_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = shown(monkeypatch, terminal=True)
    assert "\x1b[1;31mfailed" in out and f";{URL}\x1b" in out
    assert "\x1b[?25l" in err  # the cursor is hidden while a live line is shown
    assert "AWAITING_APPROVAL" not in err or "…" in err  # one line, however long the text


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = shown(monkeypatch, terminal=True, no_color=True)
    assert "31m" not in out and "failed   shared-folder" in out


def test_a_pipe_gets_plain_lines_of_80_columns_and_each_change_once(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = shown(monkeypatch, terminal=False)
    assert "\x1b" not in out + err and URL not in out
    assert max(map(len, (out + err).splitlines())) <= 80
    assert err.count("AWAITING_APPROVAL") == 1


def test_what_an_alarm_named_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's name is up to 256 characters of whatever a pod sent: here to fill the clipboard."""
    hostile = "llama\x1b]52;c;cm0gLXJm\x07\x1b[8m\u202e\x9b2J\r\nfine"
    out, err = Stream(terminal=False), Stream(terminal=False)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    screen = Screen(as_json=False)
    screen.line(f"Job      {hostile}")
    screen.verbatim(hostile)
    screen.table(("JOB",), [(hostile,)])
    screen.error(CliError(hostile, hostile))
    with screen.progress("following") as progress:
        progress.say(hostile)
    for text in (out.getvalue(), err.getvalue()):
        assert "llama" in text and text.replace("\n", "").isprintable()
