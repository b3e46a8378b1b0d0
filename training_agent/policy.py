"""When an alarm is raised, what it does to the step, and whom it can name. In: nothing. Out: vocabulary of
`attach`.

Next step: the guard follows it, on all ranks alike.
"""

from __future__ import annotations

from enum import Enum


class Mode(str, Enum):
    """When the host learns what the checks saw."""

    IMMEDIATE = "immediate"  # in the step itself: one host synchronisation
    DEFERRED = "deferred"  # one step later, the update gated on the device; needs a fused optimizer


class Policy(str, Enum):
    """What happens to a step that a check has stopped."""

    STOP = "stop"  # SdcAlarm on every rank
    RETRY = "retry"  # compute the step once more; SdcAlarm if it is stopped again or cannot be repeated
    SKIP = "skip"  # drop the step on all ranks and count it; diverged weights still stop
    WARN = "warn"  # one log line, and go on with what is there


class Naming(str, Enum):
    """Which local gradients check 1 reads to name the rank of a NaN, Inf or norm too large for float32.

    The reduced gradient is read either way, so either way the step is stopped.
    """

    FULL = "full"  # all of them
    LAZY = "lazy"  # the small 1-D ones: a NaN in one weight's gradient alone names nobody
