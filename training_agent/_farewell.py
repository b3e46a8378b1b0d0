"""The end of the process: a flagged step must not be lost because the loop never came to its update.

Comes in: the update of the step in progress, and in deferred mode the one whose last flags the host has not
read. Goes out: nothing, or the alarm and exit code 3.
"""

from __future__ import annotations

import atexit
import sys
from dataclasses import dataclass
from datetime import timedelta

from . import exit_codes
from ._alarm import Sighting
from ._overflow import scales
from ._update import Update
from .contract import Check, ExitCode, Finding, FindingKind
from .errors import AgentError, SdcAlarm

MEETING = timedelta(seconds=10)  # for ranks that all fail at the same line


@dataclass(frozen=True, slots=True)
class Farewell:
    """Looks at a guard's last step when the process ends."""

    update: Update

    def expect(self) -> None:
        """From now on."""
        exit_codes.witnesses.append(self.judge_open_step)
        if self.update.deferred:
            atexit.register(self.judge_last_step)

    def cancel(self) -> None:
        """The guard is gone."""
        if self.judge_open_step in exit_codes.witnesses:
            exit_codes.witnesses.remove(self.judge_open_step)
        atexit.unregister(self.judge_last_step)

    def judge_open_step(self) -> None:
        """An error of the loop ends the process: judge the step that it may come from.

        `clip_grad_norm_(..., error_if_nonfinite=True)` and its like raise between backward and update, on
        every rank, since all have the same reduced gradient; nobody would be named.

        Raises:
            SdcAlarm: the step in progress has a gradient that is not finite.
        """
        update, setup = self.update, self.update.setup
        if not update.watch.open or update.norms.backwards == 0 or setup.sharding is not None:
            return  # shards differ by rank: the others may be elsewhere
        # DDP notes at each forward whether the backward that follows reduces.
        last = getattr(setup.outer, "require_forward_param_sync", True)
        if not last or len(update.watch.batches) != update.norms.backwards:
            return  # the others are in a forward or backward: nobody is at the update
        if not update.norms.left_nonfinite():  # not its share of them alone: the answer of all ranks is one
            return
        # In deferred mode a rank that goes on is in its next backward when it judges this step.
        key = f"farewell/{update.ledger.step + 1}"
        if update.deferred and not setup.comm.meet(key, MEETING):
            return
        if scales():
            update.drain()
            update.skipped_by_loop()  # an overflow, as the scaler would have answered it
        else:
            update.before(setup.optimizers[0])
            update.drain()

    def judge_last_step(self) -> None:
        """Deferred mode: judge what is pending; without the other ranks the alarm names nobody."""
        update, pending = self.update, self.update.pending
        tally = None if pending is None else pending.count.read()
        if tally is not None and tally.overflow:
            return  # normal: not worth a question to ranks that may be elsewhere, or gone
        flagged = tally is not None and tally.suspicious
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
