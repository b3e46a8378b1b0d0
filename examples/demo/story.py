"""What the person at the terminal sees: one line per phase, live progress, a short story at the end.

Comes in: phases from `examples.demo.run`, the summary from `examples.demo.proof`. Goes out: text, wrapped at
words so that no terminal has to. Colours and live lines only on a terminal; rich respects NO_COLOR.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

TIME = 10  # columns that the seconds take
LABEL = 11  # columns of the labels at the end
WIDEST = 110


class Story:
    """Prints phases with their seconds, and lines between them."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.started = time.monotonic()

    def line(self, text: str, style: str = "") -> None:
        """One line, with the seconds since the start; `style` is rich's."""
        seconds = f"{time.monotonic() - self.started:6.1f} s  "
        first, *rest = self._wrapped(text, TIME)
        self._print(Text.assemble((seconds, "dim"), (first, style)))
        for part in rest:
            self._print(Text(" " * TIME + part, style))

    def said(self, label: str, text: str, style: str = "") -> None:
        """One line of the end: a label, and what is to be said."""
        for i, part in enumerate(self._wrapped(text, LABEL)):
            self._print(Text(f"{label if i == 0 else '':<{LABEL}}{part}".rstrip(), style))

    def whole(self, text: str) -> None:
        """As it is, for what is to be copied or clicked."""
        self.console.print(Text(text), soft_wrap=True)

    @contextmanager
    def phase(self, text: str) -> Iterator[Progress]:
        """Show `text` with live progress while the block runs; off a terminal, the start and milestones."""
        self.line(text)
        if self.console.is_terminal:
            with self.console.status(Text(text)) as status:
                yield Progress(lambda detail: status.update(self._short(f"{text}: {detail}")))
            return
        yield Progress(_Milestones(self.line))

    def _wrapped(self, text: str, indent: int) -> list[str]:
        """Lines that fit beside `indent` columns; a longer word stays whole, for it may be an address."""
        lines = text.splitlines() or [""]
        width = max(20, min(self.console.width, WIDEST) - indent)
        return [
            part
            for line in lines
            for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
        ]

    def _short(self, text: str) -> Text:
        short = Text(text, no_wrap=True)
        short.truncate(max(20, self.console.width - 2), overflow="ellipsis")  # beside the spinner
        return short

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


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
    story.whole("")
    if summary["fault"] == "none":
        story.said("Fault:", "none was injected: no alarm, no incident, no mail; training ran to the end.")
    elif summary["alarm_step"] is not None:
        first, last = summary["suspect_window"]
        verdict = f", verdict {summary['verdict']}" if summary["verdict"] else ""
        story.said("Hit:", f"{_victims(summary)} by fault {summary['fault']}")
        story.said(
            "Seen:",
            f"check {summary['check']} at step {summary['alarm_step']}, names "
            f"{ranks_in_words(summary['named_ranks'])}{verdict}; suspect window {first}-{last}",
        )
        story.said("Decided:", f"row {summary['decision_row']}, ended {summary['terminal_state']}")
        old, new = _listed(summary["replaced_instance"]), _listed(summary["new_instance"])
        if old:
            pairs = zip(old, new, strict=True)
            story.said("Replaced:", "; ".join(f"{was} by {now or 'nothing yet'}" for was, now in pairs))
        if summary["resumed_from_step"] is None:
            story.said("Came back:", "not yet: it holds until a person decides")
        else:
            story.said(
                "Came back:", f"from step {summary['resumed_from_step']}, finished {summary['final_step']}"
            )
    if summary["final_step"] is not None or not wrong:
        same = summary["weights_identical_to_fault_free_run"]
        story.said("Weights:", f"{'bit-identical to' if same else 'NOT those of'} the run that was never hit")
    story.said("Cost:", cost)
    for reason in wrong:
        story.said("FAILED:", reason, "bold red")
    if not wrong:
        story.said("PROVEN", "", "bold green")


def ranks_in_words(ranks: Sequence[int]) -> str:
    """ "rank 3" or "ranks 3, 5", or that there is none."""
    if not ranks:
        return "nobody"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _victims(summary: Mapping[str, Any]) -> str:
    """Rank, instance and step, as the injector wrote them down."""
    once = summary["fault"].endswith("-once")
    names = ("injected_rank", "suspect_instance", "struck_step")
    hit = zip(*(_listed(summary[name]) for name in names), strict=False)
    return " and ".join(
        f"rank {rank} ({instance}) {'at' if once else 'from'} step {step}{'' if once else ' on'}"
        for rank, instance, step in hit
    )


def _listed(value: Any) -> list[Any]:
    """One value, several or none, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]
