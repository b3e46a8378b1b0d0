"""Computes a step that a check has stopped once more, from its own start.

Comes in: the step's record. Goes out: new gradients, as if the first ones had never been. Next: `_update`
judges them like the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ._capture import DeviceState, reentered, switched
from ._evidence import Depth
from ._masters import drop_gradients
from ._startup import Setup
from ._step_record import StepRecord
from ._watch import StepWatch
from .checks.nonfinite import GradientNorms
from .log_line import log_line

if TYPE_CHECKING:
    from ._update import Update


def retried(update: Update, record: StepRecord) -> bool:
    """Compute the step once more and judge it again; False when that cannot be done or fails again."""
    setup = update.setup
    if not repeatable(setup, record, update.norms):
        log_line("warning", message="the step cannot be retried", step=record.step)
        return False
    drop_gradients(setup)
    update.watch.begin(audit=record.audit, depth=update.depth or Depth.BITS)
    update.determinism.switch(setup.schedule.deterministic_step(record.audit))
    update.layers.again()
    if record.batch is not None and record.batch.kept is not None:
        update.surroundings.put(record.batch.kept)
    compute_again(setup, record, update.watch)
    again = update.watch.record(record.step)
    count, own = update.count(setup.optimizers[0])
    if update.judge(again, count.read(), own) is not None:
        return False
    update.ledger.retried(record.step)
    return True


def repeatable(setup: Setup, record: StepRecord, norms: GradientNorms) -> bool:
    """Whether all ranks have all that it takes; a collective."""
    able = setup.compute_loss is not None and record.batch is not None and record.obstacle is None
    able = able and record.micro_batches == 1 and (norms.untouched() or setup.finish is not None)
    return not setup.comm.total([not able])[0]


def compute_again(setup: Setup, record: StepRecord, watch: StepWatch) -> None:
    """Forward, backward and what the loop does after it, watched anew; see `repeatable`."""
    compute, batch = setup.compute_loss, record.batch
    assert compute is not None and batch is not None
    capture = batch.capture
    DeviceState.write_buffers(setup.module, capture.buffers)
    with reentered(capture, setup.module, setup.device):
        with watch.inside_loss(capture.args, capture.kwargs):
            loss = compute(setup.model, *capture.args, **capture.kwargs)
        watch.leave_loss(loss)
        with switched(capture.backward, setup.device):
            torch.autograd.backward([loss], [seed for seed in capture.seeds if seed is not None])
    if setup.finish is not None:
        setup.finish()
