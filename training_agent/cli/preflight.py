"""`sdc preflight -- torchrun ... train.py`: the script's own model and batch, up to its first update.

In: a launch command. Out: who replays whom, how deep audits can compare, and which operator stands in the
way. The launch ends by itself (`training_agent._preflight_only`); what it prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ..contract import Env, ExitCode
from .failures import CannotAskError, CliError, Exit
from .screen import Screen

_SHOWN_LINES = 20  # of a launch that failed
_MEANING = {
    ExitCode.ALARM: "a GPU computes something else than its peers",
    ExitCode.CONFIGURATION: "the set-up is refused",
    ExitCode.REFUSED_NODE: "a rank stands on a quarantined node",
    ExitCode.PEER_LOST: "a peer was lost",
}


class NoLaunchError(CliError):
    """Nothing was given after `--`."""

    code = Exit.USAGE


def preflight(screen: Screen, launch: Sequence[str]) -> Exit:
    """Run it and say what it found; 1 when audits cannot compare everything, or it did not get that far.

    Raises:
        NoLaunchError: there is no launch command.
        CannotAskError: the script ended without a preflight.
    """
    if not launch:
        raise NoLaunchError(
            "There is nothing to launch.", "sdc preflight -- torchrun --nproc-per-node 8 train.py"
        )
    with screen.progress(f"launching {launch[0]}") as progress:
        code, reports, tail = _run(launch, progress.say)
    if not reports:
        _explain(screen, code, tail)
        return Exit.NO
    reports.sort(key=lambda r: int(r["rank"]))
    notes = list(dict.fromkeys(n for r in reports for n in r["notes"]))
    ready = code == 0 and not notes
    screen.document({"ready": ready, "exit_code": code, "ranks": reports, "notes": notes})
    rows = [
        (
            str(r["rank"]),
            str(r["place"]["node"]),
            str(r["place"]["gpu_uuid"] or f"number {r['place']['local_rank']}"),
            f"rank {r['replays']}",
        )
        for r in reports
    ]
    screen.table(("RANK", "NODE", "GPU", "REPLAYS"), rows)
    screen.line()
    screen.line(f"Audits compare {reports[0]['compares']}.")
    screen.line(f"A finding is independent by {reports[0]['independence']}.")
    for note in notes:
        screen.line(f"Not checked: {note}", hanging=13, style="bold red")
    screen.line("Ready." if ready else "Not everything can be checked; nothing was trained.")
    return Exit.DONE if ready else Exit.NO


def _run(launch: Sequence[str], say: Any) -> tuple[int, list[dict[str, Any]], list[str]]:
    command = [sys.executable, "-m", "training_agent.run", "--", *launch]
    environment = {**os.environ, Env.PREFLIGHT.value: "1", Env.EXIT_CODES.value: ""}
    reports: list[dict[str, Any]] = []
    tail: list[str] = []
    try:
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as e:
        raise CannotAskError(f"{launch[0]} cannot be started: {e}.", "Check the command after --.") from e
    assert child.stdout is not None
    with child:
        for line in child.stdout:
            report = _report(line)
            if report is not None:
                reports.append(report)
                say(f"rank {report['rank']} is through")
            else:
                tail = [*tail, line.rstrip()][-_SHOWN_LINES:]
        return child.wait(), reports, tail


def _report(line: str) -> dict[str, Any] | None:
    start = line.find('{"sdc":"preflight"')  # a launcher may put the rank before it
    if start < 0:
        return None
    try:
        found = json.loads(line[start:])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _explain(screen: Screen, code: int, tail: Iterable[str]) -> None:
    meaning = _MEANING.get(code, "it ended before its first forward")  # type: ignore[call-overload]
    if code == 0:
        raise CannotAskError(
            "The script ended without a preflight.",
            "It must call training_agent.attach and compute one forward; give it at least one step.",
        )
    screen.document({"ready": False, "exit_code": code, "why": meaning, "output": list(tail)})
    screen.line(f"The launch ended with {code}: {meaning}. Its last lines:", style="bold red")
    for line in tail:
        screen.line(line, indent=2)
