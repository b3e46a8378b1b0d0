"""`sdc preflight -- torchrun ... train.py`: the script's own model and batch, up to its first update.

In: a launch command. Out: who replays whom, how deep audits can compare, and which operator stands in the
way. The launch ends by itself (`training_agent._preflight_only`); of what it prints, the reason of a
failure is shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..contract import Env, ExitCode
from .failures import CannotAskError, CliError, Exit
from .launching import Ended, launch
from .screen import Screen

_MEANING = {
    ExitCode.ALARM: "a GPU computes something else than its peers",
    ExitCode.CONFIGURATION: "the set-up is refused",
    ExitCode.REFUSED_NODE: "a rank stands on a quarantined node",
    ExitCode.PEER_LOST: "a peer was lost",
}


class NoLaunchError(CliError):
    """Nothing was given after `--`."""

    code = Exit.USAGE


def preflight(screen: Screen, wanted: Sequence[str]) -> Exit:
    """Run it and say what it found; 1 when audits cannot compare everything, or it did not get that far.

    Raises:
        NoLaunchError: there is no launch command.
        CannotAskError: the script ended without a preflight.
    """
    if not wanted:
        raise NoLaunchError(
            "There is nothing to launch.", "sdc preflight -- torchrun --nproc-per-node 8 train.py"
        )
    with screen.progress(f"launching {wanted[0]}") as progress:
        ended, reports = _run(wanted, progress.say)
    code = ended.code
    if code or not reports:
        _explain(screen, ended)
        return Exit.NO
    reports.sort(key=lambda r: int(r["rank"]))
    notes = list(dict.fromkeys(n for r in reports for n in r["notes"]))
    ready = not notes
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


def _run(wanted: Sequence[str], say: Any) -> tuple[Ended, list[dict[str, Any]]]:
    environment = {**os.environ, Env.PREFLIGHT.value: "1", Env.EXIT_CODES.value: ""}
    reports: list[dict[str, Any]] = []

    def heard(line: dict[str, Any]) -> None:
        if line["sdc"] == "preflight":
            reports.append(line)
            say(f"rank {line['rank']} is through")
        elif line["sdc"] in ("holding", "waiting"):
            say(f"{line['sdc']}: {line.get('why')}")

    return launch(wanted, environment, heard), reports


def _explain(screen: Screen, ended: Ended) -> None:
    meaning = _MEANING.get(ended.code, "it ended before its first forward")  # type: ignore[call-overload]
    if ended.code == 0:
        raise CannotAskError(
            "The script ended without a preflight.",
            "It must call training_agent.attach and compute one forward; give it at least one step.",
        )
    said = ended.said
    screen.document({"ready": False, "exit_code": ended.code, "why": meaning, "output": list(said)})
    screen.line(f"The launch ended with {ended.code}: {meaning}. What it said:", style="bold red")
    for line in said:
        screen.line(line.strip(), indent=2 + len(line) - len(line.lstrip()))
