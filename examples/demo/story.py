"""What the person at the terminal sees: one line per phase, live progress, a short story at the end.

Comes in: phases from `examples.demo.__main__`, the summary from `examples.demo.proof`. Goes out: text.
Colours and live lines only on a terminal; NO_COLOR is respected (rich does).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console


class Story:
    """Prints phases with their seconds, and lines between them."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.started = time.monotonic()

    def line(self, text: str) -> None:
        """One line, with the seconds since the start."""
        seconds = time.monotonic() - self.started
        self.console.print(f"[dim]{seconds:6.1f} s[/dim]  {text}")

    @contextmanager
    def phase(self, text: str) -> Iterator[Progress]:
        """Show `text` with live progress while the block runs; off a terminal, the start and milestones."""
        self.line(text)
        if self.console.is_terminal:
            with self.console.status(text) as status:
                yield Progress(lambda detail: status.update(f"{text}: {detail}"))
            return
        yield Progress(_Milestones(self.line))


class Progress:
    """Where a phase stands."""

    def __init__(self, show: Any) -> None:
        self._show = show
        self._last = ""

    def __call__(self, detail: str) -> None:
        if detail and detail != self._last:
            self._last = detail
            self._show(detail)


class _Milestones:
    """Lets at most one line through in ten seconds, so that a log stays short but never silent."""

    def __init__(self, line: Any) -> None:
        self._line = line
        self._next = time.monotonic() + 10.0

    def __call__(self, detail: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 10.0
            self._line(f"  ... {detail}")


def tell(story: Story, summary: Mapping[str, Any], wrong: Sequence[str], cost: str) -> None:
    """The story's end: who was hit, what was seen, when, what it cost, and whether the proof holds."""
    console = story.console
    console.print()
    if summary["fault"] == "none":
        console.print("No fault was injected: no alarm, no incident, no mail; training ran to the end.")
    elif summary["alarm_step"] is not None:
        first, last = summary["suspect_window"]
        verdict = f", verdict {summary['verdict']}" if summary["verdict"] else ""
        console.print(f"Hit:       {_victims(summary)} by fault {summary['fault']}")
        console.print(
            f"Seen:      check {summary['check']} at step {summary['alarm_step']}, names ranks "
            f"{summary['named_ranks']}{verdict}; suspect window {first}-{last}"
        )
        console.print(f"Decided:   row {summary['decision_row']}, ended {summary['terminal_state']}")
        if summary["replaced_instance"]:
            console.print(f"Replaced:  {summary['replaced_instance']} by {summary['new_instance']}")
        console.print(
            f"Came back: from step {summary['resumed_from_step']}, finished {summary['final_step']}"
        )
    same = summary["weights_identical_to_fault_free_run"]
    console.print(f"Weights:   {'bit-identical to' if same else 'NOT those of'} the run that was never hit")
    console.print(f"Cost:      {cost}")
    for reason in wrong:
        console.print(f"[bold red]FAILED:[/bold red] {reason}")
    if not wrong:
        console.print("[bold green]PROVEN[/bold green]")


def _victims(summary: Mapping[str, Any]) -> str:
    """Rank, instance and step, as the injector wrote them down."""
    ranks, steps = summary["injected_rank"], summary["struck_step"]
    return f"rank {ranks} ({summary['suspect_instance']}) from step {steps} on"
