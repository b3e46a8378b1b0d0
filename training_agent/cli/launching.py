"""Runs the launch that a command is given, and keeps what it said. Used by `preflight` and `bisect`.

In: a launch command, its environment, what to do with lines of our own. Out: the exit code, and what the
ranks said of a failure. torchrun ends every failure with a long report that knows nothing of the cause, in
which the cause would drown: that report is left out.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from .failures import CannotAskError

SHOWN_LINES = 20  # of a launch that says nothing else
_KEPT_LINES = 20_000
_TRACEBACK_LINES = 8  # the last ones of each
_PREFIX = re.compile(r"^\[[a-z_]+\d+\]: ?")  # "[rank0]: " by torch, "[default0]:" by torchrun's --tee
_LAUNCHER = re.compile(r"^[EWIF]\d{4} \d\d:\d\d:\d\d\.\d+ .*torch/distributed/")
_OURS = re.compile(r"^training_agent\.errors\.\w+: (.*)")
_BEGIN = "Traceback (most recent call last):"
_TRAILER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a launch ended."""

    code: int
    output: tuple[str, ...]  # its last lines

    @property
    def said(self) -> tuple[str, ...]:
        """What its processes said of a failure."""
        return reasons(self.output)


def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    heard: Callable[[dict[str, Any]], object],
) -> Ended:
    """Run it to its end; `heard` gets each of the agent's log lines.

    Interrupted or told to end (SIGTERM) it ends the launch first, so that no job is left on the GPUs.

    Raises:
        CannotAskError: there is no such program.
        KeyboardInterrupt: it was interrupted, or told to end.
    """
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "training_agent.run", "--", *command],
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as e:
        raise CannotAskError(f"{command[0]} cannot be started: {e}.", "Check the command after --.") from e
    assert child.stdout is not None
    with child, _told_to_end():
        try:
            for line in child.stdout:
                lines.append(line.rstrip())
                if (ours := of_agent(line)) is not None:
                    heard(ours)
            return Ended(child.wait(), tuple(lines))
        except BaseException:
            child.terminate()  # passed on to the launcher, and by that to its workers
            child.wait()
            raise


@contextmanager
def _told_to_end() -> Iterator[None]:
    """A block that SIGTERM interrupts like Ctrl-C: it would end this process alone."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def of_agent(line: str) -> dict[str, Any] | None:
    """A log line of the agent; a launcher may put the rank before it."""
    start = line.find('{"sdc":"')
    if start < 0:
        return None
    try:
        found = json.loads(line[start:])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def reasons(output: Iterable[str]) -> tuple[str, ...]:
    """Why a launch failed, in its processes' words, each once.

    The agent's own errors; without one, tracebacks; without those, the agent's warnings and the last lines.
    """
    lines = [_PREFIX.sub("", line) for line in output]
    lines, trailer = _without_launcher(lines)
    if found := _errors(lines):
        return tuple(found)
    return (*(_tracebacks(lines) or _last(lines)), *_first_to_end(trailer))


def _without_launcher(lines: list[str]) -> tuple[list[str], list[str]]:
    """What the processes printed, and torchrun's report on them."""
    lines = [line for line in lines if not _LAUNCHER.match(line)]
    at = next((n for n, line in enumerate(lines) if line.startswith(_TRAILER)), None)
    if at is None:
        return lines, []
    begin = max((n for n in range(at) if lines[n] == _BEGIN), default=at)
    return lines[:begin], lines[at + 1 :]


def _errors(lines: Sequence[str]) -> list[str]:
    """The agent's errors with the lines below; ranks say the same, and write between each other's lines."""
    found: dict[str, None] = {}
    inside = False
    for line in lines:
        if ours := _OURS.match(line):
            inside = True
            found[ours[1]] = None
        elif inside and line.startswith("  ") and not line.startswith(("   ", '  File "')):
            found[line] = None
    return list(found)


def _tracebacks(lines: Sequence[str]) -> list[str]:
    """The end of each other error, once."""
    found: dict[str, list[str]] = {}
    block: list[str] | None = None
    for line in lines:
        if line == _BEGIN:
            block = []
        elif block is not None:
            block.append(line)
            if line and not line[0].isspace():
                found.setdefault(line, block[-_TRACEBACK_LINES:])
                block = None
    return [line for block in found.values() for line in block][: 2 * SHOWN_LINES]


def _last(lines: Sequence[str]) -> list[str]:
    said = [(line, of_agent(line)) for line in lines if line.strip()]
    ours = [str(found["message"]) for _, found in said if found is not None and "message" in found]
    others = dict.fromkeys(line for line, found in said if found is None)  # ranks say the same
    return [*dict.fromkeys(ours), *list(others)[-SHOWN_LINES:]]


def _first_to_end(trailer: Sequence[str]) -> list[str]:
    """What torchrun alone knows: which process ended first, and by which code or signal."""
    begin = next((n for n, line in enumerate(trailer) if line.startswith("Root Cause")), None)
    if begin is None:
        return []
    facts = {name.strip(): value.strip() for name, _, value in (t.partition(":") for t in trailer[begin:])}
    how = facts.get("traceback", "")
    if not how.startswith("Signal "):
        how = f"exit code {facts.get('exitcode', '?').partition(' ')[0]}"
    return [f"rank {facts.get('rank', '?').partition(' ')[0]} ended first: {how}"]
