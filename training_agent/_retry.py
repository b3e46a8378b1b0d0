"""Computes a step that a check has stopped once more, from its own start.

Comes in: the step's record. Goes out: new gradients, as if the first ones had never been. Next: `_update`
judges them like the first.
"""

from __future__ import annotations

import torch

from ._capture import DeviceState, reentered
from ._startup import Setup
from ._watch import StepRecord, StepWatch
from .checks.nonfinite import GradientNorms


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
        torch.autograd.backward([loss], [seed for seed in capture.seeds if seed is not None])
    if setup.finish is not None:
        setup.finish()
