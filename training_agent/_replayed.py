"""What a step's replay says of it, whatever there is to replay.

Comes in: the step's record, and whose gradient was not finite. Goes out: an `Outcome`, the same on all ranks.
Next: `_update` books it, or raises.
"""

from __future__ import annotations

from ._examine import Examiner, Outcome
from ._startup import Setup
from ._step_record import StepRecord
from .determinism import deterministic


def replayed(setup: Setup, examiner: Examiner, record: StepRecord, nonfinite: tuple[int, ...]) -> Outcome:
    """Replay the step around the ring; `nonfinite`: ranks whose local gradient is not finite."""
    step, count = record.step, record.micro_batches
    deep = record.audit and not (nonfinite and examiner.only_finiteness(count))
    with deterministic(setup.schedule.deterministic):
        if setup.replay_off is not None:
            return examiner.unexamined(step, setup.replay_off, nonfinite)
        if record.obstacle is not None or record.batch is None:
            return examiner.examine(step, None, None, nonfinite, obstacle=record.obstacle)
        known = (record.batch, record.evidence()) if deep else record.nonfinite()
        return examiner.examine(step, *known, nonfinite, micro_batches=count)
