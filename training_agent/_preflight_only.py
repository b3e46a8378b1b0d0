"""`sdc preflight`: a launch that ends where its first update would begin.

In: the environment variable that `training_agent.cli.preflight` sets, and what the start found. Out: one JSON
line per rank, then exit code 0 on all of them. Nothing was trained, nothing is saved; an alarm is said and
ends the launch, and leaves nothing behind: the job that starts next in this folder has seen none.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import timedelta

from . import _alarm_text, exit_codes
from ._evidence import Depth
from ._startup import Setup
from .contract import Alarm, Env
from .log_line import log_line
from .placement import partners
from .schedule import Partner

FAREWELL = timedelta(seconds=10)
DEPTHS = {
    Depth.BITS: "every parameter's gradient, loss and outputs, bit by bit",
    Depth.OUTPUT: "loss and outputs, bit by bit",
    None: "nothing: replay audits are off",
}


def asked() -> bool:
    """Is this launch a preflight?"""
    return bool(os.environ.get(Env.PREFLIGHT))


def message(alarm: Alarm) -> str:
    """`_alarm_text.message` without what only a job in training has: a window, a checkpoint to go back to."""
    lines = _alarm_text.message(alarm).splitlines()
    told = [line for line in lines if not line.startswith(("  Suspect window:", "  Next:"))]
    then = "Look at that node, or keep it out of" if alarm.named_ranks else "Find the reason before you start"
    return "\n".join([*told, f"  Next: {_NOTHING}. {then} the job."])


_NOTHING = "this was a preflight: nothing was trained, reported or recorded"


def leave_if_asked(setup: Setup, depth: Depth | None, notes: tuple[str, ...]) -> None:
    """End the process when only the preflight was asked for; every rank calls this alike."""
    if not asked():
        return
    rank = setup.comm.rank
    place = setup.rank_map.place(rank)
    log_line(
        "preflight",
        rank=rank,
        place=asdict(place),
        replays=partners(setup.rank_map, 0, setup.schedule.partner is Partner.ROTATE)[
            setup.comm.ranks.index(rank)
        ],
        independence=setup.rank_map.independence.value,
        compares=DEPTHS[depth],
        notes=list(notes),
    )
    setup.comm.meet("preflight", FAREWELL)  # a launcher ends the others at the first exit
    exit_codes.leave(0)
