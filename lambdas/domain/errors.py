"""Errors of the pipeline. The state machine's Retry and Catch list these class names.

PipelineError
|-- RetryableError          the same step may be called again
|   |-- ThrottledError      a service asked us to slow down
|   |-- ConflictError       somebody else wrote in between; read again
|   `-- UnavailableError    no answer, 5xx, or something that is about to exist does not exist yet
`-- PermanentError          calling again cannot help
    |-- NeedsHumanError     the step cannot go on safely; the text says why, the node stays as it is
    |   |-- HaltedError     kill switch, lowered mode, or neither of them readable
    |   |-- NoApproverError nobody is confirmed on the approval topic
    |   |-- HumanOverrideError  somebody acted on the node: respected, nothing further is done
    |   |-- WorldChangedError   the node is not what it was when it was decided upon
    |   |-- ReplacedByHyperPodError  the node went by itself during or after a deep health check
    |   `-- BreakerError    over budget, or a replacement went wrong before: a human closes it first
    |-- RefusedError        a service refused the call (nothing was done)
    |-- OutcomeUnknownError the call may have been carried out; never call again, read the world
    `-- CallbackGoneError   the execution no longer waits for this task token
"""

from __future__ import annotations


class PipelineError(Exception):
    """Base; the text says what happened, where, and what next."""


class RetryableError(PipelineError):
    """The same step may be called again."""


class ThrottledError(RetryableError):
    """A service asked us to slow down."""


class ConflictError(RetryableError):
    """Somebody else wrote in between."""


class UnavailableError(RetryableError):
    """No answer, a server error, or not there yet."""


class PermanentError(PipelineError):
    """Calling again cannot help."""


class NeedsHumanError(PermanentError):
    """The step cannot go on safely; steps turn it into the outcome "human"."""


class HaltedError(NeedsHumanError):
    """Kill switch on, mode too low, or unreadable: no effect."""


class NoApproverError(NeedsHumanError):
    """No confirmed subscription on the approval topic."""


class HumanOverrideError(NeedsHumanError):
    """A human's act wins: uncordoned, or cordoned by somebody else."""


class WorldChangedError(NeedsHumanError):
    """Launched again, gone, another group or not Running: what was decided is not true any more."""


class ReplacedByHyperPodError(NeedsHumanError):
    """The node is gone after a check that may replace it: it is not replaced again."""


class BreakerError(NeedsHumanError):
    """The breaker is open: no replacement until a human closes it with a reason."""


class RefusedError(PermanentError):
    """A service refused the call; nothing was done."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class OutcomeUnknownError(PermanentError):
    """No answer to a call that may have been carried out."""


class CallbackGoneError(PermanentError):
    """The task token is used, timed out or unknown."""
