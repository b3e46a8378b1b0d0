"""Deferred mode at the end of the process: a flagged step must not be lost because nobody called `close()`.

Comes in: the update whose last flags the host has not read. Goes out: nothing, or the alarm and exit code 3.
"""

from __future__ import annotations

import sys

from . import exit_codes
from ._alarm import Sighting
from ._update import Update
from .contract import Check, ExitCode, Finding, FindingKind
from .errors import AgentError, SdcAlarm


def judge_last_step(update: Update) -> None:
    """Judge what is pending; without the other ranks the alarm names nobody."""
    pending = update.pending
    flagged = pending is not None and pending.count.read().suspicious
    try:
        try:
            update.drain()
        except AgentError as e:
            if not flagged or isinstance(e, SdcAlarm):
                raise
            assert pending is not None
            update.alarm(_unexamined(pending.record.step))
    except Exception as e:
        if not flagged:
            raise
        sys.stderr.write(f"{e}\n")  # nothing else would: the interpreter is on its way out
        exit_codes.leave(ExitCode.ALARM)


def _unexamined(step: int) -> Sighting:
    text = (
        "a gradient was NaN, Inf or too large in the last step, and the other ranks could not be asked any "
        "more: call guard.close() before destroy_process_group()"
    )
    return Sighting(Check.NONFINITE, step, (Finding(FindingKind.NONFINITE, evidence=text),))
