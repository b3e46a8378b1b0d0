"""Deferred mode's memory of one step. Used by `_update`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ._capture import DeviceState
from ._gate import Count
from ._step_record import StepRecord
from .report import StepChecks


@dataclass(slots=True)
class Pending:
    """A step whose flags the host has not read yet (deferred mode), with the state to put back."""

    record: StepRecord
    count: Count
    own: Tensor  # 1 when this rank's gradient was not finite
    state: DeviceState
    checks: StepChecks | None = None  # to report once the flags were read
